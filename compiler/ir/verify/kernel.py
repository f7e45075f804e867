"""Verifier of kernels in Tile IR: `RULES` lists the rules, functions that yield the problems of one statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from compiler.errors import VerifyError
from compiler.ir import scalar
from compiler.ir.graph.structure import IDENTITIES
from compiler.ir.scalar import PRIMITIVES, IndexValue, Load, PrimitiveCall, Ref
from compiler.ir.symbolic.index_atoms import Var
from compiler.ir.symbolic.index_expr import Dim, dynamic_sizes, interval, var, variables
from compiler.ir.tile.kernel import (
    ROLES,
    AsyncCopy,
    BoundsCheck,
    For,
    Kernel,
    Let,
    Local,
    Prefetch,
    Reduce,
    Stmt,
    Store,
    Wait,
    access_indices,
    has_partial_rows,
    is_parallel_loop,
    stmt_ranges,
    walk,
)
from compiler.ir.tile.substitution import names_bound_by
from compiler.ir.types import boolean, i64
from compiler.ir.verify.async_copies import check_async_copies
from compiler.ir.verify.kernel_scope import ScopedStmt, VerifierScope, scoped_stmts


def verify_kernel(kernel: Kernel) -> None:
    """Raise VerifyError with all problems in `kernel`: rule and statement of each."""
    problems = [*_check_params(kernel), *_check_size_names(kernel), *_check_scratch(kernel)]
    for site in scoped_stmts(kernel):
        problems += [f"[{r.__name__}] {describe(site.stmt)}: {problem}" for r in RULES for problem in r(site)]
    problems += [f"[check_async_copies] {problem}" for problem in check_async_copies(kernel)]
    if problems:
        raise VerifyError(f"@{kernel.name} is not a valid kernel:\n  " + "\n  ".join(dict.fromkeys(problems)))


def describe(stmt: Stmt) -> str:
    """Return a short text that identifies a statement in a message."""
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
        case AsyncCopy(source, _, target):
            return f"copy_async %{source} -> %{target}"
        case Wait(buffer):
            return f"wait %{buffer}"
        case For(r):
            return f"for %{r.var}"
        case Reduce(name, op):
            return f"%{name} = reduce {op}"


def _check_params(kernel: Kernel) -> Iterator[str]:
    names = [p.name for p in kernel.params]
    for p in kernel.params:
        if p.role not in ROLES:
            yield f"parameter %{p.name} has role {p.role}; roles are {', '.join(ROLES)}"
        if names.count(p.name) > 1:
            yield f"two parameters have the name %{p.name}"
        if any(map(variables, p.type.shape)):
            yield f"parameter %{p.name}: {p.type} has dimensions that are not declared sizes"
    if variables(kernel.max_chunks or 0):
        yield f"max_chunks {kernel.max_chunks} uses names that are not declared sizes"
    if kernel.warps < 0 or kernel.warps & (kernel.warps - 1):
        yield f"warps {kernel.warps} must be a power of two"
    if kernel.max_registers < 0:
        yield f"max_registers {kernel.max_registers} must be positive"
    if kernel.persistent < 0 or (kernel.warp_specialized and not kernel.persistent):
        yield f"persistent {kernel.persistent} must be positive, for specialized warps too"
    if kernel.subtiles < 0 or kernel.subtiles & (kernel.subtiles - 1):
        yield f"subtiles {kernel.subtiles} must be a power of two"


def _check_size_names(kernel: Kernel) -> Iterator[str]:
    """Check that no loop variable or value has the name of a size, which would make indices ambiguous."""
    sizes = {s.name for s in kernel.dynamic_sizes}
    for stmt in walk(kernel.body):
        bound = [r.var for r in stmt_ranges(stmt)] + ([stmt.name] if isinstance(stmt, (Let, Reduce)) else [])
        yield from (f"%{name} has the name of a size: {describe(stmt)}" for name in bound if name in sizes)


def _check_scratch(kernel: Kernel) -> Iterator[str]:
    """Check that each iteration of an outermost parallel loop has its own slice of a scratch buffer.

    All accesses in the loop must index the same dimension with the loop variable.
    """
    for p in (p for p in kernel.params if p.role == "scratch"):
        for s in (s for s in kernel.body if is_parallel_loop(s)):
            indices = access_indices((s,), p.name)
            if indices and not any(
                set(axis_indices) == {var(s.range.var)} for axis_indices in zip(*indices, strict=True)
            ):
                yield f"%{p.name} is scratch, but has no dimension indexed only by %{s.range.var}: {describe(s)}"


def names_are_unique(site: ScopedStmt) -> Iterator[str]:
    """Check that no definition shadows a name in scope."""
    new = names_bound_by(site.stmt)
    for k, name in enumerate(new):
        if site.scope.is_defined(name) or name in new[:k]:
            yield f"%{name} is already defined"


def names_are_bound(site: ScopedStmt) -> Iterator[str]:
    """Check that values are defined before they are read, with the same dtype, and that indices are integers."""
    for e in site.exprs:
        if isinstance(e, Ref):
            dtype = site.value_scope.names.get(e.name)
            if dtype is None:
                yield f"%{e.name} is not defined here"
            elif dtype != e.dtype:
                yield f"%{e.name} has dtype {dtype}, but is read as {e.dtype}"
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
    dtype = scope.names.get(name)
    if dtype is None:
        yield f"%{name} is not defined here"
    elif not dtype.is_integer:
        yield f"%{name} is {dtype}; indices and checked values must be integers"


def buffers_are_defined(site: ScopedStmt) -> Iterator[str]:
    """Check that a buffer is in scope and has one index per dimension."""
    for buffer, index, _ in site.accesses():
        visible = site.value_scope.buffers.get(buffer)
        if visible is None:
            yield f"%{buffer} is not a buffer in scope"
        elif len(index) != visible.type.rank:
            yield f"%{buffer}: {visible.type} is indexed with {len(index)} indices"


def expressions_are_typed(site: ScopedStmt) -> Iterator[str]:
    """Check that loads have their buffer's dtype, masks are bool, and calls have the dtype of the primitive's rule."""
    for e in site.exprs:
        if isinstance(e, Load):
            visible = site.value_scope.buffers.get(e.buffer)
            if visible is not None and e.dtype != visible.type.dtype:
                yield f"%{e.buffer} has dtype {visible.type.dtype}, but is loaded as {e.dtype}"
            if e.mask is not None and e.mask.dtype != boolean:
                yield f"the mask of %{e.buffer} is {e.mask.dtype}, not bool"
            if e.other is not None and e.other.dtype != e.dtype:
                yield f"%{e.buffer} is loaded as {e.dtype}, but its value where masked is {e.other.dtype}"
        elif isinstance(e, IndexValue) and e.dtype != i64:
            yield f"index value {e.index} is {e.dtype}, not i64"
        elif isinstance(e, PrimitiveCall):
            yield from _check_call(e)


def _check_call(e: PrimitiveCall) -> Iterator[str]:
    if e.primitive not in PRIMITIVES:
        yield f"unknown primitive {e.primitive}"
        return
    try:
        inferred = scalar.call_primitive(e.primitive, *e.operands, dtype=e.dtype).dtype
    except TypeError as error:
        yield str(error)
        return
    if inferred != e.dtype:
        yield f"{e.primitive} has dtype {e.dtype}, but the inferred one is {inferred}"
    if e.primitive == "bitcast" and e.dtype.bits != e.operands[0].dtype.bits:
        yield f"bitcast from {e.operands[0].dtype} to {e.dtype} changes the bit width"


def stores_are_valid(site: ScopedStmt) -> Iterator[str]:
    """Check that a store or copy writes its buffer's dtype to a writable buffer, and that a reduction stores to local ones and results.

    The nontemporal condition of a store must be known at call time.
    """
    if site.written is None:
        return
    name, target = site.written[0], site.scope.buffers[site.written[0]]
    if isinstance(site.stmt, Store):
        stored, nontemporal = site.stmt.value.dtype, site.stmt.nontemporal
        if nontemporal is not None and variables(nontemporal):
            yield f"%{name}: nontemporal condition {nontemporal} uses names that are not declared sizes"
    else:
        assert isinstance(site.stmt, AsyncCopy)
        source = site.scope.buffers.get(site.stmt.source, target)
        stored = source.type.dtype
    if stored != target.type.dtype:
        yield f"%{name} has dtype {target.type.dtype}, but the stored value has {stored}"
    stored_to = ("local", "out") if isinstance(site.stmt, Store) else ("local",)
    if target.role in ("in", "const"):
        yield f"%{name} is an {target.role} parameter and cannot be written"
    elif target.role not in stored_to and any(isinstance(s, Reduce) for _, s in site.scope.enclosing_loops):
        yield f"%{name} is not a local buffer; inside a reduction only local buffers and results can be written"


def parallel_stores_are_disjoint(site: ScopedStmt) -> Iterator[str]:
    """Check that concurrent iterations write different elements.

    The index must depend on every tiled or parallel loop inside the scope of the buffer's declaration.
    """
    if site.written is None:
        return
    name, index = site.written
    loop_deps = site.scope.loop_variables(frozenset().union(*map(variables, index)))
    for r, stmt in site.scope.enclosing_loops[site.scope.buffers[name].depth :]:
        is_concurrent = r.tile > 1 or is_parallel_loop(stmt)
        if is_concurrent and r.var not in loop_deps and r.extent != 1:
            yield f"iterations of %{r.var} may write the same element; the index must depend on %{r.var}"


def indices_are_in_bounds(site: ScopedStmt) -> Iterator[str]:
    """Check that no access without a mask is provably out of bounds."""
    bounds = site.value_scope.bounds if isinstance(site.stmt, Reduce) else site.scope.bounds
    for buffer, index, may_be_outside in site.accesses():
        if may_be_outside or buffer not in site.value_scope.buffers:
            continue
        for axis, (d, extent) in enumerate(zip(index, site.value_scope.buffers[buffer].type.shape, strict=False)):
            if dynamic_sizes(d):
                continue
            limits = interval(d, bounds)
            if limits is None or not isinstance(extent, int) or not (bounds or not site.value_scope.enclosing_loops):
                continue
            low, high = limits
            is_independent = len(variables(d)) == 1 or not variables(d) & site.value_scope.symbolic_bound_loops
            is_exact = _is_affine(d) and is_independent
            if high < 0 or low >= extent or (is_exact and (low < 0 or high >= extent)):
                yield f"%{buffer}: index {axis}, {d}, ranges over {low}..{high}, but the extent is {extent}"


def _is_affine(d: Dim) -> bool:
    """Return True if `d` is a sum of multiples of variables, whose interval is exact for independent variables."""
    return isinstance(d, int) or all(not m or (len(m) == 1 and isinstance(m[0], Var)) for m, _ in d.terms)


def ranges_are_valid(site: ScopedStmt) -> Iterator[str]:
    """Check the loop headers.

    Bounds may use only enclosing loops with tile 1, and the extent of a parallel loop none.  Extents are not negative,
    tiles positive, and lanes a power of two.
    """
    outer = {r.var: r.tile for r, _ in site.scope.enclosing_loops}
    for r in stmt_ranges(site.stmt):
        if variables(r.extent) and isinstance(site.stmt, For) and site.stmt.parallel:
            yield f"parallel %{r.var} in {r.lo}..{r.hi} has an extent that is not loop-invariant"
        elif isinstance(r.extent, int) and r.extent < 0:
            yield f"%{r.var} in {r.lo}..{r.hi} has a negative extent"
        for name in sorted(variables(r.lo) | variables(r.hi)):
            if outer.get(name) != 1:
                yield f"%{r.var} in {r.lo}..{r.hi} has a bound with %{name}, which is not an enclosing loop with tile 1"
        if min(r.tile, r.unroll, r.stages) < 1:
            yield f"%{r.var} has tile {r.tile}, unroll {r.unroll} and stages {r.stages}; all must be at least 1"
        is_simple = isinstance(site.stmt, Reduce) and all(isinstance(s, (Let, Prefetch)) for s in site.stmt.body)
        if r.accumulators != 1 and (r.accumulators < 1 or r.tile != 1 or not is_simple):
            only = "only an untiled reduction of lets and prefetches may have several"
            yield f"%{r.var} has {r.accumulators} accumulators; {only}"
        if r.balanced and not has_partial_rows(r):
            yield f"%{r.var} is balanced; only a loop of dynamic extent whose tile of rows may be partial is"
        if r.lanes and (r.lanes < 1 or r.lanes & (r.lanes - 1)):
            yield f"%{r.var} has {r.lanes} lanes; they must be a power of two"


def prefetches_are_valid(site: ScopedStmt) -> Iterator[str]:
    """Check that a prefetch has a cache level in 1..3 and a non-empty reuse range."""
    if not isinstance(site.stmt, Prefetch):
        return
    if not 1 <= site.stmt.level <= 3:
        yield f"there is no cache level {site.stmt.level}; use 1, 2 or 3"
    least, end = site.stmt.reuse
    if least < 1 or (end is not None and end <= least):
        yield f"invalid reuse range {site.stmt.reuse_text}; it must be non-empty and start at 1 or above"


def copies_are_valid(site: ScopedStmt) -> Iterator[str]:
    """Check that copies and waits stand outside tiled loops, and that boxes have no more dimensions than their buffers."""
    if not isinstance(site.stmt, (AsyncCopy, Wait)):
        return
    if tiled := [r.var for r, _ in site.scope.enclosing_loops if r.tile > 1 or r.lanes]:
        yield f"inside the tiled loop over %{tiled[0]}"
    if isinstance(site.stmt, AsyncCopy):
        rank = min(len(site.stmt.source_index), len(site.stmt.target_index))
        if not 1 <= len(site.stmt.sizes) <= rank:
            yield f"{len(site.stmt.sizes)} sizes for boxes of {rank} dimensions"
        yield from (f"size {d} is not positive" for d in site.stmt.sizes if isinstance(d, int) and d < 1)
    elif site.stmt.buffer not in site.scope.buffers:
        yield f"%{site.stmt.buffer} is not a buffer in scope"


def one_axis_has_lanes(site: ScopedStmt) -> Iterator[str]:
    """Check that at most one loop in scope has lanes."""
    own = [r.var for r in stmt_ranges(site.stmt) if r.lanes]
    outer = [r.var for r, _ in site.scope.enclosing_loops if r.lanes]
    if own and len(own) + len(outer) > 1:
        yield f"both %{(outer + own)[0]} and %{own[-1]} have lanes"


def parallel_is_outermost(site: ScopedStmt) -> Iterator[str]:
    """Check that a parallel loop is not inside a serial loop or a reduction."""
    if isinstance(site.stmt, For) and site.stmt.parallel:
        for r, stmt in site.scope.enclosing_loops:
            if not is_parallel_loop(stmt):
                yield f"parallel loop inside the serial loop over %{r.var}"


def reductions_are_valid(site: ScopedStmt) -> Iterator[str]:
    """Check that a reduction has a range and an operation that its dtype supports."""
    if isinstance(site.stmt, Reduce):
        if site.stmt.op not in IDENTITIES:
            yield f"unknown reduction {site.stmt.op}; use {', '.join(IDENTITIES)}"
        elif site.stmt.value.dtype == boolean and site.stmt.op not in ("max", "min"):
            yield f"{site.stmt.op} of bool; use max for any, min for all"
        if not site.stmt.ranges:
            yield "has no reduction range"


def local_shapes_are_invariant(site: ScopedStmt) -> Iterator[str]:
    """Check that the shape of a local buffer does not depend on loops."""
    if isinstance(site.stmt, Local) and any(map(variables, site.stmt.type.shape)):
        yield f"{site.stmt.type} has dimensions that are not declared sizes"


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
    copies_are_valid,
    one_axis_has_lanes,
    parallel_is_outermost,
    reductions_are_valid,
    local_shapes_are_invariant,
)
