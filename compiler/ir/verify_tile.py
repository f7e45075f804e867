"""The rules of Tile IR.  Each is a function that yields what is wrong at one statement; `RULES` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from compiler.errors import VerifyError
from compiler.ir import scalar
from compiler.ir.atoms import Var
from compiler.ir.index import Dim, Index, interval, sizes, var, variables
from compiler.ir.scalar import PRIMITIVES, Call, Expr, IndexValue, Load, Ref
from compiler.ir.sizes import kernel_sizes
from compiler.ir.structure import IDENTITIES
from compiler.ir.tile import (
    ROLES,
    Block,
    Check,
    For,
    Kernel,
    Let,
    Local,
    Prefetch,
    Range,
    Reduce,
    Stmt,
    Store,
    blocks,
    places,
    ranges,
    walk,
)
from compiler.ir.types import DType, TensorType, boolean, i64


@dataclass(frozen=True)
class Buffer:
    """A buffer in scope: its type, its role ("local" for those a kernel declares), how many loops are around its declaration."""

    type: TensorType
    role: str
    depth: int = 0


@dataclass(frozen=True)
class Scope:
    """What is visible at a statement: names with their types and the loop variables they vary with, buffers, loops around."""

    names: Mapping[str, DType] = field(default_factory=dict)
    varies: Mapping[str, frozenset[str]] = field(default_factory=dict)
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    loops: tuple[tuple[Range, For | Reduce], ...] = ()

    def knows(self, name: str) -> bool:
        return name in self.names or name in self.buffers

    def bind(self, name: str, dtype: DType, varies: frozenset[str]) -> Scope:
        return replace(self, names={**self.names, name: dtype}, varies={**self.varies, name: varies})

    def declare(self, name: str, buffer: Buffer) -> Scope:
        return replace(self, buffers={**self.buffers, name: buffer})

    def enter(self, stmt: For | Reduce) -> Scope:
        inner = self
        for r in ranges(stmt):
            outer = inner.loop_variables(variables(r.lo) | variables(r.hi))
            inner = replace(inner.bind(r.var, i64, outer | {r.var}), loops=(*inner.loops, (r, stmt)))
        return inner

    def loop_variables(self, names: frozenset[str]) -> frozenset[str]:
        """The loop variables that decide the values of `names`."""
        return frozenset().union(*(self.varies.get(n, frozenset()) for n in names))

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """Lowest and highest value of each loop variable; empty where some loop runs no step."""
        found: dict[str, tuple[int, int]] = {}
        for r, _ in self.loops:
            low, high = interval(r.lo, found), interval(r.hi, found)
            if low and high and not sizes(r.lo) and not sizes(r.hi):
                found[r.var] = low[0], high[1] - 1
        return found if all(low <= high for low, high in found.values()) else {}

    @property
    def inner_parts(self) -> frozenset[str]:
        """The loop variables whose bounds follow other loops."""
        return frozenset(r.var for r, _ in self.loops if isinstance(r.lo, Index) or isinstance(r.hi, Index))


@dataclass(frozen=True)
class Site:
    """A statement, what is visible before it, and what its expression sees (for a reduction: the end of its body)."""

    stmt: Stmt
    scope: Scope
    inner: Scope

    @property
    def value(self) -> Expr | None:
        return self.stmt.value if isinstance(self.stmt, (Let, Store, Reduce)) else None

    @cached_property
    def exprs(self) -> tuple[Expr, ...]:
        return () if self.value is None else self.value.parts

    def accesses(self) -> Iterator[tuple[str, tuple[Dim, ...], bool]]:
        """Every buffer element read, written or prefetched: buffer, index, whether it may lie outside."""
        if isinstance(self.stmt, Store):
            yield self.stmt.buffer, self.stmt.index, False
        if isinstance(self.stmt, Prefetch):  # a hint, which may point past the end
            yield self.stmt.buffer, self.stmt.index, True
        yield from ((e.buffer, e.index, e.mask is not None) for e in self.exprs if isinstance(e, Load))


def verify_kernel(kernel: Kernel) -> None:
    """VerifyError listing every broken rule with the statement that breaks it."""
    problems = [*_parameters(kernel), *_names_of_sizes(kernel), *_shared_work(kernel)]
    for site in sites(kernel):
        problems += [f"[{r.__name__}] {describe(site.stmt)}: {problem}" for r in RULES for problem in r(site)]
    if problems:
        raise VerifyError(f"@{kernel.name} is not a valid kernel:\n  " + "\n  ".join(dict.fromkeys(problems)))


def sites(kernel: Kernel) -> Iterator[Site]:
    """Every statement with what is visible there, in program order."""
    scope = Scope()
    for p in kernel.params:
        scope = scope.declare(p.name, Buffer(p.type, p.role))
    yield from _sites(kernel.body, scope, [])


def _sites(body: Block, scope: Scope, end: list[Scope]) -> Iterator[Site]:
    """The statements of a block; what is visible at its end is appended to `end`."""
    for stmt in body:
        inner = scope
        if isinstance(stmt, (For, Reduce)):
            last: list[Scope] = []
            inside = list(_sites(blocks(stmt), scope.enter(stmt), last))
            inner = last[0]
            yield Site(stmt, scope, inner)
            yield from inside
        else:
            yield Site(stmt, scope, inner)
        if isinstance(stmt, Let):
            scope = scope.bind(stmt.name, stmt.value.dtype, _varies(stmt.value, scope))
        elif isinstance(stmt, Reduce):
            own = frozenset(r.var for r in stmt.ranges)
            scope = scope.bind(stmt.name, stmt.value.dtype, _varies(stmt.value, inner) - own)
        elif isinstance(stmt, Local):
            scope = scope.declare(stmt.buffer, Buffer(stmt.type, "local", len(scope.loops)))
    end.append(scope)


def _varies(value: Expr, scope: Scope) -> frozenset[str]:
    return scope.loop_variables(value.names)


def describe(stmt: Stmt) -> str:
    """A statement in a few words."""
    match stmt:
        case Let(name):
            return f"%{name} = ..."
        case Store(buffer, index):
            return f"store to %{buffer}[{', '.join(map(str, index))}]"
        case Local(buffer):
            return f"local %{buffer}"
        case Check(name):
            return f"check %{name}"
        case Prefetch(buffer, index):
            return f"prefetch of %{buffer}[{', '.join(map(str, index))}]"
        case For(r):
            return f"for %{r.var}"
        case Reduce(name, op):
            return f"%{name} = reduce {op}"


def _parameters(kernel: Kernel) -> Iterator[str]:
    names = [p.name for p in kernel.params]
    for p in kernel.params:
        if p.role not in ROLES:
            yield f"parameter %{p.name} is {p.role}, not {', '.join(ROLES[:-1])} or {ROLES[-1]}"
        if names.count(p.name) > 1:
            yield f"two parameters are called %{p.name}"
        if any(map(variables, p.type.shape)):
            yield f"parameter %{p.name}: {p.type} has dimensions that are no declared sizes"
    if variables(kernel.surplus):
        yield f"it is shared if {kernel.surplus} is not negative, which are no declared sizes"


def _names_of_sizes(kernel: Kernel) -> Iterator[str]:
    """No loop and no value is called like a size: an index would mean both."""
    sizes = {s.name for s in kernel_sizes(kernel)}
    for stmt in walk(kernel.body):
        bound = [r.var for r in ranges(stmt)] + ([stmt.name] if isinstance(stmt, (Let, Reduce)) else [])
        yield from (f"%{name} is called like a size: {describe(stmt)}" for name in bound if name in sizes)


def _shared_work(kernel: Kernel) -> Iterator[str]:
    """Each step of an outermost parallel loop has a part of its own in a buffer for work: all its places follow that loop."""
    for p in (p for p in kernel.params if p.role == "work"):
        for s in (s for s in kernel.body if isinstance(s, For) and s.parallel):
            touched = places((s,), p.name)
            if touched and not any(set(along) == {var(s.range.var)} for along in zip(*touched, strict=True)):
                yield f"%{p.name} is for work, but no part of it is one step's alone: {describe(s)}"


def binds_new_names(site: Site) -> Iterator[str]:
    """No name hides one in scope."""
    stmt = site.stmt
    new = [r.var for r in ranges(stmt)]
    new += [stmt.name] if isinstance(stmt, (Let, Reduce)) else [stmt.buffer] if isinstance(stmt, Local) else []
    for k, name in enumerate(new):
        if site.scope.knows(name) or name in new[:k]:
            yield f"%{name} is bound already"


def names_are_bound(site: Site) -> Iterator[str]:
    """A value is read after it is bound, as the type it has; an index is made of integers."""
    for e in site.exprs:
        if isinstance(e, Ref):
            known = site.inner.names.get(e.name)
            if known is None:
                yield f"%{e.name} is not bound here"
            elif known != e.dtype:
                yield f"%{e.name} is {known}, read as {e.dtype}"
        elif isinstance(e, IndexValue):
            yield from _index_names(e.index, site.inner)
    for _, index, _ in site.accesses():
        for d in index:
            yield from _index_names(d, site.inner)
    if isinstance(site.stmt, Check):
        for name in {site.stmt.name} | variables(site.stmt.low) | variables(site.stmt.high):
            yield from _integer(name, site.scope)


def _index_names(d: Dim, scope: Scope) -> Iterator[str]:
    for name in sorted(variables(d)):
        yield from _integer(name, scope)


def _integer(name: str, scope: Scope) -> Iterator[str]:
    known = scope.names.get(name)
    if known is None:
        yield f"%{name} is not bound here"
    elif not known.is_integer:
        yield f"%{name} is {known}; an index is made of integers"


def buffers_are_known(site: Site) -> Iterator[str]:
    """A buffer is in scope and indexed once per dimension."""
    for buffer, index, _ in site.accesses():
        known = site.inner.buffers.get(buffer)
        if known is None:
            yield f"%{buffer} is no buffer in scope"
        elif len(index) != known.type.rank:
            yield f"%{buffer}: {known.type} is indexed by {len(index)} numbers"


def expressions_are_typed(site: Site) -> Iterator[str]:
    """Loads have their buffer's dtype, masks are bool, and each primitive gives the dtype it declares."""
    for e in site.exprs:
        if isinstance(e, Load):
            known = site.inner.buffers.get(e.buffer)
            if known is not None and e.dtype != known.type.dtype:
                yield f"%{e.buffer} holds {known.type.dtype}, loaded as {e.dtype}"
            if e.mask is not None and e.mask.dtype != boolean:
                yield f"the mask of %{e.buffer} is {e.mask.dtype}, not bool"
            if e.other is not None and e.other.dtype != e.dtype:
                yield f"%{e.buffer} loads {e.dtype} but is {e.other.dtype} where masked"
        elif isinstance(e, IndexValue) and e.dtype != i64:
            yield f"index value {e.index} is {e.dtype}, not i64"
        elif isinstance(e, Call):
            yield from _call_is_typed(e)


def _call_is_typed(e: Call) -> Iterator[str]:
    if e.primitive not in PRIMITIVES:
        yield f"there is no primitive {e.primitive}"
        return
    try:
        derived = scalar.call(e.primitive, *e.operands, dtype=e.dtype).dtype
    except TypeError as error:
        yield str(error)
        return
    if derived != e.dtype:
        yield f"{e.primitive} gives {derived}, not {e.dtype}"
    if e.primitive == "bitcast" and e.dtype.bits != e.operands[0].dtype.bits:
        yield f"bitcast from {e.operands[0].dtype} to {e.dtype} changes the width"


def stores_fit(site: Site) -> Iterator[str]:
    """A store writes its buffer's dtype to a buffer that may be written; inside a reduction that is a local one.

    Whether it goes past the cache is known when the kernel is called.
    """
    if not isinstance(site.stmt, Store) or site.stmt.buffer not in site.scope.buffers:
        return
    name, target = site.stmt.buffer, site.scope.buffers[site.stmt.buffer]
    if site.stmt.value.dtype != target.type.dtype:
        yield f"%{name} holds {target.type.dtype}, but the value is {site.stmt.value.dtype}"
    far = site.stmt.stream
    if far is not None and variables(far):
        yield f"%{name} is written past the cache if {far} is not negative, which are no declared sizes"
    if target.role in ("in", "const"):
        yield f"%{name} is an {target.role} parameter"
    elif target.role != "local" and any(isinstance(stmt, Reduce) for _, stmt in site.scope.loops):
        yield f"%{name} is no local buffer, and this is inside a reduction"


def steps_do_not_collide(site: Site) -> Iterator[str]:
    """Steps that may happen together write different elements: the index varies with every such loop around the buffer."""
    if not isinstance(site.stmt, Store) or site.stmt.buffer not in site.scope.buffers:
        return
    varies = site.scope.loop_variables(frozenset().union(*map(variables, site.stmt.index)))
    for r, stmt in site.scope.loops[site.scope.buffers[site.stmt.buffer].depth :]:
        together = r.tile > 1 or (isinstance(stmt, For) and stmt.parallel)
        if together and r.var not in varies and r.extent != 1:
            yield f"every step of %{r.var} may write the same element; the index has to vary with it"


def indices_stay_inside(site: Site) -> Iterator[str]:
    """No access without a mask provably leaves its buffer."""
    bounds = site.inner.bounds if isinstance(site.stmt, Reduce) else site.scope.bounds
    for buffer, index, may_leave in site.accesses():
        if may_leave or buffer not in site.inner.buffers:
            continue
        for axis, (d, extent) in enumerate(zip(index, site.inner.buffers[buffer].type.shape, strict=False)):
            if sizes(d):
                continue
            known = interval(d, bounds)
            if known is None or not isinstance(extent, int) or not (bounds or not site.inner.loops):
                continue
            exact = _is_affine(d) and (len(variables(d)) == 1 or not variables(d) & site.inner.inner_parts)
            if known[1] < 0 or known[0] >= extent or (exact and (known[0] < 0 or known[1] >= extent)):
                yield f"%{buffer}: index {axis}, {d}, takes {known[0]}..{known[1]} in an extent of {extent}"


def _is_affine(d: Dim) -> bool:
    """Whether the interval of `d` is exact: a sum of single variables."""
    return isinstance(d, int) or all(not m or (len(m) == 1 and isinstance(m[0], Var)) for m, _ in d.terms)


def ranges_are_sensible(site: Site) -> Iterator[str]:
    """Bounds follow untiled loops around, the length of parallel loops none; tiles are positive, lanes a power of two."""
    outer = {r.var: r.tile for r, _ in site.scope.loops}
    for r in ranges(site.stmt):
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
        if r.chains != 1 and (r.chains < 1 or r.tile != 1 or not plain):
            yield f"%{r.var} has {r.chains} chains; that is for steps, one by one, of a reduction that only binds names or fetches ahead"
        if r.lanes and (r.lanes < 1 or r.lanes & (r.lanes - 1)):
            yield f"%{r.var} has {r.lanes} lanes; they must be a power of two"


def prefetches_are_sensible(site: Site) -> Iterator[str]:
    """There are caches 1 to 3, and tiles that a prefetch is for."""
    if not isinstance(site.stmt, Prefetch):
        return
    if not 1 <= site.stmt.level <= 3:
        yield f"there is no cache of level {site.stmt.level}; say 1, 2 or 3"
    least, end = site.stmt.uses
    if least < 1 or (end is not None and end <= least):
        yield f"no tile uses an element {site.stmt.interval} times"


def one_axis_has_lanes(site: Site) -> Iterator[str]:
    """At most one axis in scope has lanes."""
    own = [r.var for r in ranges(site.stmt) if r.lanes]
    outer = [r.var for r, _ in site.scope.loops if r.lanes]
    if own and len(own) + len(outer) > 1:
        yield f"lanes on %{own[-1]} beside lanes on %{(outer + own)[0]}"


def parallel_is_outermost(site: Site) -> Iterator[str]:
    """A parallel loop is outside every serial loop and reduction."""
    if isinstance(site.stmt, For) and site.stmt.parallel:
        for r, stmt in site.scope.loops:
            if not (isinstance(stmt, For) and stmt.parallel):
                yield f"parallel inside the serial loop over %{r.var}"


def reductions_are_known(site: Site) -> Iterator[str]:
    """A reduction combines by an operation that its dtype has."""
    if isinstance(site.stmt, Reduce):
        if site.stmt.op not in IDENTITIES:
            yield f"{site.stmt.op} is none of {', '.join(IDENTITIES)}"
        elif site.stmt.value.dtype == boolean and site.stmt.op not in ("max", "min"):
            yield f"{site.stmt.op} of bool; use max for any, min for all"
        if not site.stmt.ranges:
            yield "reduces over nothing"


def locals_have_sizes(site: Site) -> Iterator[str]:
    """A local buffer is as large in every step."""
    if isinstance(site.stmt, Local) and any(map(variables, site.stmt.type.shape)):
        yield f"{site.stmt.type} has dimensions that are no declared sizes"


RULES: tuple[Callable[[Site], Iterator[str]], ...] = (
    binds_new_names,
    names_are_bound,
    buffers_are_known,
    expressions_are_typed,
    stores_fit,
    steps_do_not_collide,
    indices_stay_inside,
    ranges_are_sensible,
    prefetches_are_sensible,
    one_axis_has_lanes,
    parallel_is_outermost,
    reductions_are_known,
    locals_have_sizes,
)
