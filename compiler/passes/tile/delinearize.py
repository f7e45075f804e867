"""Delinearization: split loops whose index is divided in addresses, so that every address is affine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from compiler.analysis.accesses import Access, Accesses
from compiler.cost.code_size import code_size
from compiler.errors import TransformError
from compiler.ir.scalar import IndexValue
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_atoms import Atom, FloorDiv, Min, Mod, Var, terms
from compiler.ir.symbolic.index_expr import Dim, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction, without_guard
from compiler.ir.tile.kernel import Block, For, Kernel, Reduce, Store, iteration_count_hint
from compiler.ir.tile.loop_nest import map_nests, perfect_nest
from compiler.ir.tile.substitution import NameSupply
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.transforms.split import split_by_remainder, split_index


@register
@dataclass(frozen=True)
class Delinearize(TilePass):
    """Split a loop by the divisor of its index in addresses.

    parallel %i in 0..8 { reduce %k { x[%i//2, %i%2, %k] * w[%k] } }
    ->  parallel %i in 0..4 { parallel %r in 0..2 { reduce %k { x[%i, %r, %k] * w[%k] } } }

    parallel %i in 0..8 { reduce %t { x[(%i + 1)//2 + %t] * w[(%i + 1)%2 + 2*%t] } }
    ->  parallel %i in 0..4 { reduce %t { x[%i + %t] * w[2*%t + 1] } }
        parallel %i in 0..4 { reduce %t { x[%i + %t + 1] * w[2*%t] } }

    Around a contraction, any division of an index counts: views of its rows, groups of channels, transposed convolutions.  The
    latter become one convolution per remainder, without products with zeros.  The body is copied for each remainder, at most
    `max_copies` times and to `max_ops` operations in all, only if loops over the remainders would leave divisions.  Elements of
    the innermost loop stay neighbours in whole vectors.  Around a reduction of another kind the same is done where the next rewrite leaves divisions: sums of
    overlapping windows.

    parallel %i in 0..6 { store %x[%i%3, %i//3], %y[%i] }
    ->  parallel %i in 0..2 { parallel %r in 0..3 { store %x[%r, %i], %y[%i*3 + %r] } }

    Around other statements, divisions in memory offsets count, unless `contractions_only`: loads become contiguous, strided
    or broadcasts, and `reorder` and `vectorize` choose among the loops.  Loads that inner loops repeat for all their steps, as
    of the statistics of groups, do not count: lanes gather them once.
    """

    name = "delinearize"
    exact = True
    max_copies: int = 64
    max_ops: int = from_machine("max_code_ops")
    contractions_only: bool = False

    def run(self, ir: Kernel, context: Context) -> Kernel:
        fresh = NameSupply(ir)
        if any(is_contraction(without_guard(s)) for s in tile.walk(ir.body)):
            return ir.with_body(self.split_around_reduction(ir.body, fresh, context))
        if self.contractions_only:
            return ir

        def split(nest: Kernel) -> Block:
            body = self.split_offsets(nest, fresh, context)
            reads = tile.loads(tuple(s for s in tile.walk(body) if isinstance(s, Reduce)))
            is_divided = divisions(d for e in reads for d in e.index)
            return self.split_around_reduction(body, fresh, context) if is_divided else body

        return map_nests(ir, split)

    def split_offsets(self, ir: Kernel, fresh: NameSupply, context: Context) -> Block:
        """Split the loops of a kernel without contractions that is one nest."""
        skipped = set[str]()
        while True:
            table = Accesses(ir)
            repeated = repeated_loads(table, context.machine.lanes(32))
            offsets = divisions(table.types[a.buffer].offset(a.index) for a in table.all if a not in repeated)
            loops = (f for f in perfect_nest(ir.body) if f.range.var not in skipped)
            v, n = next(((f.range.var, n) for f in loops if (n := loop_divisor(f, offsets))), ("", 0))
            if not v:
                return ir.body
            skipped.add(v)
            split = without_divisions(ir.body, v, n, fresh(f"{v}.remainder"), fresh)
            if split is not None and context.may_apply(self, f"%{v} split by {n}"):
                skipped.clear()
                ir = ir.with_body(split)

    def split_around_reduction(self, body: Block, fresh: NameSupply, context: Context, copies: int = 1) -> Block:
        """Split the loops of the nest around a contraction, or around a reduction that reads divided indices.

        `copies` counts those that were made of the whole nest.
        """
        nest, lanes = perfect_nest(body), context.machine.lanes(32)
        indices = divisions(d for e in tile.loads(body) for d in e.index)
        has_rows = any(isinstance(s, For) for f in nest[-1:] for s in f.body)
        divisors = ((f, loop_divisor(f, indices, lanes if f is nest[-1] and not has_rows else 1)) for f in nest)
        loop, n = next(((f, n) for f, n in divisors if n), (None, 0))
        if loop is None:
            return body
        v = loop.range.var
        inner = fresh(f"{v}.remainder")
        whole = without_divisions(body, v, n, inner, fresh)
        parts = [whole] if whole else split_by_remainder(body, v, n, remainder_starts(body, v, n), inner)
        copies *= len(parts)
        if copies > min(self.max_copies, self.max_ops // code_size(body)):
            context.missed(self, f"%{v} keeps its divisions: {copies} copies of {code_size(body)} operations")
            return body
        if not context.may_apply(self, f"%{v} split by {n}"):
            return body
        return tuple(s for part in parts for s in self.split_around_reduction(part, fresh, context, copies))


def repeated_loads(table: Accesses, lanes: int) -> list[Access]:
    """Return the loads whose values serve `lanes` iterations of the kernel and more, by loops inside its nest that they do not vary over."""
    nest = {f.range.var for f in perfect_nest(table.kernel.body)}
    iterations = max((a.execution_count for a in table.all), default=0)

    def executions(a: Access) -> int:
        return iteration_count_hint(r for r in a.loops if r.var in nest or table.depends_on(a, r.var))

    return [a for a in table.all if not a.is_store and executions(a) * lanes <= iterations]


def divisions(indices: Iterable[Dim]) -> list[Dim]:
    """Return those of `indices` that divide something."""
    return [d for d in indices if any(isinstance(a, (FloorDiv, Mod)) for mono, _ in terms(d) for a in mono)]


def loop_divisor(loop: For, indices: Iterable[Dim], unit: int = 1) -> int:
    """Return the least divisor of the loop's index, of `%` or of `//` by a multiple of `unit`, if it divides all others; else 0."""
    r = loop.range
    if not loop.parallel or r.lo != 0 or variables(r.hi):
        return 0
    divisors = {n for d in indices for kind, n in index_divisors(d, r.var) if kind is Mod or n % unit == 0}
    least = min(divisors, default=0)
    return 0 if any(n % least for n in divisors) else least


def index_divisors(d: Dim, v: str) -> Iterator[tuple[type[Atom], int]]:
    """Yield the operators and constants by which `d` divides an expression with coefficient 1 of `v`."""
    for atom in (atom for mono, _ in terms(d) for atom in mono):
        if isinstance(atom, (FloorDiv, Mod)):
            if isinstance(atom.den, int) and coefficient(atom.num, v) == 1:
                yield type(atom), atom.den
            yield from index_divisors(atom.num, v)


def remainder_starts(body: Block, v: str, n: int) -> Iterable[int]:
    """Return the remainders of `v` by `n` at which a division of its index reaches the next multiple; all if that is unknown."""
    if is_value(body, v):
        return range(n)
    starts = {k for d in memory_indices(body) for k in wrapping_remainders(d, v, n)}
    return range(n) if None in starts else {k for k in starts if k is not None}


def is_value(body: Block, v: str) -> bool:
    """Return True if an expression has index `v` as a value, as guards have."""
    exprs = (e for s in tile.walk(body) for value in tile.stmt_exprs(s) for e in value.subexprs)
    return any(isinstance(e, IndexValue) and v in variables(e.index) for e in exprs)


def memory_indices(body: Block) -> Iterator[Dim]:
    """Yield the indices of all loads and stores."""
    yield from (d for e in tile.loads(body) for d in e.index)
    yield from (d for s in tile.walk(body) if isinstance(s, Store) for d in s.index)


def wrapping_remainders(d: Dim, v: str, n: int) -> Iterator[int | None]:
    """Yield the remainders of `v` by `n` from which its divisions in `d` count one more; None for a division of another kind."""
    for atom in (atom for mono, _ in terms(d) for atom in mono):
        if isinstance(atom, Min) and v in variables(atom.lhs + atom.rhs):
            yield None
        if isinstance(atom, (FloorDiv, Mod)):
            yield from wrapping_remainders(atom.num, v, n)
            if any(Var(v) in mono for mono, _ in terms(atom.num)):
                shift = atom.num - var(v)
                yield -shift % n if isinstance(shift, int) and atom.den == n else None


def without_divisions(body: Block, v: str, n: int, inner: str, fresh: NameSupply) -> Block | None:
    """Split the index of loop `v` by `n`, and the remainder again while it is divided.

    None if divisions of a remainder are left or a guard depends on it.
    """
    try:
        split = split_index(body, v, n, inner)
    except TransformError:
        return None
    indices = [d for e in tile.loads(split) for d in e.index]
    if is_value(split, inner):
        return None
    if not any(True for d in indices for _ in index_divisors(d, inner)):
        return split
    divisor = loop_divisor(next(f for f in perfect_nest(split) if f.range.var == inner), indices)
    return without_divisions(split, inner, divisor, fresh(f"{v}.remainder"), fresh) if 0 < divisor < n else None
