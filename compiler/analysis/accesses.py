"""Where a kernel reads and writes memory, seen from its loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from compiler.ir import scalar
from compiler.ir.scalar import Expr, PrimitiveCall
from compiler.ir.symbolic.affine import coefficient, stride
from compiler.ir.symbolic.index_atoms import FloorDiv, Mod
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, interval, product, size_hint, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Local, Range, Reduce, Stmt, Store, dim_hint, symbolic_hint
from compiler.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class Access:
    """One load or store and the loops around it, outermost first."""

    buffer: str
    index: tuple[Dim, ...]
    loops: tuple[Range, ...]
    stmt: Stmt
    is_store: bool
    is_masked: bool = False

    @cached_property
    def execution_count(self) -> int:
        """How often the scalar program performs it, loops of unknown length counted once."""
        return tile.iteration_count_hint(self.loops)

    @cached_property
    def loop_vars(self) -> frozenset[str]:
        """The variables of the loops around it."""
        return frozenset(r.var for r in self.loops)


@dataclass(frozen=True, eq=False)
class AddressFacts:
    """Where in a buffer of some type accesses are, and by how much they move along a loop, as far as that was asked."""

    offsets: dict[Access, Dim] = field(default_factory=dict)
    strides: dict[tuple[Access, str], int | None] = field(default_factory=dict)
    has_constant_strides: dict[str, bool] = field(default_factory=dict)


class Accesses:
    """Every access of a kernel, with what is needed to judge its stride along a loop."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.types: dict[str, TensorType] = {p.name: p.type for p in kernel.params}
        self.roles = {p.name: p.role for p in kernel.params}
        self.loops_by_name: dict[str, frozenset[str]] = {}
        self.local_scopes: dict[str, frozenset[str]] = {}  # loops around the declaration of a local buffer
        self.arithmetic: list[
            tuple[tuple[Range, ...], int]
        ] = []  # operations of a block or a sum, and the loops around them
        self._facts_by_type: dict[tuple[str, TensorType], AddressFacts] = {}  # of every type tried
        self._facts_by_buffer: dict[str, AddressFacts] = {}  # of the types that buffers have
        self._strides: dict[tuple[Dim, str], int | None] = {}
        self._reductions: dict[str, tuple[Reduce, ...]] = {}
        self.all: list[Access] = []
        self._visit(kernel.body, ())

    def with_param_types(self, types: Sequence[TensorType]) -> Accesses:
        """The same accesses where the kernel's parameters have other types of the same shapes."""
        assert self.accesses_by_buffer is not None  # found once, for all types
        assert self.parallel_loops is not None
        new = copy(self)
        new.types = {**self.types, **{p.name: t for p, t in zip(self.kernel.params, types, strict=True)}}
        new._facts_by_buffer = {}
        return new

    def _visit(self, body: Block, loops: tuple[Range, ...]) -> None:
        calls = 0
        for stmt in body:
            inner = (*loops, *own) if (own := tile.stmt_ranges(stmt)) else loops
            for r in own:
                bounds = (self.loops_by_name.get(n, frozenset()) for n in variables(r.lo) | variables(r.hi))
                self.loops_by_name[r.var] = frozenset({r.var}).union(*bounds)
            if isinstance(stmt, Local):
                self.types[stmt.buffer], self.roles[stmt.buffer] = stmt.type, "local"
                self.local_scopes[stmt.buffer] = frozenset(r.var for r in loops)
            if within := tile.stmt_body(stmt):
                self._visit(within, inner)
            for value in tile.stmt_exprs(stmt):
                if isinstance(stmt, Reduce):
                    self.arithmetic.append((inner, len(value.calls) + 1))
                else:
                    calls += len(value.calls)
                self.all += [Access(e.buffer, e.index, inner, stmt, False, e.mask is not None) for e in value.loads]
            if isinstance(stmt, Store):
                self.all.append(Access(stmt.buffer, stmt.index, inner, stmt, True))
            if isinstance(stmt, Let):
                self.loops_by_name[stmt.name] = self.varying_loops(stmt.value)
            if isinstance(stmt, Reduce):
                self.loops_by_name[stmt.name] = self.varying_loops(stmt.value) - {r.var for r in stmt.ranges}
        self.arithmetic += [(loops, calls)] if calls else []

    def varying_loops(self, e: Expr) -> frozenset[str]:
        """The loops that a value varies over."""
        return frozenset().union(*(self.loops_by_name[n] for n in e.used_names if n in self.loops_by_name))

    def stride(self, a: Access, v: str) -> int | None:
        """Elements that are likely to lie between the places of successive `v`; None where they are irregular."""
        if v in self.local_scopes.get(a.buffer, ()):
            return 1  # one copy for each `v`, side by side
        steps = self._address_facts(a).strides
        if (a, v) not in steps:
            key = (self.offset(a), v)
            if key not in self._strides:
                self._strides[key] = self._compute_stride(*key)
            steps[a, v] = self._strides[key]
        return steps[a, v]

    def _compute_stride(self, offset: Dim, v: str) -> int | None:
        total = 0
        for name in variables(offset):
            if name == v:
                c = coefficient(offset, v)
                if c is None:
                    return None
                total += c
            elif v in self.loops_by_name.get(name, frozenset()):
                return None
        return total

    def offset(self, a: Access) -> Dim:
        """Elements that are likely to lie between the start of the buffer and the place."""
        offsets = self._address_facts(a).offsets
        if a not in offsets:
            offsets[a] = size_hint(self.types[a.buffer].offset(a.index))
        return offsets[a]

    def _address_facts(self, a: Access) -> AddressFacts:
        """What is known of places in the buffer that `a` touches, as long as it has its type."""
        if a.buffer not in self._facts_by_buffer:
            self._facts_by_buffer[a.buffer] = self._facts_by_type.setdefault(
                (a.buffer, self.types[a.buffer]), AddressFacts()
            )
        return self._facts_by_buffer[a.buffer]

    def depends_on(self, a: Access, v: str) -> bool:
        """Whether the place depends on loop `v` at all."""
        if v in self.local_scopes.get(a.buffer, ()):
            return True
        return any(v in self.loops_by_name.get(n, frozenset({n})) for d in a.index for n in variables(d))

    @cached_property
    def access_groups(self) -> list[tuple[Access, int]]:
        """One access for all those that differ by a constant only, and how many they are."""
        found: dict[object, list[Access]] = {}
        for a in self.all:
            moving = tuple(without_constant(d) for d in a.index)
            found.setdefault((a.buffer, a.is_store, moving, a.loops), []).append(a)
        return [(same[0], len(same)) for same in found.values()]

    @cached_property
    def parallel_loops(self) -> frozenset[str]:
        """The loops whose steps may be taken together."""
        return frozenset(v for v in self.loops if self.is_parallel(v))

    def reductions(self, v: str) -> tuple[Reduce, ...]:
        """The reductions inside loop `v`, its own among them."""
        if v not in self._reductions:
            self._reductions[v] = tuple(s for s in tile.walk((self.loops[v][1],)) if isinstance(s, Reduce))
        return self._reductions[v]

    def has_constant_strides(self, v: str) -> bool:
        """Whether every place moves by equal steps along loop `v`."""
        return all(self._has_constant_strides(same, v) for same in self.accesses_by_buffer.values())

    def _has_constant_strides(self, same: Sequence[Access], v: str) -> bool:
        """The same for the accesses of one buffer."""
        known = self._address_facts(same[0]).has_constant_strides
        if v not in known:
            known[v] = all(self.stride(a, v) is not None for a in same if v in a.loop_vars)
        return known[v]

    @cached_property
    def accesses_by_buffer(self) -> dict[str, list[Access]]:
        """The accesses of each buffer, one of those that differ by a constant only."""
        found: dict[str, list[Access]] = {}
        for a, _ in self.access_groups:
            found.setdefault(a.buffer, []).append(a)
        return found

    def is_parallel(self, v: str) -> bool:
        """Whether steps of loop `v` may be taken together: each reads and writes elements of its own of what any of them writes."""
        _, stmt, _ = self.loops[v]
        if any(v in variables(x.lo) | variables(x.hi) for x, _, _ in self.loops.values()):
            return False  # a loop inside starts where this one says
        if isinstance(stmt, For) and stmt.parallel:
            return True
        inside = [a for a in self.all if v in a.loop_vars and v not in self.local_scopes.get(a.buffer, ())]
        written = {a.buffer for a in inside if a.is_store}
        places = {name: {a.index for a in inside if a.buffer == name} for name in written}
        return all(len(found) == 1 and self._is_injective(next(iter(found)), v) for found in places.values())

    def local_bytes(self, v: str) -> int:
        """Bytes of local buffers that each step of loop `v` has for itself."""
        return sum(dim_hint(self.types[name].nbytes) for name, loops in self.local_scopes.items() if v in loops)

    @staticmethod
    def _is_injective(index: tuple[Dim, ...], v: str) -> bool:
        """Whether steps of `v` lead to different places, whatever else the index follows."""
        found = (stride(d, v) for d in index)
        return any(s if isinstance(s, int) else s and (interval(s, {}) or (0, 0))[0] > 0 for s in found)

    @cached_property
    def loop_bounds(self) -> dict[str, tuple[int, int]]:
        """The lowest and highest value of each loop variable, where they are known."""
        found: dict[str, tuple[int, int]] = {}
        for v, (r, _, _) in self.loops.items():
            low, high = interval(r.lo, found), interval(r.hi, found)
            if low and high:
                found[v] = low[0], high[1] - 1
        return found

    @cached_property
    def loops(self) -> dict[str, tuple[Range, Stmt, tuple[Range, ...]]]:
        """Each loop variable's range, statement, and the loops around it."""
        found: dict[str, tuple[Range, Stmt, tuple[Range, ...]]] = {}

        def visit(body: Block, around: tuple[Range, ...]) -> None:
            for stmt in body:
                rs = tile.stmt_ranges(stmt)
                for k, r in enumerate(rs):
                    found[r.var] = (r, stmt, (*around, *rs[:k]))
                visit(tile.stmt_body(stmt), (*around, *rs))

        visit(self.kernel.body, ())
        return found


def buffer_bytes(accesses: Accesses, a: Access) -> int:
    """Bytes of the buffer that is read."""
    return dim_hint(accesses.types[a.buffer].nbytes, 0)


def without_constant(d: Dim) -> Dim:
    """`d` less its constant term."""
    return IndexExpr(tuple(t for t in d.terms if t[0])) if isinstance(d, IndexExpr) else 0


def is_contraction(stmt: Stmt) -> bool:
    """A reduction that adds products."""
    return (
        isinstance(stmt, Reduce)
        and stmt.op == "add"
        and isinstance(stmt.value, PrimitiveCall)
        and stmt.value.primitive == "mul"
    )


MASKED_LOAD_COST = 8
"""Memory operations that a load under a guard costs."""

DIVISION_COST = 8
"""Multiply-adds that a division in an address costs."""


def estimated_ops(kernel: Kernel) -> int:
    """Primitive operations and memory accesses that `kernel` is likely to perform, as the cost model prices them."""
    total = symbolic_ops(kernel, dim_hint)
    assert isinstance(total, int)
    return total


def symbolic_ops(kernel: Kernel, trip_count: Callable[[Dim], Dim] = symbolic_hint) -> Dim:
    """The same for every size; `length` says how many steps a loop of some extent counts for."""
    types = {p.name: p.type for p in kernel.params}
    types |= {s.buffer: s.type for s in tile.walk(kernel.body) if isinstance(s, Local)}

    def price(value: Expr) -> int:
        masked = sum(e.mask is not None for e in value.loads)
        divided = sum(count_divisions(types[e.buffer].offset(e.index)) for e in value.loads)
        memory = len(value.loads) + (MASKED_LOAD_COST - 1) * masked + DIVISION_COST * divided
        return memory + sum(scalar.PRIMITIVES[e.primitive].cost for e in value.calls)

    def total(body: Block, repeat: Dim) -> Dim:
        sum_: Dim = 0
        once = 0  # of the statements that are no loops
        for stmt in body:
            own = sum(map(price, tile.stmt_exprs(stmt))) + isinstance(stmt, Reduce)
            if isinstance(stmt, Store):
                own += 1 + DIVISION_COST * count_divisions(types[stmt.buffer].offset(stmt.index))
            if ranges := tile.stmt_ranges(stmt):
                times = repeat * product(trip_count(r.extent) for r in ranges)
                sum_ += times * own + total(tile.stmt_body(stmt), times)
            else:
                once += own
        return sum_ + repeat * once

    return total(kernel.body, 1)


@lru_cache(maxsize=4096)
def count_divisions(d: Dim) -> int:
    """Different divisions and remainders left in an index; those of sizes are done once."""
    atoms = {a for mono, _ in d.terms for a in mono} if isinstance(d, IndexExpr) else set()
    return sum(isinstance(a, (FloorDiv, Mod)) and bool(variables(a.num)) for a in atoms)


def perfect_nest(body: Block) -> list[For]:
    """The loops of a perfect nest that starts `body`, outermost first."""
    nest: list[For] = []
    while len(body) == 1 and isinstance(body[0], For):
        nest.append(body[0])
        body = body[0].body
    return nest


def wrap_in_nest(nest: Sequence[For], body: Block) -> Block:
    """`body` in the loops of `nest`, in place of what they hold."""
    for f in reversed(nest):
        body = (replace(f, body=body),)
    return body
