"""The rules of Tile IR.  Each is a function that yields what is wrong at one statement; `RULES` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from compiler.errors import VerifyError
from compiler.ir import scalar
from compiler.ir.graph.structure import IDENTITIES
from compiler.ir.scalar import PRIMITIVES, Expr, IndexValue, Load, PrimitiveCall, Ref
from compiler.ir.symbolic.index_atoms import Var
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, dynamic_sizes, interval, var, variables
from compiler.ir.tile.dynamic_sizes import kernel_dynamic_sizes
from compiler.ir.tile.kernel import (
    ROLES,
    Block,
    BoundsCheck,
    For,
    Kernel,
    Let,
    Local,
    Prefetch,
    Range,
    Reduce,
    Stmt,
    Store,
    access_indices,
    stmt_body,
    stmt_ranges,
    walk,
)
from compiler.ir.types import DType, TensorType, boolean, i64


@dataclass(frozen=True)
class VisibleBuffer:
    """A buffer in scope: its type, its role ("local" for those a kernel declares), how many loops are around its declaration."""

    type: TensorType
    role: str
    depth: int = 0


@dataclass(frozen=True)
class VerifierScope:
    """What is visible at a statement: names with their types and the loop variables they vary with, buffers, loops around."""

    names: Mapping[str, DType] = field(default_factory=dict)
    loop_deps: Mapping[str, frozenset[str]] = field(default_factory=dict)
    buffers: Mapping[str, VisibleBuffer] = field(default_factory=dict)
    enclosing_loops: tuple[tuple[Range, For | Reduce], ...] = ()

    def is_defined(self, name: str) -> bool:
        return name in self.names or name in self.buffers

    def bind(self, name: str, dtype: DType, loop_deps: frozenset[str]) -> VerifierScope:
        return replace(self, names={**self.names, name: dtype}, loop_deps={**self.loop_deps, name: loop_deps})

    def declare(self, name: str, buffer: VisibleBuffer) -> VerifierScope:
        return replace(self, buffers={**self.buffers, name: buffer})

    def enter(self, stmt: For | Reduce) -> VerifierScope:
        inner = self
        for r in stmt_ranges(stmt):
            outer = inner.loop_variables(variables(r.lo) | variables(r.hi))
            inner = replace(
                inner.bind(r.var, i64, outer | {r.var}), enclosing_loops=(*inner.enclosing_loops, (r, stmt))
            )
        return inner

    def loop_variables(self, names: frozenset[str]) -> frozenset[str]:
        """The loop variables that decide the values of `names`."""
        return frozenset().union(*(self.loop_deps.get(n, frozenset()) for n in names))

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """Lowest and highest value of each loop variable; empty where some loop runs no step."""
        found: dict[str, tuple[int, int]] = {}
        for r, _ in self.enclosing_loops:
            low, high = interval(r.lo, found), interval(r.hi, found)
            if low and high and not dynamic_sizes(r.lo) and not dynamic_sizes(r.hi):
                found[r.var] = low[0], high[1] - 1
        return found if all(low <= high for low, high in found.values()) else {}

    @property
    def symbolic_bound_loops(self) -> frozenset[str]:
        """The loop variables whose bounds follow other loops."""
        return frozenset(
            r.var for r, _ in self.enclosing_loops if isinstance(r.lo, IndexExpr) or isinstance(r.hi, IndexExpr)
        )


@dataclass(frozen=True)
class ScopedStmt:
    """A statement, what is visible before it, and what its expression sees (for a reduction: the end of its body)."""

    stmt: Stmt
    scope: VerifierScope
    value_scope: VerifierScope

    @property
    def value(self) -> Expr | None:
        return self.stmt.value if isinstance(self.stmt, (Let, Store, Reduce)) else None

    @cached_property
    def exprs(self) -> tuple[Expr, ...]:
        return () if self.value is None else self.value.subexprs

    def accesses(self) -> Iterator[tuple[str, tuple[Dim, ...], bool]]:
        """Every buffer element read, written or prefetched: buffer, index, whether it may lie outside."""
        if isinstance(self.stmt, Store):
            yield self.stmt.buffer, self.stmt.index, False
        if isinstance(self.stmt, Prefetch):  # a hint, which may point past the end
            yield self.stmt.buffer, self.stmt.index, True
        yield from ((e.buffer, e.index, e.mask is not None) for e in self.exprs if isinstance(e, Load))


def verify_kernel(kernel: Kernel) -> None:
    """VerifyError listing every broken rule with the statement that breaks it."""
    problems = [*_check_params(kernel), *_check_size_names(kernel), *_check_scratch(kernel)]
    for site in scoped_stmts(kernel):
        problems += [f"[{r.__name__}] {describe(site.stmt)}: {problem}" for r in RULES for problem in r(site)]
    if problems:
        raise VerifyError(f"@{kernel.name} is not a valid kernel:\n  " + "\n  ".join(dict.fromkeys(problems)))


def scoped_stmts(kernel: Kernel) -> Iterator[ScopedStmt]:
    """Every statement with what is visible there, in program order."""
    scope = VerifierScope()
    for p in kernel.params:
        scope = scope.declare(p.name, VisibleBuffer(p.type, p.role))
    yield from _scoped_stmts(kernel.body, scope, [])


def _scoped_stmts(body: Block, scope: VerifierScope, end_scopes: list[VerifierScope]) -> Iterator[ScopedStmt]:
    """The statements of a block; what is visible at its end is appended to `end`."""
    for stmt in body:
        inner = scope
        if isinstance(stmt, (For, Reduce)):
            last: list[VerifierScope] = []
            inside = list(_scoped_stmts(stmt_body(stmt), scope.enter(stmt), last))
            inner = last[0]
            yield ScopedStmt(stmt, scope, inner)
            yield from inside
        else:
            yield ScopedStmt(stmt, scope, inner)
        if isinstance(stmt, Let):
            scope = scope.bind(stmt.name, stmt.value.dtype, _value_loop_deps(stmt.value, scope))
        elif isinstance(stmt, Reduce):
            own = frozenset(r.var for r in stmt.ranges)
            scope = scope.bind(stmt.name, stmt.value.dtype, _value_loop_deps(stmt.value, inner) - own)
        elif isinstance(stmt, Local):
            scope = scope.declare(stmt.buffer, VisibleBuffer(stmt.type, "local", len(scope.enclosing_loops)))
    end_scopes.append(scope)


def _value_loop_deps(value: Expr, scope: VerifierScope) -> frozenset[str]:
    return scope.loop_variables(value.used_names)


def describe(stmt: Stmt) -> str:
    """A statement in a few words."""
    match stmt:
        case Let(name):
            return f"%{name} = ..."
        case Store(buffer, index):
            return f"store to %{buffer}[{', '.join(map(str, index))}]"
        case Local(buffer):
            return f"local %{buffer}"
        case BoundsCheck(name):
            return f"check %{name}"
        case Prefetch(buffer, index):
            return f"prefetch of %{buffer}[{', '.join(map(str, index))}]"
        case For(r):
            return f"for %{r.var}"
        case Reduce(name, op):
            return f"%{name} = reduce {op}"


def _check_params(kernel: Kernel) -> Iterator[str]:
    names = [p.name for p in kernel.params]
    for p in kernel.params:
        if p.role not in ROLES:
            yield f"parameter %{p.name} is {p.role}, not {', '.join(ROLES[:-1])} or {ROLES[-1]}"
        if names.count(p.name) > 1:
            yield f"two parameters are called %{p.name}"
        if any(map(variables, p.type.shape)):
            yield f"parameter %{p.name}: {p.type} has dimensions that are no declared sizes"
    if variables(kernel.parallel_condition):
        yield f"it is parallel if {kernel.parallel_condition} is not negative, which are no declared sizes"


def _check_size_names(kernel: Kernel) -> Iterator[str]:
    """No loop and no value is called like a size: an index would mean both."""
    sizes = {s.name for s in kernel_dynamic_sizes(kernel)}
    for stmt in walk(kernel.body):
        bound = [r.var for r in stmt_ranges(stmt)] + ([stmt.name] if isinstance(stmt, (Let, Reduce)) else [])
        yield from (f"%{name} is called like a size: {describe(stmt)}" for name in bound if name in sizes)


def _check_scratch(kernel: Kernel) -> Iterator[str]:
    """Each step of an outermost parallel loop has a part of its own in a buffer for work: all its places follow that loop."""
    for p in (p for p in kernel.params if p.role == "scratch"):
        for s in (s for s in kernel.body if isinstance(s, For) and s.parallel):
            indices = access_indices((s,), p.name)
            if indices and not any(set(along) == {var(s.range.var)} for along in zip(*indices, strict=True)):
                yield f"%{p.name} is for work, but no part of it is one step's alone: {describe(s)}"


def names_are_unique(site: ScopedStmt) -> Iterator[str]:
    """No name hides one in scope."""
    stmt = site.stmt
    new = [r.var for r in stmt_ranges(stmt)]
    new += [stmt.name] if isinstance(stmt, (Let, Reduce)) else [stmt.buffer] if isinstance(stmt, Local) else []
    for k, name in enumerate(new):
        if site.scope.is_defined(name) or name in new[:k]:
            yield f"%{name} is bound already"


def names_are_bound(site: ScopedStmt) -> Iterator[str]:
    """A value is read after it is bound, as the type it has; an index is made of integers."""
    for e in site.exprs:
        if isinstance(e, Ref):
            known = site.value_scope.names.get(e.name)
            if known is None:
                yield f"%{e.name} is not bound here"
            elif known != e.dtype:
                yield f"%{e.name} is {known}, read as {e.dtype}"
        elif isinstance(e, IndexValue):
            yield from _check_index_names(e.index, site.value_scope)
    for _, index, _ in site.accesses():
        for d in index:
            yield from _check_index_names(d, site.value_scope)
    if isinstance(site.stmt, BoundsCheck):
        for name in {site.stmt.name} | variables(site.stmt.low) | variables(site.stmt.high):
            yield from _check_integer(name, site.scope)


def _check_index_names(d: Dim, scope: VerifierScope) -> Iterator[str]:
    for name in sorted(variables(d)):
        yield from _check_integer(name, scope)


def _check_integer(name: str, scope: VerifierScope) -> Iterator[str]:
    known = scope.names.get(name)
    if known is None:
        yield f"%{name} is not bound here"
    elif not known.is_integer:
        yield f"%{name} is {known}; an index is made of integers"


def buffers_are_defined(site: ScopedStmt) -> Iterator[str]:
    """A buffer is in scope and indexed once per dimension."""
    for buffer, index, _ in site.accesses():
        known = site.value_scope.buffers.get(buffer)
        if known is None:
            yield f"%{buffer} is no buffer in scope"
        elif len(index) != known.type.rank:
            yield f"%{buffer}: {known.type} is indexed by {len(index)} numbers"


def expressions_are_typed(site: ScopedStmt) -> Iterator[str]:
    """Loads have their buffer's dtype, masks are bool, and each primitive gives the dtype it declares."""
    for e in site.exprs:
        if isinstance(e, Load):
            known = site.value_scope.buffers.get(e.buffer)
            if known is not None and e.dtype != known.type.dtype:
                yield f"%{e.buffer} holds {known.type.dtype}, loaded as {e.dtype}"
            if e.mask is not None and e.mask.dtype != boolean:
                yield f"the mask of %{e.buffer} is {e.mask.dtype}, not bool"
            if e.other is not None and e.other.dtype != e.dtype:
                yield f"%{e.buffer} loads {e.dtype} but is {e.other.dtype} where masked"
        elif isinstance(e, IndexValue) and e.dtype != i64:
            yield f"index value {e.index} is {e.dtype}, not i64"
        elif isinstance(e, PrimitiveCall):
            yield from _call_is_typed(e)


def _call_is_typed(e: PrimitiveCall) -> Iterator[str]:
    if e.primitive not in PRIMITIVES:
        yield f"there is no primitive {e.primitive}"
        return
    try:
        derived = scalar.call_primitive(e.primitive, *e.operands, dtype=e.dtype).dtype
    except TypeError as error:
        yield str(error)
        return
    if derived != e.dtype:
        yield f"{e.primitive} gives {derived}, not {e.dtype}"
    if e.primitive == "bitcast" and e.dtype.bits != e.operands[0].dtype.bits:
        yield f"bitcast from {e.operands[0].dtype} to {e.dtype} changes the width"


def stores_are_valid(site: ScopedStmt) -> Iterator[str]:
    """A store writes its buffer's dtype to a buffer that may be written; inside a reduction that is a local one.

    Whether it goes past the cache is known when the kernel is called.
    """
    if not isinstance(site.stmt, Store) or site.stmt.buffer not in site.scope.buffers:
        return
    name, target = site.stmt.buffer, site.scope.buffers[site.stmt.buffer]
    if site.stmt.value.dtype != target.type.dtype:
        yield f"%{name} holds {target.type.dtype}, but the value is {site.stmt.value.dtype}"
    nontemporal = site.stmt.nontemporal
    if nontemporal is not None and variables(nontemporal):
        yield f"%{name} is written past the cache if {nontemporal} is not negative, which are no declared sizes"
    if target.role in ("in", "const"):
        yield f"%{name} is an {target.role} parameter"
    elif target.role != "local" and any(isinstance(stmt, Reduce) for _, stmt in site.scope.enclosing_loops):
        yield f"%{name} is no local buffer, and this is inside a reduction"


def parallel_stores_are_disjoint(site: ScopedStmt) -> Iterator[str]:
    """Steps that may happen together write different elements: the index varies with every such loop around the buffer."""
    if not isinstance(site.stmt, Store) or site.stmt.buffer not in site.scope.buffers:
        return
    varies = site.scope.loop_variables(frozenset().union(*map(variables, site.stmt.index)))
    for r, stmt in site.scope.enclosing_loops[site.scope.buffers[site.stmt.buffer].depth :]:
        together = r.tile > 1 or (isinstance(stmt, For) and stmt.parallel)
        if together and r.var not in varies and r.extent != 1:
            yield f"every step of %{r.var} may write the same element; the index has to vary with it"


def indices_are_in_bounds(site: ScopedStmt) -> Iterator[str]:
    """No access without a mask provably leaves its buffer."""
    bounds = site.value_scope.bounds if isinstance(site.stmt, Reduce) else site.scope.bounds
    for buffer, index, may_be_outside in site.accesses():
        if may_be_outside or buffer not in site.value_scope.buffers:
            continue
        for axis, (d, extent) in enumerate(zip(index, site.value_scope.buffers[buffer].type.shape, strict=False)):
            if dynamic_sizes(d):
                continue
            known = interval(d, bounds)
            if known is None or not isinstance(extent, int) or not (bounds or not site.value_scope.enclosing_loops):
                continue
            exact = _is_affine(d) and (
                len(variables(d)) == 1 or not variables(d) & site.value_scope.symbolic_bound_loops
            )
            if known[1] < 0 or known[0] >= extent or (exact and (known[0] < 0 or known[1] >= extent)):
                yield f"%{buffer}: index {axis}, {d}, takes {known[0]}..{known[1]} in an extent of {extent}"


def _is_affine(d: Dim) -> bool:
    """Whether the interval of `d` is exact: a sum of single variables."""
    return isinstance(d, int) or all(not m or (len(m) == 1 and isinstance(m[0], Var)) for m, _ in d.terms)


def ranges_are_valid(site: ScopedStmt) -> Iterator[str]:
    """Bounds follow untiled loops around, the length of parallel loops none; tiles are positive, lanes a power of two."""
    outer = {r.var: r.tile for r, _ in site.scope.enclosing_loops}
    for r in stmt_ranges(site.stmt):
        if variables(r.extent) and isinstance(site.stmt, For) and site.stmt.parallel:
            yield f"parallel %{r.var} runs over {r.lo}..{r.hi}, whose length is no constant"
        elif isinstance(r.extent, int) and r.extent < 0:
            yield f"%{r.var} runs backwards, {r.lo}..{r.hi}"
        for name in sorted(variables(r.lo) | variables(r.hi)):
            if outer.get(name) != 1:
                yield f"%{r.var} starts at {r.lo}, but %{name} is no loop around it that takes one step at a time"
        if r.tile < 1 or r.unroll < 1:
            yield f"%{r.var} has tile {r.tile} and unroll {r.unroll}; both are at least 1"
        plain = isinstance(site.stmt, Reduce) and all(isinstance(s, (Let, Prefetch)) for s in site.stmt.body)
        if r.accumulators != 1 and (r.accumulators < 1 or r.tile != 1 or not plain):
            yield f"%{r.var} has {r.accumulators} chains; that is for steps, one by one, of a reduction that only binds names or fetches ahead"
        if r.lanes and (r.lanes < 1 or r.lanes & (r.lanes - 1)):
            yield f"%{r.var} has {r.lanes} lanes; they must be a power of two"


def prefetches_are_valid(site: ScopedStmt) -> Iterator[str]:
    """There are caches 1 to 3, and tiles that a prefetch is for."""
    if not isinstance(site.stmt, Prefetch):
        return
    if not 1 <= site.stmt.level <= 3:
        yield f"there is no cache of level {site.stmt.level}; say 1, 2 or 3"
    least, end = site.stmt.reuse
    if least < 1 or (end is not None and end <= least):
        yield f"no tile uses an element {site.stmt.reuse_text} times"


def one_axis_has_lanes(site: ScopedStmt) -> Iterator[str]:
    """At most one axis in scope has lanes."""
    own = [r.var for r in stmt_ranges(site.stmt) if r.lanes]
    outer = [r.var for r, _ in site.scope.enclosing_loops if r.lanes]
    if own and len(own) + len(outer) > 1:
        yield f"lanes on %{own[-1]} beside lanes on %{(outer + own)[0]}"


def parallel_is_outermost(site: ScopedStmt) -> Iterator[str]:
    """A parallel loop is outside every serial loop and reduction."""
    if isinstance(site.stmt, For) and site.stmt.parallel:
        for r, stmt in site.scope.enclosing_loops:
            if not (isinstance(stmt, For) and stmt.parallel):
                yield f"parallel inside the serial loop over %{r.var}"


def reductions_are_valid(site: ScopedStmt) -> Iterator[str]:
    """A reduction combines by an operation that its dtype has."""
    if isinstance(site.stmt, Reduce):
        if site.stmt.op not in IDENTITIES:
            yield f"{site.stmt.op} is none of {', '.join(IDENTITIES)}"
        elif site.stmt.value.dtype == boolean and site.stmt.op not in ("max", "min"):
            yield f"{site.stmt.op} of bool; use max for any, min for all"
        if not site.stmt.ranges:
            yield "reduces over nothing"


def local_shapes_are_invariant(site: ScopedStmt) -> Iterator[str]:
    """A local buffer is as large in every step."""
    if isinstance(site.stmt, Local) and any(map(variables, site.stmt.type.shape)):
        yield f"{site.stmt.type} has dimensions that are no declared sizes"


RULES: tuple[Callable[[ScopedStmt], Iterator[str]], ...] = (
    names_are_unique,
    names_are_bound,
    buffers_are_defined,
    expressions_are_typed,
    stores_are_valid,
    parallel_stores_are_disjoint,
    indices_are_in_bounds,
    ranges_are_valid,
    prefetches_are_valid,
    one_axis_has_lanes,
    parallel_is_outermost,
    reductions_are_valid,
    local_shapes_are_invariant,
)
