"""Time of a matrix product on a GPU, as a function of its blocks.

A multiprocessor runs one block after another, or a few side by side (`compiler.cost.gpu_occupancy`).  A step of a block takes as
long as the busiest of matrix units, shared memory and last cache, and at least the latency of memory divided by the steps
that are under way.  The blocks of the last wave leave processors idle, and memory limits them all together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, inf

from compiler.cost.gpu_fma import ThreadBlock
from compiler.cost.gpu_occupancy import BlockResources, resident_blocks
from compiler.cost.machine import GPU

MIN_BLOCK = 16
"""Smallest extent of a block that Triton's `tl.dot` multiplies on every GPU."""

MAX_DEPTH_BYTES, MAX_SIDE = 128, 256
"""Most bytes of a row of an operand's block, which is one swizzled line of shared memory, and most rows or columns: bounds compile time."""

MAX_KEPT_DEPTH = 128
"""Most steps of a sum in one block, of a product that is repeated: the width of a head of attention."""

MAX_STAGES = 5
"""Most stages: bounds compile time."""


@dataclass(frozen=True)
class MatrixProduct:
    """A batch of sums of `repeats` products (rows, depth) times (depth, columns).

    Operands have `dtype`, whose elements take `element_bytes`; a result takes `result_bytes`.  Elements of an operand that
    are neighbours in memory follow each other along its "depth", its "side", or neither (""); each
    element of the `gathered` loads of an operand has an address of its own, a computed one is no copy of memory, a repeated one is the same in all `repeats`.  A `held` operand
    is in registers of the program that computed it, which multiplies it by one block of the other operand after another.  `epilogue_ops` operations follow
    for each result.  The buffers of both operands have `read_bytes`, fewer than the operands where windows overlap; 0 if they are as large.
    """

    rows: int
    columns: int
    depth: int
    dtype: str
    element_bytes: int
    result_bytes: int
    batch: int = 1
    repeats: int = 1
    lhs_neighbours: str = "depth"
    rhs_neighbours: str = "depth"
    lhs_gathered: int = 0
    rhs_gathered: int = 0
    lhs_repeated: bool = False
    lhs_computed: bool = False
    rhs_computed: bool = False
    lhs_held: bool = False
    rhs_held: bool = False
    epilogue_ops: int = 0
    read_bytes: int = 0

    def keeps_lhs(self, depth: int) -> bool:
        """Return True if a block of `depth` steps of the left operand stays for all repeats."""
        return self.lhs_repeated and self.repeats > 1 and depth >= self.depth

    def in_parts(self, parts: int, along_depth: bool, partial_bytes: int) -> MatrixProduct:
        """Return the product with the sum split into parts that are stored as `partial_bytes` each."""
        if parts == 1:
            return self
        depth, repeats = (self.depth // parts, self.repeats) if along_depth else (self.depth, self.repeats // parts)
        return replace(
            self, depth=depth, repeats=repeats, batch=self.batch * parts, result_bytes=partial_bytes, epilogue_ops=0
        )

    @property
    def operand_bytes(self) -> int:
        """Bytes of both operands in memory."""
        return (
            self.read_bytes or self.batch * (self.rows + self.columns) * self.depth * self.repeats * self.element_bytes
        )


@dataclass(frozen=True, order=True)
class ProductBlock:
    """Block of a program: its results, the steps of a sum that it takes at once, its warps, and stages of the pipeline of loads."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 1

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns} x {self.depth}, {self.warps} warps, {self.stages} stages"


@dataclass(frozen=True)
class BlockCost:
    """Estimate of a block shape: seconds of the product, what limits it, blocks in all and at once, and registers of a thread."""

    seconds: float
    limit: str
    blocks: int
    resident: int
    resources: BlockResources

    @property
    def nanoseconds(self) -> int:
        """Seconds in whole nanoseconds, by which blocks are compared."""
        return round(self.seconds * 1e9)

    def __str__(self) -> str:
        return (
            f"{self.seconds * 1e6:.1f} us by {self.limit}, {self.blocks} blocks, {self.resident} on a multiprocessor, "
            f"{self.resources.registers} registers, {self.resources.shared_bytes >> 10} KiB shared"
        )


def warp_grid(b: ProductBlock, gpu: GPU) -> tuple[int, int]:
    """Return how many groups of warps share the rows of a block, and its columns; a group issues matrix instructions together."""
    groups = max(1, b.warps // gpu.matrix_warps)
    down = max(1, min(groups, b.rows // gpu.matrix_rows))
    return down, groups // down


def shared_cycles(b: ProductBlock, p: MatrixProduct, gpu: GPU) -> float:
    """Return the cycles in which warps read the operands of one step from shared memory, those that they share several times."""
    if multiplies_in_registers(p, gpu):
        threads = ThreadBlock.of(b.rows, b.columns, b.warps, gpu)
        rows = threads.row_cycles(p.lhs_neighbours != "depth")
        is_copied = b.stages > 1 and not p.rhs_computed and not p.rhs_gathered
        is_transposed = is_copied and p.rhs_neighbours == "depth"
        columns = threads.column_cycles(is_transposed)
        return b.warps * b.depth * (rows + columns)
    down, across = warp_grid(b, gpu)
    if reads_shared_memory(b, p, gpu):  # each instruction reads all columns for its rows
        down, across = b.rows // gpu.matrix_rows, 1
    read = (b.rows * across + b.columns * down) * b.depth * p.element_bytes
    return read / gpu.shared_bytes_per_cycle


def loaded_bytes(b: ProductBlock, p: MatrixProduct, gpu: GPU) -> float:
    """Return the bytes that the cache delivers for a step: whole lines, of which short rows of a block use a part."""

    def operand(side: int, neighbours: str) -> float:
        row = {"depth": b.depth, "side": side}.get(neighbours, 1) * p.element_bytes
        return side * b.depth * p.element_bytes * max(1.0, gpu.line_bytes / row)

    rows = 0.0 if p.keeps_lhs(b.depth) else operand(b.rows, p.lhs_neighbours)
    return rows + operand(b.columns, p.rhs_neighbours)


def chain_cycles(b: ProductBlock, p: MatrixProduct, gpu: GPU) -> float:
    """Return the cycles of a warp without matrix unit for a step: every step of the sum waits for shared memory."""
    if not multiplies_in_registers(p, gpu):
        return 0.0
    return b.depth * ThreadBlock.of(b.rows, b.columns, b.warps, gpu).chain_cycles(gpu.shared_latency)


def address_cycles(b: ProductBlock, p: MatrixProduct, gpu: GPU) -> float:
    """Return the cycles in which threads compute the addresses of the gathered operands of a step, one for each element."""
    elements = b.depth * (b.rows * p.lhs_gathered + b.columns * p.rhs_gathered)
    return gpu.address_operations * elements / (gpu.vector_flops / 2)


def matrix_rate(b: ProductBlock, p: MatrixProduct, gpu: GPU) -> float:
    """Return the operations in a cycle: fewer where a block has too few rows for the instruction with the full rate."""
    return gpu.matrix_flops(p.dtype) * (1 if b.rows >= gpu.matrix_rows else gpu.few_rows_share)


def multiplies_in_registers(p: MatrixProduct, gpu: GPU) -> bool:
    """Return True if no matrix unit multiplies the operands of a product."""
    return p.dtype == "f32" and not gpu.has_matrix_f32


def reads_shared_memory(b: ProductBlock, p: MatrixProduct, gpu: GPU) -> bool:
    """Return True if matrix units read the operands of a block from shared memory, so that they take no registers."""
    in_unit = gpu.loads_matrices_from_shared and not multiplies_in_registers(p, gpu)
    return in_unit and b.rows >= gpu.matrix_rows and b.warps >= gpu.matrix_warps


def block_resources(b: ProductBlock, p: MatrixProduct, gpu: GPU, persistent: bool = False) -> BlockResources:
    """Return the shared memory of the stages, and the registers that accumulators, operands and addresses take.

    A `persistent` program has addresses of two blocks, and a block of results in shared memory beside the stages.
    """
    threads = b.warps * gpu.warp_threads
    accumulators = b.rows * b.columns * max(1, p.result_bytes // 4 if p.dtype == "f64" else 1) / threads
    staged = b.stages * b.columns + (1 if p.keeps_lhs(b.depth) else b.stages) * b.rows
    fragments = float(p.epilogue_ops * gpu.epilogue_registers)
    if multiplies_in_registers(p, gpu):
        computed = b.rows * p.lhs_computed + b.columns * p.rhs_computed
        fragments += gpu.fma_operand_registers * accumulators + 2 * computed * b.depth / threads
    elif not reads_shared_memory(b, p, gpu):
        down, across = warp_grid(b, gpu)
        fragments += (b.rows / down + b.columns / across) * MIN_BLOCK * p.element_bytes / 4 / gpu.warp_threads
    sides = (b.rows, p.lhs_gathered), (b.columns, p.rhs_gathered)
    elements = (side * (2 * gathered or p.element_bytes / gpu.access_bytes) for side, gathered in sides)
    addresses = 2 * sum(elements) * b.depth / threads
    registers, shared = accumulators + fragments + addresses + gpu.base_registers, staged * b.depth * p.element_bytes
    if persistent:
        registers += addresses + gpu.persistent_registers
        shared += b.rows * b.columns * p.result_bytes
    return BlockResources(b.warps, ceil(registers), shared)


def product_cost(p: MatrixProduct, b: ProductBlock, gpu: GPU, persistent: bool = False) -> BlockCost:
    """Return the estimate of a product in blocks `b`; infinite seconds for a block that does not fit.

    A `persistent` program loads operands of its next block while it stores results.
    """
    used = block_resources(b, p, gpu, persistent)
    down, across = ceil(p.rows / b.rows), ceil(p.columns / b.columns)
    in_turn = (across if p.lhs_held else 1) * (down if p.rhs_held else 1)
    blocks = p.batch * down * across // in_turn
    fitting = resident_blocks(used, gpu)
    if not fitting or not gpu.matrix_flops(p.dtype):
        return BlockCost(inf, "resources", blocks, 0, used)
    rounds = ceil(blocks / gpu.multiprocessors)  # blocks that the busiest multiprocessor runs
    resident = min(fitting, rounds)
    steps = ceil(p.depth / b.depth) * p.repeats
    loaded = loaded_bytes(b, p, gpu)
    busy = {
        "matrix units": 2 * b.rows * b.columns * b.depth / matrix_rate(b, p, gpu),
        "shared memory": shared_cycles(b, p, gpu),
        "addresses": address_cycles(b, p, gpu),
        "cache": loaded / gpu.l2_bytes_per_cycle,
        "latency": (gpu.load_latency / max(1, b.stages - 1) + chain_cycles(b, p, gpu)) / resident,
    }
    step = sum(cycles**gpu.unit_overlap for cycles in busy.values()) ** (1 / gpu.unit_overlap)
    computed = b.depth * (b.rows * p.lhs_computed + b.columns * p.rhs_computed)
    step += gpu.step_cycles / resident + gpu.computed_cycles * computed
    stored = b.rows * b.columns * p.result_bytes / gpu.l2_bytes_per_cycle
    ends = gpu.load_latency + loaded / gpu.l2_bytes_per_cycle
    processor = gpu.seconds(
        rounds * in_turn * (steps * step + stored) + (1 if persistent else ceil(rounds / resident)) * ends
    )
    memory = (p.operand_bytes + p.batch * p.rows * p.columns * p.result_bytes) / gpu.memory_bytes_per_second
    limit = "memory" if memory > processor else max(busy, key=busy.__getitem__)
    return BlockCost(max(processor, memory), limit, blocks, resident, used)


def candidate_blocks(p: MatrixProduct, gpu: GPU, fixed: ProductBlock) -> Iterator[ProductBlock]:
    """Yield blocks of powers of two that are not much larger than the product; fields of `fixed` that are not 0 stay."""
    sides = [side_candidates(n, MAX_SIDE) for n in (p.rows, p.columns)]
    depths = side_candidates(p.depth, max(MIN_BLOCK, MAX_DEPTH_BYTES // p.element_bytes))
    if p.keeps_lhs(p.depth) and p.depth <= MAX_KEPT_DEPTH and not multiplies_in_registers(p, gpu):
        depths += [n for n in side_candidates(p.depth, MAX_KEPT_DEPTH) if n > depths[-1]]
    choices = [*sides, depths]
    given = (fixed.rows, fixed.columns, fixed.depth)
    choices = [[side] if side else options for side, options in zip(given, choices, strict=True)]
    warps = [fixed.warps] if fixed.warps else [w for w in (4, 8, 16) if w <= gpu.max_warps]
    for rows, columns, depth in product(*choices):
        steps = ceil(p.depth / depth)
        deepest = min(
            MAX_STAGES, steps // 2 if steps > 1 else p.repeats // 4
        )  # of the innermost loop, which is not all of the repeats
        deepest = max(2, deepest) if steps * p.repeats > 1 else 1
        # without a pipeline operands pass through registers; two blocks wait for the matrix units that read a third
        fewest = 1 if multiplies_in_registers(p, gpu) else 3 if gpu.loads_matrices_from_shared else 2
        stages = [fixed.stages] if fixed.stages else range(min(fewest, deepest), deepest + 1)
        yield from (ProductBlock(rows, columns, depth, w, s) for w, s in product(warps, stages))


ANY_BLOCK = ProductBlock(0, 0, 0, 0, 0)
"""Nothing fixed."""


def side_candidates(extent: int, most: int) -> list[int]:
    """Return the powers of two from `MIN_BLOCK` up to `most`, none beyond the first that covers `extent`."""
    sides = [MIN_BLOCK]
    while sides[-1] < min(extent, most):
        sides.append(2 * sides[-1])
    return sides


@lru_cache(maxsize=4096)
def best_block(p: MatrixProduct, gpu: GPU, fixed: ProductBlock = ANY_BLOCK) -> tuple[ProductBlock, BlockCost] | None:
    """Return the block of least estimated time, see `best_blocks`; None if no block fits."""
    return next(iter(best_blocks(p, gpu, fixed)), None)


def best_blocks(p: MatrixProduct, gpu: GPU, fixed: ProductBlock = ANY_BLOCK) -> list[tuple[ProductBlock, BlockCost]]:
    """Return the blocks that fit, the best first, of equal ones those with wide loads, least shared memory and warps."""
    costs = ((b, product_cost(p, b, gpu)) for b in candidate_blocks(p, gpu, fixed))
    fitting = [(b, cost) for b, cost in costs if cost.seconds < inf]

    def rank(found: tuple[ProductBlock, BlockCost]) -> tuple[int, bool, int, int]:
        block, cost = found
        return cost.nanoseconds, loads_narrowly(block, p, gpu), cost.resources.shared_bytes, block.warps

    return sorted(fitting, key=rank)


def loads_narrowly(b: ProductBlock, p: MatrixProduct, gpu: GPU) -> bool:
    """Return True if a step has less of the larger operand for each thread than the widest access moves."""
    side = b.columns if p.columns > p.rows else b.rows
    return side * b.depth * p.element_bytes < b.warps * gpu.warp_threads * gpu.access_bytes
