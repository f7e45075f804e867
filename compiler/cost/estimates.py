"""Operations, memory traffic and seconds of a kernel in scalar loops, counted from its Tile IR, and the roofline bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import prod

from compiler.analysis.accesses import count_divisions
from compiler.analysis.dot_match import products_at_once
from compiler.cost.machine import Machine
from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load, PrimitiveCall
from compiler.ir.symbolic.index_expr import Dim, evaluate, interval, product, variables
from compiler.ir.tile.contraction import adds_products
from compiler.ir.tile.kernel import (
    Block,
    For,
    Kernel,
    Let,
    Local,
    Param,
    Range,
    Reduce,
    Stmt,
    Store,
    dim_hint,
    loaded_buffers,
    stmt_body,
    stmt_exprs,
    stmt_ranges,
    symbolic_hint,
    walk,
)
from compiler.ir.tile.loop_nest import perfect_parallel_nest
from compiler.target import MatrixShape

FREE_PRIMITIVES = frozenset({"cast", "bitcast", "pack", "where", "and", "or", "xor", "not", "shl", "shr", "lshr"})
"""Primitives that do not count as arithmetic; neither do comparisons."""

TIE = 1 + 1e-12
"""Ratio up to which two estimates are equal: sums of the same parts in other orders are rounded differently."""

VariableBounds = dict[str, tuple[int, int]]


def count_flops(kernel: Kernel, sizes: Mapping[str, int] | None = None, dot_flops: int = 0) -> int:
    """Return the arithmetic operations of one call: two per fma and product of a dot, one per other function and reduced element.

    A loop whose extent depends on other loops counts with its largest extent.  `sizes` gives the values of dynamic
    sizes, by default their hints.  A dot product counts as `dot_flops` operations if that is not 0.  Raises ValueError if a loop has no constant extent for them.
    """
    return _block_flops(kernel.body, _size_bounds(kernel, sizes), dot_flops)


def _size_bounds(kernel: Kernel, sizes: Mapping[str, int] | None) -> VariableBounds:
    sizes = sizes or {}
    return {s.name: (sizes.get(s.name, s.hint),) * 2 for s in kernel.dynamic_sizes}


def count_bytes(kernel: Kernel, sizes: Mapping[str, int] | None = None) -> int:
    """Return the bytes of all buffers of one call: each counts once, or twice if it is both read and written.

    A buffer that is only gathered from, such as an embedding table, counts with the elements read.  `sizes` as in
    `count_flops`.
    """
    reads = Counter[str]()
    fully_read, size_bounds = set[str](), _size_bounds(kernel, sizes)
    for load, times, loops in _counted_loads(kernel.body, size_bounds, 1):
        is_gathered = any(v not in loops for d in load.index for v in variables(d))
        if is_gathered:
            reads[load.buffer] += times
        else:
            fully_read.add(load.buffer)
    total = 0
    for p in kernel.params:
        size = evaluate(p.type.nbytes, {name: n for name, (n, _) in size_bounds.items()})
        size *= 2 if p.role == "inout" else 1
        total += min(size, reads[p.name] * p.type.dtype.bytes) if reads[p.name] and p.name not in fully_read else size
    return total


def roofline_seconds(
    kernel: Kernel, machine: Machine, threads: int = 1, sizes: Mapping[str, int] | None = None
) -> float:
    """Return the seconds that `threads` cores need at least: for arithmetic, or for bytes from the smallest cache that holds them.

    A dot product takes as long as a multiply-add.  `sizes` as in `count_flops`.

    Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance Model", 2009.
    """
    size = count_bytes(kernel, sizes)
    arithmetic = machine.operation_seconds(count_flops(kernel, sizes, dot_flops=1) / 2)
    return max(arithmetic, machine.seconds(size / machine.bytes_per_cycle(size))) / threads


def unscheduled_seconds(
    kernel: Kernel, machine: Machine, reduction_seconds: float = 0.0, shapes: Collection[MatrixShape] = ()
) -> float:
    """Return the estimated seconds of a kernel in scalar loops: its operations, the bytes of its parameters, and its launches.

    The first two take longer where parallel iterations are too few, if they are enough to be shared at all.  If it is known how long
    reductions take (`reduction_seconds`), the operations of contractions do not count.  Dot products of `shapes` count once.
    """
    counted = ops_by_statement(kernel, machine, dim_hint, not reduction_seconds, shapes)
    ops = [dim_hint(d) for d in counted]
    traffic = sum(dim_hint(p.type.nbytes) * count_passes(kernel, p, machine) for p in kernel.params)
    seconds = machine.operation_seconds(sum(ops)) + machine.traffic_seconds(traffic)
    if seconds >= machine.parallel_seconds:
        nests = (perfect_parallel_nest((s,)) for s in kernel.body)
        idle = [machine.idle_factor(prod(dim_hint(f.range.extent) for f in nest)) for nest in nests]
        seconds *= sum(n * k for n, k in zip(ops, idle, strict=True)) / max(1, sum(ops))
    return max(seconds, reduction_seconds) + machine.launching_seconds(len(kernel.body))


def count_passes(kernel: Kernel, p: Param, machine: Machine) -> int:
    """Return how often a kernel goes through a buffer: for each loop that reads a row, if rows leave the second-level cache."""

    def passes(nest: Sequence[For]) -> int:
        row_bytes = dim_hint(p.type.nbytes) // max(1, prod(dim_hint(f.range.extent) for f in nest))
        if not nest or row_bytes <= machine.l2:
            return 1
        return max(1, sum(p.name in loaded_buffers((s,)) for s in nest[-1].body if stmt_ranges(s)))

    return max((passes(perfect_parallel_nest((s,))) for s in kernel.body), default=1)


def prefers_epilogue(machine: Machine, epilogue: float, operand: float) -> bool:
    """Return True if a value is best computed where its product ends, given the seconds of that and of computing it as an operand.

    Estimates leave out that blocks may compute operands again; it decides between equal ones.
    """
    return operand > (epilogue / TIE if machine.recomputes_operands else epilogue * TIE)


def estimated_ops(kernel: Kernel, machine: Machine) -> int:
    """Return the cost of `kernel` in operations under the size hints: primitives by `Primitive.cost`, plus memory accesses."""
    total = symbolic_ops(kernel, machine, dim_hint)
    assert isinstance(total, int)
    return total


def symbolic_ops(kernel: Kernel, machine: Machine, trip_count: Callable[[Dim], Dim] = symbolic_hint) -> Dim:
    """Return `estimated_ops` as a function of the dynamic sizes; `trip_count` gives the iterations of a loop extent."""
    return sum(ops_by_statement(kernel, machine, trip_count), start=0)


def ops_by_statement(
    kernel: Kernel,
    machine: Machine,
    trip_count: Callable[[Dim], Dim] = symbolic_hint,
    counts_contractions: bool = True,
    shapes: Collection[MatrixShape] = (),
) -> tuple[Dim, ...]:
    """Return the parts of `symbolic_ops` that each statement of the kernel's body has, without contractions if those do not count.

    Products that one instruction of `shapes` adds count as one.
    """
    types = {p.name: p.type for p in kernel.params}
    types |= {s.buffer: s.type for s in walk(kernel.body) if isinstance(s, Local)}
    looked_up = looked_up_names(kernel)

    def cost(value: Expr) -> int:
        masked = sum(e.mask is not None for e in value.loads)
        lookups = sum(
            bool(e.index) and not looked_up.isdisjoint(variables(e.index[-1])) for e in value.loads if looked_up
        )
        divided = sum(count_divisions(types[e.buffer].offset(e.index)) for e in value.loads)
        memory = len(value.loads) + (machine.masked_load_cost - 1) * masked + machine.division_ops * divided
        memory += (machine.lookup_ops - 1) * lookups
        return memory + sum(scalar.PRIMITIVES[e.primitive].cost for e in value.calls)

    def stmt_cost(stmt: Stmt) -> int:
        """Return the cost of a step of a statement; products that share operands compute those together."""
        own = sum(map(cost, stmt_exprs(stmt)))
        if not adds_products(stmt):
            return own
        if not counts_contractions:
            return 0
        if (count := products_at_once(kernel, stmt, shapes)) > 1:
            return max(1, own // count)
        if machine.operand_reuse == 1:
            return own
        return max(1, (own + sum(cost(e) for s in stmt.body for e in stmt_exprs(s))) // machine.operand_reuse)

    def block_cost(body: Block, repeat: Dim) -> Dim:
        total: Dim = 0
        straight_line = 0  # cost of the statements that are not loops
        for stmt in body:
            own = stmt_cost(stmt) + isinstance(stmt, Reduce)
            if isinstance(stmt, Store):
                own += 1 + machine.division_ops * count_divisions(types[stmt.buffer].offset(stmt.index))
            if ranges := stmt_ranges(stmt):
                times = repeat * product(trip_count(r.extent) for r in ranges)
                shares_body = adds_products(stmt) and machine.operand_reuse > 1
                total += times * own + (0 if shares_body else block_cost(stmt_body(stmt), times))
            else:
                straight_line += own
        return total + repeat * straight_line

    return tuple(block_cost((s,), 1) for s in kernel.body)


def looked_up_names(kernel: Kernel) -> set[str]:
    """Return the names bound to values that depend on loads, such as the rows of a gather."""
    names: set[str] = set()
    for s in walk(kernel.body):
        if isinstance(s, Let) and (s.value.loads or not names.isdisjoint(s.value.used_names)):
            names.add(s.name)
    return names


def _counted_loads(body: Block, bounds: VariableBounds, times: int) -> Iterator[tuple[Load, int, VariableBounds]]:
    """Yield every load, its number of executions, and the bounds of the variables around it."""
    for stmt in body:
        trips, inner = _enter_ranges(stmt_ranges(stmt), bounds)
        yield from _counted_loads(stmt_body(stmt), inner, times * trips)
        for value in stmt_exprs(stmt):
            yield from ((e, times * trips, inner) for e in value.loads)


def _block_flops(body: Block, bounds: VariableBounds, dot_flops: int) -> int:
    return sum(_statement_flops(s, bounds, dot_flops) for s in body)


def _statement_flops(stmt: Stmt, bounds: VariableBounds, dot_flops: int) -> int:
    own = sum(_expr_flops(e, dot_flops) for value in stmt_exprs(stmt) for e in value.subexprs)
    trips, inner = _enter_ranges(stmt_ranges(stmt), bounds)
    return trips * (_block_flops(stmt_body(stmt), inner, dot_flops) + own + isinstance(stmt, Reduce))


def _expr_flops(e: scalar.Expr, dot_flops: int) -> int:
    if not isinstance(e, PrimitiveCall) or e.primitive in FREE_PRIMITIVES or e.dtype.kind == "bool":
        return 0
    if e.primitive == "dot":
        return dot_flops or 2 * e.operands[0].dtype.count - 1
    return 2 if e.primitive == "fma" else 1


def _enter_ranges(ranges: tuple[Range, ...], bounds: Mapping[str, tuple[int, int]]) -> tuple[int, VariableBounds]:
    """Return the largest iteration count of `ranges` and the bounds of all variables inside; ValueError if unknown."""
    inner, trips = dict(bounds), 1
    for r in ranges:
        extent, low, high = (interval(d, inner) for d in (r.extent, r.lo, r.hi))
        if extent is None or low is None or high is None:
            raise ValueError(f"the extent of loop %{r.var}, {r.extent}, is dynamic; specialize the kernel first")
        trips *= max(0, extent[1])
        inner[r.var] = (low[0], max(low[0], high[1] - 1))
    return trips, inner
