"""Contractions of a kernel as matrix products: which loops are rows, columns and depth, and what limits them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from compiler.analysis.accesses import Accesses, count_divisions
from compiler.analysis.contiguous_loops import contiguous_loops
from compiler.analysis.local_blocks import row_loops
from compiler.cost.gpu_product import MIN_BLOCK, MatrixProduct, ProductBlock, best_block, best_blocks
from compiler.cost.machine import GPU
from compiler.ir.scalar import Const, Expr, Load, PrimitiveCall
from compiler.ir.symbolic.index_expr import Dim, interval, size_hint, substitute, var, variables
from compiler.ir.tile.contraction import Contraction, contraction_of
from compiler.ir.tile.kernel import For, Kernel, Range, Reduce, dim_hint, is_parallel_loop, walk
from compiler.target import MATRIX_DTYPES


@dataclass(frozen=True)
class ProductLoops:
    """A contraction as a matrix product, and its loops: over rows, columns and depth; `exchanged` if the right factor has the rows."""

    product: MatrixProduct
    loops: tuple[Range, Range, Range]
    serial: tuple[Range, ...]
    exchanged: bool

    def pipelined_loop(self, depth: int) -> Range | None:
        """Return the loop that loads are pipelined along: over the depth, unless one block of `depth` covers it."""
        if block_extent(self.loops[-1]) > depth:
            return self.loops[-1]
        return self.serial[-1] if self.serial else None


def product_loops(table: Accesses, c: Contraction, transposed: bool = False) -> ProductLoops | str:
    """Return a contraction as a matrix product of the longest loops of each kind, or the reason why it is none.

    The left factor has the rows if blocks have been chosen for all loops; else results are neighbours in memory along columns, or these are
    the inner loop.  `transposed` exchanges rows and columns.
    """
    a, b = (dependent_loops(table, e) for e in (c.lhs, c.rhs))
    operands = c.matrix_operands(MATRIX_DTYPES)
    if operands is None:
        return f"no matrix unit multiplies {c.lhs.dtype}"
    reduced = c.reduction.ranges
    around = [r for r in table.loops[reduced[0].var][2] if r.extent != 1]
    row = longest([r for r in around if r.var in a - b])
    column = longest([r for r in around if r.var in b - a])
    depth = longest([r for r in reduced if r.var in a & b and r.extent != 1])
    if row is None or column is None or depth is None:
        return "no reuse of an operand"
    is_scheduled = all(r.tile > 1 for r in (row, column, depth))
    exchanged = transposed != (not is_scheduled and has_rows_inside(table, row, column))
    if exchanged:
        row, column, operands = column, row, operands[::-1]
    if any(r.tile > 1 and r.var in a & b for r in around):
        return "both operands depend on a tiled loop"
    dtype, loops = operands[0].dtype, (row, column, depth)
    serial = tuple(r for r in around if r not in loops and not is_parallel(table, r))
    rows, columns, steps = map(block_extent, loops)
    product = MatrixProduct(
        rows,
        columns,
        steps,
        dtype="tf32" if c.is_tf32 else dtype.name,
        element_bytes=dtype.bytes,
        result_bytes=result_bytes(table, {row.var, column.var}) or c.accumulator.bytes,
        batch=prod(block_extent(r) for r in around if r not in (*loops, *serial)),
        repeats=prod(mean_extent(table, r) for r in (*serial, *reduced) if r is not depth),
        lhs_neighbours=neighbours(table, operands[0], depth, row),
        rhs_neighbours=neighbours(table, operands[1], depth, column),
        lhs_gathered=gathered_loads(table, operands[0]),
        rhs_gathered=gathered_loads(table, operands[1]),
        lhs_computed=is_computed(table, operands[0]),
        rhs_computed=is_computed(table, operands[1]),
        lhs_held=is_held(table, operands[0], column),
        rhs_held=is_held(table, operands[1], row),
        lhs_repeated=not dependent_loops(table, operands[0]) & {r.var for r in (*serial, *reduced) if r is not depth},
        epilogue_ops=epilogue_ops(table, c, {row.var, column.var}),
        read_bytes=sum(dim_hint(table.types[b].nbytes) for b in loaded_params(table, operands)),
    )
    return ProductLoops(product, loops, (*serial, *(r for r in reduced if r is not depth)), exchanged)


def has_rows_inside(table: Accesses, row: Range, column: Range) -> bool:
    """Return True if results are neighbours along the rows instead of the columns, or else if the loop over rows is the inner one."""
    contiguous = contiguous_loops(table.kernel)
    if row.var in contiguous and column.var in contiguous and contiguous[row.var] != contiguous[column.var]:
        return contiguous[row.var]
    order = list(table.loops)
    return order.index(row.var) > order.index(column.var)


def is_parallel(table: Accesses, r: Range) -> bool:
    """Return True if `r` is the range of a parallel loop."""
    stmt = table.loops[r.var][1]
    return is_parallel_loop(stmt)


def neighbours(table: Accesses, operand: Expr, depth: Range, side: Range) -> str:
    """Return "depth" or "side" if elements of an operand's buffers are neighbours in memory along that loop, else "".

    Loads that do not depend on both loops are shorter, as those of a bias, and do not count.
    """
    loads = [x for x in operand.loads if table.roles[x.buffer] != "local"]
    loads = [x for x in loads if {depth.var, side.var} <= set[str]().union(*map(variables, x.index))] or loads

    def steps_by_one(x: Load, v: str) -> bool:
        offset = table.types[x.buffer].offset(x.index)
        following = substitute(offset, {v: var(v) + 1}) - offset
        return following == 1 or value_at_zero(following) == 1

    along = {"depth": depth.var, "side": side.var}
    return next(
        (kind for kind, v in along.items() if loads and all(steps_by_one(x, v) for x in loads)),
        "" if loads else "depth",
    )


def loaded_params(table: Accesses, operands: Iterable[Expr]) -> set[str]:
    """Return the parameters that operands are loaded from."""
    return {x.buffer for e in operands for x in e.loads if table.roles[x.buffer] != "local"}


def gathered_loads(table: Accesses, operand: Expr) -> int:
    """Return the loads of an operand with a mask or an address with divisions, of which no thread loads several elements at once."""
    loads = {x for x in operand.loads if table.roles[x.buffer] != "local"}
    return sum(x.mask is not None or count_divisions(table.types[x.buffer].offset(x.index)) > 0 for x in loads)


def is_computed(table: Accesses, operand: Expr) -> bool:
    """Return True if an operand is more than what a parameter has in memory, or 0 where a mask leaves that out."""
    if isinstance(operand, PrimitiveCall) and operand.primitive == "where":
        _, inside, outside = operand.operands
        masked = isinstance(inside, Load) and inside.mask is not None
        return not (masked and isinstance(outside, Const) and outside.value == 0) or is_computed(table, inside)
    return not isinstance(operand, Load) or table.roles[operand.buffer] == "local"


def is_held(table: Accesses, operand: Expr, side: Range) -> bool:
    """Return True if an operand is in local buffers of a program that iterates over the `side` of the other operand."""
    return not is_parallel(table, side) and any(table.roles[x.buffer] == "local" for x in operand.loads)


def value_at_zero(d: Dim) -> Dim:
    """Return the value of an index where all loops are at their start."""
    return substitute(size_hint(d), dict.fromkeys(variables(d), 0))


def result_bytes(table: Accesses, loops: set[str]) -> int:
    """Return the bytes that are stored to parameters for each result: once in every iteration of `loops`."""
    stores = (a for a in table.all if a.is_store and table.roles[a.buffer] != "local")
    return sum(table.types[a.buffer].dtype.bytes for a in stores if loops <= a.loop_vars)


def epilogue_ops(table: Accesses, c: Contraction, loops: set[str]) -> int:
    """Return the operations on each result, after the contraction."""
    operations = ((around, n) for around, n in table.arithmetic if loops <= {r.var for r in around})
    return sum(n for around, n in operations if c.reduction.ranges[0] not in around)


def dependent_loops(table: Accesses, e: Expr) -> frozenset[str]:
    """Return the loops that a value depends on, including those around the local buffers it reads."""
    local_buffers = {x.buffer for x in e.subexprs if isinstance(x, Load) and table.roles[x.buffer] == "local"}
    return table.varying_loops(e).union(*(table.local_scopes[b] for b in local_buffers))


def oversized_product(kernel: Kernel, gpu: GPU) -> str:
    """Return which product has no block that fits, because a block has whole rows of local buffers; "" if there is none."""
    table = Accesses(kernel)
    rows = row_loops(table)
    for c in filter(None, map(contraction_of, walk(kernel.body) if rows else ())):
        found = product_loops(table, c)
        if isinstance(found, ProductLoops):
            sides = [row_tile(block_extent(r)) if r.var in rows else 0 for r in found.loops]
            if not best_blocks(found.product, gpu, ProductBlock(sides[0], sides[1], sides[2], 0, 0)):
                return f"no block of %{c.reduction.name} fits that has whole rows of local buffers"
    return ""


def reduction_seconds(kernel: Kernel, gpu: GPU) -> float:
    """Return the seconds that the reductions of an unscheduled kernel take at least.

    A product takes as long as its best blocks, as if the layout of a constant were free: inside loops that are no loops of blocks,
    as in a sum of its results, it has few blocks or is repeated.  Another reduction inside a serial loop waits for memory in each
    of its iterations.
    """
    table, seconds = Accesses(kernel), 0.0
    for s in (s for s in walk(kernel.body) if isinstance(s, Reduce)):
        contraction = contraction_of(s)
        found = product_loops(table, contraction) if contraction else ""
        if isinstance(found, ProductLoops):
            best = best_block(replace(found.product, epilogue_ops=0, rhs_neighbours="side"), gpu)
            seconds += best[1].seconds if best else 0.0
        else:
            serial = [
                r
                for r in table.loops[s.ranges[0].var][2]
                if isinstance(table.loops[r.var][1], For) and not is_parallel(table, r)
            ]
            steps = prod(mean_extent(table, r) for r in serial)
            seconds += gpu.seconds(gpu.load_latency * (steps if serial else 0))
    return seconds


def row_tile(extent: int) -> int:
    """Return the side of a block that covers a row: a power of two that `tl.dot` multiplies."""
    return max(MIN_BLOCK, next_power_of_2(extent))


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()


def block_extent(r: Range) -> int:
    """Return the extent of a loop, by its size hints if it is dynamic."""
    return max(1, dim_hint(r.extent))


def mean_extent(table: Accesses, r: Range) -> int:
    """Return the extent of a loop, half-way between the shortest and the longest where outer loops bound it."""
    bounds = interval(size_hint(r.extent), table.loop_bounds) if variables(r.extent) else None
    return block_extent(r) if bounds is None else max(1, sum(bounds) // 2)


def longest(loops: Sequence[Range]) -> Range | None:
    """Return the innermost tiled loop, else the innermost that fills a block, else the longest; None if there are no loops."""
    return max(reversed(loops), key=lambda r: (r.tile > 1, min(block_extent(r), FILLED_EXTENT)), default=None)


FILLED_EXTENT = 64
"""Extent from which on the innermost loop is tiled rather than a longer one further out: accesses stay contiguous."""
