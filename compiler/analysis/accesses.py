"""Memory accesses of a kernel: their strides and dependences along its loops, and operation counts."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import combinations_with_replacement, dropwhile

from compiler.ir.scalar import Expr
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_atoms import FloorDiv, Mod
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, interval, size_hint, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.dependence import is_confined
from compiler.ir.tile.kernel import Block, Kernel, Let, Local, Range, Reduce, Stmt, Store, dim_hint
from compiler.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class Access:
    """One load or store and the loops around it, outermost first; `is_masked` if a load has a mask.

    `reduction` is the one in whose body a `stmt` that binds a value loads.  An asynchronous copy counts as a load and a store of the first elements of its boxes.
    """

    buffer: str
    index: tuple[Dim, ...]
    loops: tuple[Range, ...]
    stmt: Stmt
    is_store: bool
    is_masked: bool = False
    reduction: Reduce | None = None

    @property
    def consumer(self) -> Stmt:
        """The statement itself, or the reduction whose steps use the value that it binds."""
        return self.reduction or self.stmt

    @cached_property
    def execution_count(self) -> int:
        """Number of executions in the scalar program under the size hints; loops of unknown extent count once."""
        return tile.iteration_count_hint(self.loops)

    @cached_property
    def loop_vars(self) -> frozenset[str]:
        """The variables of `loops`."""
        return frozenset(r.var for r in self.loops)


@dataclass(frozen=True, eq=False)
class AddressFacts:
    """Memoized offsets and strides, in elements, of the accesses to one buffer of one type."""

    offsets: dict[Access, Dim] = field(default_factory=dict)
    strides: dict[tuple[Access, str], int | None] = field(default_factory=dict)
    has_constant_strides: dict[str, bool] = field(default_factory=dict)


class Accesses:
    """Every access of a kernel, with the types, roles and loops that determine its strides."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.types: dict[str, TensorType] = {p.name: p.type for p in kernel.params}
        self.roles = {p.name: p.role for p in kernel.params}
        self.loops_by_name: dict[str, frozenset[str]] = {}
        self.local_scopes: dict[str, frozenset[str]] = {}  # loops around the declaration of a local buffer
        self.arithmetic: list[
            tuple[tuple[Range, ...], int]
        ] = []  # loops in which values are computed, and the operations
        self._facts_by_type: dict[tuple[str, TensorType], AddressFacts] = {}  # for every type tried
        self._facts_by_buffer: dict[str, AddressFacts] = {}  # for the current types
        self._strides: dict[tuple[Dim, str], int | None] = {}
        self._reductions: dict[str, tuple[Reduce, ...]] = {}
        self.all: list[Access] = []
        self._visit(kernel.body, ())

    def with_param_types(self, types: Sequence[TensorType]) -> Accesses:
        """Return the same accesses for other parameter types of the same shapes, in the order of the parameters."""
        assert self.accesses_by_buffer is not None  # computed once, for all types
        assert self.parallel_loops is not None
        assert self.operation_counts is not None
        new = copy(self)
        new.types = {**self.types, **{p.name: t for p, t in zip(self.kernel.params, types, strict=True)}}
        new._facts_by_buffer = {}
        return new

    def _visit(self, body: Block, loops: tuple[Range, ...], around: Stmt | None = None) -> None:
        calls = 0
        for stmt in body:
            inner = (*loops, *own) if (own := tile.stmt_ranges(stmt)) else loops
            for r in own:
                bounds = (self.loops_by_name.get(n, frozenset()) for n in variables(r.lo) | variables(r.hi))
                self.loops_by_name[r.var] = frozenset({r.var}).union(*bounds)
            if isinstance(stmt, Local):
                self.types[stmt.buffer], self.roles[stmt.buffer] = stmt.type, "local"
                self.local_scopes[stmt.buffer] = frozenset(r.var for r in loops)
            if nested := tile.stmt_body(stmt):
                self._visit(nested, inner, stmt)
            for value in tile.stmt_exprs(stmt):
                if isinstance(stmt, Reduce):
                    self.arithmetic.append((inner, len(value.calls) + 1))
                elif isinstance(stmt, Let):
                    self.arithmetic.append((self.computing_loops(value, inner), len(value.calls)))
                else:
                    calls += len(value.calls)
                reduction = around if isinstance(around, Reduce) and isinstance(stmt, Let) else None
                self.all += [
                    Access(e.buffer, e.index, inner, stmt, False, e.mask is not None, reduction) for e in value.loads
                ]
            if isinstance(stmt, Store):
                self.all.append(Access(stmt.buffer, stmt.index, inner, stmt, True))
            if isinstance(stmt, tile.AsyncCopy):
                ends = zip(stmt.boxes, (False, True), strict=True)
                self.all += [Access(name, index, inner, stmt, is_store) for (name, index, _), is_store in ends]
            if isinstance(stmt, Let):
                self.loops_by_name[stmt.name] = self.varying_loops(stmt.value)
            if isinstance(stmt, Reduce):
                self.loops_by_name[stmt.name] = self.varying_loops(stmt.value) - {r.var for r in stmt.ranges}
        self.arithmetic += [(loops, calls)] if calls else []

    def computing_loops(self, e: Expr, loops: tuple[Range, ...]) -> tuple[Range, ...]:
        """Return `loops` without the innermost ones that `e` does not vary over: it is computed before those."""
        varying = self.varying_loops(e)
        return loops[: max((k + 1 for k, r in enumerate(loops) if r.var in varying), default=0)]

    def loads_of(self, stmt: Stmt) -> list[Access]:
        """Return the loads of a statement itself, for a reduction with those of the values that its body binds."""
        return [a for a in self.all if a.consumer is stmt and not a.is_store]

    def varying_loops(self, e: Expr) -> frozenset[str]:
        """Return the loops over which the value of `e` varies."""
        return frozenset().union(*(self.loops_by_name[n] for n in e.used_names if n in self.loops_by_name))

    def stride(self, a: Access, v: str) -> int | None:
        """Return the stride of `a` along loop `v` in elements under the size hints, or None if it is not affine."""
        if v in self.local_scopes.get(a.buffer, ()):
            return 1  # one copy per iteration, contiguous
        strides = self._address_facts(a).strides
        if (a, v) not in strides:
            key = (self.offset(a), v)
            if key not in self._strides:
                self._strides[key] = self._compute_stride(*key)
            strides[a, v] = self._strides[key]
        return strides[a, v]

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
        """Return the offset of `a` from the start of its buffer in elements, under the size hints."""
        offsets = self._address_facts(a).offsets
        if a not in offsets:
            offsets[a] = size_hint(self.types[a.buffer].offset(a.index))
        return offsets[a]

    def _address_facts(self, a: Access) -> AddressFacts:
        """Return the memoized facts about the buffer of `a` with its current type."""
        if a.buffer not in self._facts_by_buffer:
            key = a.buffer, self.types[a.buffer]
            self._facts_by_buffer[a.buffer] = self._facts_by_type.setdefault(key, AddressFacts())
        return self._facts_by_buffer[a.buffer]

    def depends_on(self, a: Access, v: str) -> bool:
        """Return True if the address of `a` depends on loop `v`."""
        if v in self.local_scopes.get(a.buffer, ()):
            return True
        return any(v in self.loops_by_name.get(n, frozenset({n})) for d in a.index for n in variables(d))

    @cached_property
    def operation_counts(self) -> list[tuple[frozenset[str], int, int]]:
        """Values as in `arithmetic`: the variables of their loops, how often they are computed, and the operations of each time."""
        return [(frozenset(r.var for r in rs), tile.iteration_count_hint(rs), calls) for rs, calls in self.arithmetic]

    @cached_property
    def access_groups(self) -> list[tuple[Access, int]]:
        """Accesses whose indices differ only by constants, as one representative and their number."""
        groups: dict[object, list[Access]] = {}
        for a in self.all:
            index = tuple(without_constant(d) for d in a.index)
            groups.setdefault((a.buffer, a.is_store, index, a.loops), []).append(a)
        return [(group[0], len(group)) for group in groups.values()]

    @cached_property
    def parallel_loops(self) -> frozenset[str]:
        """The loops whose iterations are independent."""
        return frozenset(v for v in self.loops if self.is_parallel(v))

    def reductions(self, v: str) -> tuple[Reduce, ...]:
        """Return the reductions inside loop `v`, including the one that `v` is a range of."""
        if v not in self._reductions:
            self._reductions[v] = tuple(s for s in tile.walk((self.loops[v][1],)) if isinstance(s, Reduce))
        return self._reductions[v]

    def has_constant_strides(self, v: str) -> bool:
        """Return True if every access inside loop `v` has a constant stride along it."""
        return all(self._has_constant_strides(group, v) for group in self.accesses_by_buffer.values())

    def _has_constant_strides(self, accesses: Sequence[Access], v: str) -> bool:
        """Return True if all of `accesses`, which are to one buffer, have constant strides along loop `v`."""
        memo = self._address_facts(accesses[0]).has_constant_strides
        if v not in memo:
            memo[v] = all(self.stride(a, v) is not None for a in accesses if v in a.loop_vars)
        return memo[v]

    @cached_property
    def accesses_by_buffer(self) -> dict[str, list[Access]]:
        """The representatives of `access_groups` by buffer."""
        accesses: dict[str, list[Access]] = {}
        for a, _ in self.access_groups:
            accesses.setdefault(a.buffer, []).append(a)
        return accesses

    def is_parallel(self, v: str) -> bool:
        """Return True if the iterations of loop `v` are independent.

        Accesses to a buffer that is written must touch one element only in the same iteration, and nothing is copied.
        """
        if v in self._variables_of_bounds:
            return False  # the bounds of an inner loop depend on it
        if tile.is_parallel_loop(self.loops[v][1]):
            return True
        inside = [a for a in self._accesses_in_loops[v] if v not in self.local_scopes.get(a.buffer, ())]
        if any(isinstance(a.stmt, tile.AsyncCopy) for a in inside):
            return False
        paths = (dropwhile(lambda r: r.var != v, a.loops) for a in self._accesses_in_loops[v])
        inside_loops = {v, *(r.var for path in paths for r in path)}
        inner = inside_loops | {n for n, loops in self.loops_by_name.items() if loops & inside_loops}
        bounds = {n: self.loop_bounds.get(n) for n in inner}
        for name in {a.buffer for a in inside if a.is_store}:
            own = {a.index for a in inside if a.buffer == name}
            if not all(is_confined(a, b, v, bounds) for a, b in combinations_with_replacement(own, 2)):
                return False
        return True

    @cached_property
    def _variables_of_bounds(self) -> frozenset[str]:
        """The variables on which bounds of loops depend."""
        return frozenset().union(*(variables(r.lo) | variables(r.hi) for r, _, _ in self.loops.values()))

    @cached_property
    def _accesses_in_loops(self) -> dict[str, list[Access]]:
        """The accesses inside each loop."""
        accesses: dict[str, list[Access]] = {v: [] for v in self.loops}
        for a in self.all:
            for r in a.loops:
                accesses[r.var].append(a)
        return accesses

    def local_bytes(self, v: str) -> int:
        """Return the bytes of local buffers that are private to an iteration of loop `v`."""
        return sum(dim_hint(self.types[name].nbytes) for name, loops in self.local_scopes.items() if v in loops)

    @cached_property
    def loop_bounds(self) -> dict[str, tuple[int, int]]:
        """Lowest and highest value of each loop variable that has constant bounds."""
        bounds: dict[str, tuple[int, int]] = {}
        for v, (r, _, _) in self.loops.items():
            low, high = interval(r.lo, bounds), interval(r.hi, bounds)
            if low and high:
                bounds[v] = low[0], high[1] - 1
        return bounds

    @cached_property
    def loops(self) -> dict[str, tuple[Range, Stmt, tuple[Range, ...]]]:
        """Range and statement of each loop variable, and the loops around it."""
        loops: dict[str, tuple[Range, Stmt, tuple[Range, ...]]] = {}

        def visit(body: Block, around: tuple[Range, ...]) -> None:
            for stmt in body:
                rs = tile.stmt_ranges(stmt)
                for k, r in enumerate(rs):
                    loops[r.var] = (r, stmt, (*around, *rs[:k]))
                visit(tile.stmt_body(stmt), (*around, *rs))

        visit(self.kernel.body, ())
        return loops


def buffer_bytes(accesses: Accesses, a: Access) -> int:
    """Return the bytes of the buffer of `a` under the size hints; 0 if unknown."""
    return dim_hint(accesses.types[a.buffer].nbytes, 0)


def without_constant(d: Dim) -> Dim:
    """Return `d` without its constant term."""
    return IndexExpr(tuple(t for t in d.terms if t[0])) if isinstance(d, IndexExpr) else 0


@lru_cache(maxsize=4096)
def count_divisions(d: Dim) -> int:
    """Return the number of distinct divisions and remainders of loop variables in an index."""
    atoms = {a for mono, _ in d.terms for a in mono} if isinstance(d, IndexExpr) else set()
    return sum(isinstance(a, (FloorDiv, Mod)) and bool(variables(a.num)) for a in atoms)
