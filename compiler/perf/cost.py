"""What a kernel has to do, counted from its Tile IR: arithmetic, and bytes that must cross memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from compiler.ir import scalar
from compiler.ir.index import evaluate, interval, variables
from compiler.ir.scalar import Call, Load
from compiler.ir.sizes import kernel_sizes
from compiler.ir.tile import Block, For, Kernel, Range, Reduce, Stmt, blocks, ranges, values
from compiler.perf.machine import Machine

FREE = frozenset({"cast", "bitcast", "where", "and", "or", "xor", "not", "shl", "shr", "lshr"})
"""Primitives that are no arithmetic (nor is a comparison)."""

Limits = dict[str, tuple[int, int]]


def count_flops(kernel: Kernel, sizes: Mapping[str, int] | None = None) -> int:
    """Arithmetic operations of one call: an fma is two, a transcendental function one, a reduction one for each element.

    Where a loop's extent depends on other indices, its greatest extent counts.  Open sizes are `sizes`, else as is likely.
    """
    return _block(kernel.body, _told(kernel, sizes))


def _told(kernel: Kernel, sizes: Mapping[str, int] | None) -> Limits:
    known = sizes or {}
    return {s.name: (known.get(s.name, s.likely),) * 2 for s in kernel_sizes(kernel)}


def count_bytes(kernel: Kernel, sizes: Mapping[str, int] | None = None) -> int:
    """The size of every buffer the kernel is passed, once (twice where it is updated).

    A buffer that is only read at places that were looked up, such as an embedding table, counts for what is read of it.
    """
    reads = Counter[str]()
    plain, told = set[str](), _told(kernel, sizes)
    for load, times, loops in _loads(kernel.body, told, 1):
        looked_up = any(v not in loops for d in load.index for v in variables(d))
        if looked_up:
            reads[load.buffer] += times
        else:
            plain.add(load.buffer)
    total = 0
    for p in kernel.params:
        size = evaluate(p.type.nbytes, {name: n for name, (n, _) in told.items()}) * (2 if p.role == "inout" else 1)
        total += min(size, reads[p.name] * p.type.dtype.bytes) if reads[p.name] and p.name not in plain else size
    return total


def least_cycles(kernel: Kernel, machine: Machine) -> float:
    """The time that one core takes at least: for its arithmetic on f32 lanes, or for its bytes (the roofline model)."""
    arithmetic = count_flops(kernel) / (2 * machine.fma_per_cycle * machine.lanes(32))
    return max(arithmetic, count_bytes(kernel) / machine.l3_bytes_per_cycle)


def _loads(body: Block, limits: Limits, times: int) -> Iterator[tuple[Load, int, Limits]]:
    """Every load, how often it is performed, and the loops around it."""
    for stmt in body:
        trips, inner = _enter(ranges(stmt), limits)
        yield from _loads(blocks(stmt), inner, times * trips)
        for value in values(stmt):
            yield from ((e, times * trips, inner) for e in value.loads)


def _block(body: Block, limits: Limits) -> int:
    return sum(_statement(s, limits) for s in body)


def _statement(stmt: Stmt, limits: Limits) -> int:
    own = sum(_operations(e) for value in values(stmt) for e in value.parts)
    if isinstance(stmt, For):
        trips, inner = _enter((stmt.range,), limits)
        return trips * _block(stmt.body, inner)
    if isinstance(stmt, Reduce):
        trips, inner = _enter(stmt.ranges, limits)
        return trips * (_block(stmt.body, inner) + own + 1)
    return own


def _operations(e: scalar.Expr) -> int:
    if not isinstance(e, Call) or e.primitive in FREE or e.dtype.kind == "bool":
        return 0
    return 2 if e.primitive == "fma" else 1


def _enter(ranges: tuple[Range, ...], limits: Mapping[str, tuple[int, int]]) -> tuple[int, Limits]:
    """The number of points of `ranges`, and the limits of every variable inside them."""
    inner, trips = dict(limits), 1
    for r in ranges:
        extent, low, high = (interval(d, inner) for d in (r.extent, r.lo, r.hi))
        if extent is None or low is None or high is None:
            raise ValueError(f"the extent of %{r.var}, {r.extent}, is not known; specialize the kernel first")
        trips *= max(0, extent[1])
        inner[r.var] = (low[0], max(low[0], high[1] - 1))
    return trips, inner
