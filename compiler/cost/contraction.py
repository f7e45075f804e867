"""Cost model of register-tiled contractions: cycles from the instructions that each reduction step issues.

A tile of `rows` x `registers` accumulators does rows * registers multiply-adds per step, or what stands in place of one.  It loads `registers` vectors,
prefetches the lines of later ones, and broadcasts `rows` scalars.  The step takes the longest of: issuing the
multiply-adds, issuing the loads, and the latency of one multiply-add (each accumulator waits for its last value).
See Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008, and Low et al., "Analytical
Modeling Is Enough for High-Performance BLIS", 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm, log2

from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.cost.shuffles import MIN_TRANSPOSE_BLOCK


@dataclass(frozen=True)
class RegisterTile:
    """A block of accumulators: `rows` rows of `registers` vector registers each."""

    rows: int
    registers: int


@dataclass(frozen=True)
class OperandWindow:
    """An operand that each accumulator reads privately, as the image of a depthwise convolution.

    Rows start `stride` elements apart.  Each reads `taps` elements, `dilation` apart; other rows may read them too.
    """

    stride: int = 1
    taps: int = 1
    dilation: int = 1

    def positions(self, rows: int) -> int:
        """Return the number of distinct elements that the taps of `rows` rows read."""
        divisor = gcd(self.stride, self.dilation) or 1
        step, gap = self.stride // divisor, self.dilation // divisor
        # tap t + step of row r - gap reads what tap t of row r does
        return rows * self.taps - max(0, rows - gap) * max(0, self.taps - step)

    def loads(self, rows: int) -> float:
        """Return the loads per reduction step and vector of `rows` rows; 0 without taps."""
        return self.positions(rows) / max(self.taps, 1)

    def live_registers(self, rows: int, contiguous_rows: bool = False) -> int:
        """Return the registers that hold window elements of `rows` rows for later taps: one each, at most two per row.

        With `contiguous_rows`, which stay in the first-level cache, a quarter of the rows reload theirs instead.
        """
        return -(-3 * rows // 4) if contiguous_rows else min(self.positions(rows), 2 * rows)


@dataclass(frozen=True)
class ContractionProblem:
    """One contraction: `columns` in vectors of `lanes`, reduction length `depth`, and `multiply_adds` in total.

    `private_windows`: operands that each accumulator reads privately.
    `row_stride`: bytes between rows of the shared operand, 0 if unknown; `element_bytes`: size of its elements.
    `tap_windows`: elements that unrolled taps of rows read, of which rows may share some.
    `row_unit`: rows of a tile are a multiple of it, because loops inside are tiled whole.
    `lane_stride`: bytes between results of neighbouring lanes if those of rows are contiguous; 0 if those of lanes are.
    `results_per_column`: contiguous results that a row has per column, each in a vector of its own.
    `unpacked`: the operand along lanes is not packed, so a tile skips the columns of other tiles in memory.
    `panel_stride`: bytes between its steps in memory, 0 if it is packed.
    `operations`: arithmetic of a step of each accumulator, 1 for a multiply-add.
    `sums`: accumulators of each result, more than one if the sum is part of others inside the lane loop; `column_sums`: those
    of all rows of a column, which another sum adds.
    `vector_registers`: those of each vector of the operand along lanes, two if several steps read parts of one word.
    `row_operations`: operations of a step that bring a scalar to the lanes of a row's operand, which all vectors share.
    """

    columns: int
    lanes: int
    depth: int
    multiply_adds: int
    private_windows: tuple[OperandWindow, ...] = ()
    row_stride: int = 0
    element_bytes: int = 4
    tap_windows: tuple[OperandWindow, ...] = ()
    row_unit: int = 1
    lane_stride: int = 0
    results_per_column: int = 1
    unpacked: bool = False
    panel_stride: int = 0
    operations: int = 1
    sums: int = 1
    column_sums: int = 0
    vector_registers: int = 1
    row_operations: int = 0

    def has_contiguous_rows(self, w: OperandWindow) -> bool:
        """Return True if neighbouring rows of `w` are at most a cache line per element of stride apart."""
        return 0 < self.row_stride <= CACHE_LINE_BYTES * w.stride

    def taps_overlap(self, rows: int) -> bool:
        """Return True if unrolled taps of one of `rows` rows read elements of other rows."""
        return any(w.positions(rows) < rows * w.taps for w in self.tap_windows)

    @property
    def column_vectors(self) -> int:
        """Number of vectors of all columns."""
        return -(-self.columns // self.lanes) * self.results_per_column


def step_cycles(
    rows: int,
    registers: int,
    machine: Machine,
    from_l2: bool = False,
    private_windows: Sequence[OperandWindow] = (),
    far_bytes: int = 0,
    operations: int = 1,
    row_operations: int = 0,
) -> float:
    """Return the cycles of one reduction step of a tile.

    `operations`: those of each accumulator; `row_operations`: those of each row.  `from_l2`: the vectors come from the second-level cache.
    `far_bytes`: bytes per row and step that do too.
    """
    fma = rows * registers / machine.fma_per_cycle
    if operations > 1 and not row_operations:
        row_operations = 1  # a broadcast is then no operand of a multiply-add but an operation of its own
    if row_operations:
        own = rows * (registers * operations + row_operations)
        fma = max(fma, own / (machine.vector_unit_ratio * machine.fma_per_cycle))
    vector_bytes = registers * machine.vector_bits / 8
    if private_windows:
        loads = registers + sum(w.loads(rows) for w in private_windows) * registers
    else:
        loads = registers + vector_bytes / CACHE_LINE_BYTES + rows * machine.loads_per_broadcast  # with prefetches
    panels = vector_bytes / machine.l2_bytes_per_cycle if from_l2 else 0.0
    lines = rows * far_bytes / machine.l2_bytes_per_cycle if not private_windows else 0.0
    busy = max(fma, loads / machine.loads_per_cycle, machine.fma_latency, panels)
    return busy + machine.loop_overhead + machine.panel_stall_share * panels + machine.row_stall_share * lines


def store_cycles(rows: int, registers: int, problem: ContractionProblem, machine: Machine) -> float:
    """Return the cycles to store the results of a tile whose rows, not lanes, are contiguous; 0 for other tiles.

    They are transposed in registers if there are enough rows.  A shuffle costs one multiply-add, a store two.
    """
    if not problem.lane_stride:
        return 0.0
    rows, registers = rows * problem.results_per_column, registers // problem.results_per_column
    evicted = problem.lanes * registers > resident_lines(problem.lane_stride, machine)
    remainder = rows % problem.lanes
    single_rows = remainder if remainder < MIN_TRANSPOSE_BLOCK else 0
    transposed_rows = rows - single_rows
    each = 0.0
    for r in range(0, transposed_rows, problem.lanes):
        side = min(problem.lanes, transposed_rows - r)
        width = 1 << (side - 1).bit_length()
        divides_line = CACHE_LINE_BYTES % (side * problem.element_bytes) == 0
        row = machine.row_store_cost if divides_line else machine.unaligned_row_store_cost
        each += width * log2(width) + problem.lanes * (machine.evicted_row_store_cost if evicted else row)
    element = machine.evicted_element_store_cost if evicted else machine.element_store_cost
    each += single_rows * problem.lanes * element
    return registers * each / machine.fma_per_cycle


def hides_loop_overhead(block: RegisterTile, machine: Machine) -> bool:
    """Return True if all instructions of a reduction step can issue while its multiply-adds execute."""
    fma = block.rows * block.registers
    broadcasts = 0 if machine.has_embedded_broadcast and block.registers == 1 else block.rows
    cycles = max(fma / machine.fma_per_cycle, machine.fma_latency)
    prefetches = 1
    instructions = fma + broadcasts + block.registers + prefetches + machine.step_instructions
    return instructions <= cycles * machine.instructions_per_cycle


def total_cycles(rows: int, problem: ContractionProblem, block: RegisterTile, machine: Machine) -> float:
    """Return the cycles per reduction step summed over all tiles of the result, with partial tiles and stores."""
    full_r, part_r = divmod(rows, block.rows)
    rows_share_lines = 0 < problem.row_stride < CACHE_LINE_BYTES
    exceeds_l1 = rows * problem.depth * problem.element_bytes > machine.l1 // 2
    far_bytes = problem.element_bytes if exceeds_l1 and not rows_share_lines else 0
    full_c, part_c = divmod(problem.column_vectors, block.registers)
    total = 0.0
    for r, times_r in ((block.rows, full_r), (part_r, 1 if part_r else 0)):
        for c, times_c in ((block.registers, full_c), (part_c, 1 if part_c else 0)):
            if times_r and times_c:
                from_l2 = reloads_panels(c, problem, machine)
                own = problem.operations, problem.row_operations
                step = step_cycles(r, c, machine, from_l2, problem.private_windows, far_bytes, *own)
                total += times_r * times_c * (step + store_cycles(r, c, problem, machine) / max(1, problem.depth))
    return total * (1 + machine.partial_tile_penalty * (bool(part_r and full_r) + bool(part_c and full_c)))


def reloads_panels(registers: int, problem: ContractionProblem, machine: Machine) -> bool:
    """Return True if the vectors of a tile leave the first-level cache before its next rows: too many, or in too few sets."""
    steps = resident_lines(problem.panel_stride, machine) if problem.panel_stride else problem.depth
    return problem.depth > steps or problem.depth * registers * machine.vector_bits // 8 > machine.l1 // 2


def best_tiles(rows: int, problems: Sequence[ContractionProblem], machine: Machine) -> list[RegisterTile]:
    """Return the best tiles of equal height for contractions that share their rows: the first of `ranked_tiles`."""
    return ranked_tiles(rows, problems, machine)[0]


def cycles_per_row(rows: int, problem: ContractionProblem, machine: Machine) -> float:
    """Return the cycles per reduction step and row with the best tile."""
    return total_cycles(rows, problem, best_tiles(rows, [problem], machine)[0], machine) / rows


def ranked_tiles(rows: int, problems: Sequence[ContractionProblem], machine: Machine) -> list[list[RegisterTile]]:
    """Return tiles of equal height for contractions that share their rows, one list per height, the best first.

    Heights for which the registers do not suffice are left out.  The best takes the fewest cycles in total; ties go to
    the tiles with the fewest loads, then to the lowest.
    """
    ranked: list[tuple[tuple[float, float, int], list[RegisterTile]]] = []
    unit = lcm(*(problem.row_unit for problem in problems))
    for height in range(unit, min(max_block_rows(rows, problem, machine) for problem in problems) + 1, unit):
        chosen, time, loads = [], 0.0, 0.0
        for problem in problems:
            block = best_width(rows, height, problem, machine)
            if block is None:
                break
            chosen.append(block)
            time += total_cycles(rows, problem, block, machine) * problem.multiply_adds / (rows * problem.columns)
            loads += (height + block.registers) / (height * block.registers)
        if len(chosen) == len(problems):
            ranked.append(((round(time, 3), loads, height), chosen))
    ranked.sort(key=lambda r: r[0])
    return [chosen for _, chosen in ranked] or [[RegisterTile(1, 1) for _ in problems]]


def best_common_width(
    row_counts_and_problems: Sequence[tuple[int, ContractionProblem]], machine: Machine
) -> tuple[float, list[RegisterTile]]:
    """Return the total cycles and the tiles, of one common width, for contractions that share packed panels of weights.

    Each contraction is given with its number of rows.  Infinite cycles and 1 x 1 tiles if no common width fits.
    """
    widest = max(problem.column_vectors for _, problem in row_counts_and_problems)
    step = max(problem.results_per_column for _, problem in row_counts_and_problems)
    candidates: list[tuple[float, list[RegisterTile]]] = []
    for width in range(step, min(widest, machine.max_tile_vectors, (machine.registers - 2) // 2) + 1, step):
        chosen, time = list[RegisterTile](), 0.0
        for rows, problem in row_counts_and_problems:
            heights = range(problem.row_unit, max_block_rows(rows, problem, machine) + 1, problem.row_unit)
            blocks = (RegisterTile(h, width) for h in heights)
            times = {b: total_cycles(rows, problem, b, machine) for b in blocks if fits_registers(b, problem, machine)}
            if times:
                chosen.append(min(times, key=lambda b: times[b]))
                time += times[chosen[-1]] * problem.multiply_adds / (rows * problem.columns)
        if len(chosen) == len(row_counts_and_problems):
            candidates.append((time, chosen))
    unfit = float("inf"), [RegisterTile(1, 1) for _ in row_counts_and_problems]
    return min(candidates, key=lambda c: c[0], default=unfit)


def max_block_rows(rows: int, problem: ContractionProblem, machine: Machine) -> int:
    """Return the most rows of a tile, of `rows`, whose cache lines stay in the first-level cache together."""
    return min(rows, resident_lines(problem.row_stride, machine))


def resident_lines(stride: int, machine: Machine) -> int:
    """Return how many lines `stride` bytes apart stay in the first-level cache while panels stream through it.

    Lines a multiple of the bytes of a way apart share one set.
    """
    way = machine.way_bytes
    return min(machine.l1_ways, machine.usable_ways) * (way // gcd(stride, way))


def best_width(rows: int, height: int, problem: ContractionProblem, machine: Machine) -> RegisterTile | None:
    """Return the best tile of `height` rows, or None if the registers do not hold even one vector per row."""
    most = machine.max_unpacked_tile_vectors if problem.unpacked and rows == 1 else machine.max_tile_vectors
    widths = range(problem.results_per_column, min(problem.column_vectors, most) + 1, problem.results_per_column)
    blocks = (RegisterTile(height, c) for c in widths)
    fitting = [b for b in blocks if fits_registers(b, problem, machine)]
    return min(fitting, key=lambda b: (round(total_cycles(rows, problem, b, machine), 3), -b.registers), default=None)


def fits_registers(block: RegisterTile, problem: ContractionProblem, machine: Machine) -> bool:
    """Return True if the registers hold the accumulators, private operands, a row of vectors and the broadcasts.

    If taps overlap, each row has a broadcast that stays live for the next tap.  Windows with contiguous rows need no
    broadcasts.  With more accumulators than hide the latency of multiply-adds, live window elements and the epilogue
    must fit too.
    """
    windows = problem.private_windows
    hides_latency = bool(windows) and block.rows * block.registers > machine.fma_per_cycle * machine.fma_latency
    contiguous = [problem.has_contiguous_rows(w) for w in windows]
    broadcasts = 0 if any(contiguous) else max(2, block.rows if problem.taps_overlap(block.rows) else 0)
    per_vector = block.rows * problem.sums + problem.column_sums + problem.vector_registers
    for w, c in zip(windows, contiguous, strict=True):
        per_vector += w.live_registers(block.rows, c) if hides_latency else block.rows
    return per_vector * block.registers + broadcasts + machine.epilogue_registers * hides_latency <= machine.registers
