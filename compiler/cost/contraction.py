"""How long a register-blocked contraction takes, by counting what each step of the inner loop issues.

A block of `rows` x `registers` accumulators does rows * registers multiply-adds per step, for which it loads `registers` vectors, fetches the
lines of later ones and broadcasts `rows` scalars.  The step takes as long as the slowest of: multiply-adds issued, loads issued, and the latency of
one multiply-add (each accumulator waits for its last value).  See Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication", 2008, and Low et al., "Analytical Modeling Is Enough for High-Performance BLIS", 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, log2

from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.cost.shuffles import MIN_TRANSPOSE_BLOCK


@dataclass(frozen=True)
class RegisterTile:
    """Rows times vector registers of accumulators."""

    rows: int
    registers: int


@dataclass(frozen=True)
class OperandWindow:
    """An operand that each accumulator reads for itself, as the image of a depthwise convolution.

    Rows start `stride` places apart and read `taps` places `dilation` apart, one after the other, some of which are their neighbours'.
    """

    stride: int = 1
    taps: int = 1
    dilation: int = 1

    def positions(self, rows: int) -> int:
        """How many places the taps of `rows` rows read; what several of them read is one."""
        return len({r * self.stride + t * self.dilation for r in range(rows) for t in range(self.taps)})

    def loads(self, rows: int) -> float:
        """Loads per step of `rows` rows, of each of their vectors: none without taps."""
        return self.positions(rows) / max(self.taps, 1)

    def live_registers(self, rows: int, contiguous_rows: bool = False) -> int:
        """Registers that wait for the taps of `rows` rows: one for each place, but no more than two for a row; and where places lie side
        by side, in the first-level cache, a quarter of them are as well read again.
        """
        return -(-3 * rows // 4) if contiguous_rows else min(self.positions(rows), 2 * rows)


@dataclass(frozen=True)
class ContractionProblem:
    """One contraction: its columns across vectors of `lanes`, its reduced length `depth`, and all the products it adds.

    `own` are the operands that each accumulator reads for itself.  The rows of any other, with elements of `element` bytes, lie `apart`
    bytes from one another, 0 where that is not known; they are `overlapping` where taps that are written out meet places of other rows.
    Results of neighbouring lanes lie `across` bytes from one another, those of neighbouring rows side by side; 0 where lanes do.
    A row has `beside` of them for each column, in vectors of their own, side by side too.
    `whole` rows pay: what varies across lanes is not packed, so that a block skips what other columns read of a row.
    """

    columns: int
    lanes: int
    depth: int
    multiply_adds: int
    private_windows: tuple[OperandWindow, ...] = ()
    row_stride: int = 0
    element_bytes: int = 4
    taps_overlap: bool = False
    lane_stride: int = 0
    results_per_column: int = 1
    unpacked: bool = False

    def has_contiguous_rows(self, w: OperandWindow) -> bool:
        """Whether the rows of `w` lie side by side."""
        return 0 < self.row_stride <= CACHE_LINE_BYTES * w.stride

    @property
    def column_vectors(self) -> int:
        """Vectors of all columns."""
        return -(-self.columns // self.lanes) * self.results_per_column


MAX_VECTORS, MAX_VECTORS_UNPACKED = 6, 16
"""Vectors of a block at most; and where a single row reads what is not packed: memory bounds it, and gives lines side by side sooner."""

EPILOGUE_REGISTERS = 2
"""Registers for what is done with sums over windows: they are short, so that the next ones have begun by then."""

LOOP_OVERHEAD = 0.5
"""Cycles per step for counting and for loads that do not quite overlap."""

PANEL_STALL_SHARE, ROW_STALL_SHARE = 0.1, 0.3
"""Share of the second-level cache's transfer time that multiply-adds do not hide: of panels, which are fetched ahead, and of rows."""

LOOP_INSTRUCTIONS = 5
"""Instructions for counting a step, for its addresses and for going back."""

ELEMENT_STORE_COST, ELEMENT_STORE_COST_EVICTED = 2, 12
"""Multiply-adds that take as long as a result stored by itself, and as one whose line leaves the cache before it is full."""

ROW_STORE_COST, ROW_STORE_COST_UNALIGNED, ROW_STORE_COST_EVICTED = 2, 4, 6
"""The same for a row of a block that is turned in registers; for one that is no even part of a line, so that others meet it there, which
takes long where lines come from memory; and for one whose line leaves the cache before it is full.
"""

USABLE_WAYS = 10
"""Lines that stay in one set of the first-level cache, if it has so many ways: eight of eight do, and ten of twelve."""

PARTIAL_PENALTY = 0.03
"""Share of the time by which each kind of partial block must pay, for the code it adds."""


def step_cycles(
    rows: int,
    registers: int,
    machine: Machine,
    from_l2: bool = False,
    private_windows: Sequence[OperandWindow] = (),
    far_bytes: int = 0,
) -> float:
    """Cycles for one step of the reduced loop; `streamed` vectors come from the second-level cache, and so do elements of `far` bytes of
    rows that lie far apart.
    """
    fma = rows * registers / machine.fma_per_cycle
    each = sum(w.loads(rows) for w in private_windows)
    ahead = (
        0.0 if private_windows else registers * machine.vector_bits / 8 / CACHE_LINE_BYTES
    )  # what is fetched before its turn
    loads = (
        registers + ahead + (each * registers if private_windows else rows * machine.loads_per_broadcast)
    ) / machine.loads_per_cycle
    panels = registers * machine.vector_bits / 8 / machine.l2_bytes_per_cycle if from_l2 else 0.0
    lines = rows * far_bytes / machine.l2_bytes_per_cycle if not private_windows else 0.0
    return (
        max(fma, loads, machine.fma_latency, panels)
        + LOOP_OVERHEAD
        + PANEL_STALL_SHARE * panels
        + ROW_STALL_SHARE * lines
    )


def store_cycles(rows: int, registers: int, problem: ContractionProblem, machine: Machine) -> float:
    """Cycles in which the results of a block leave across memory: turned in registers first, where it has rows enough.

    Shuffles are as fast as multiply-adds, stores half as fast.
    """
    if not problem.lane_stride:
        return 0.0
    rows, registers = rows * problem.results_per_column, registers // problem.results_per_column
    evicted = problem.lanes * registers > resident_lines(problem.lane_stride, machine)
    transposed_rows, rest = divmod(rows, problem.lanes)
    transposed_rows, single_rows = (transposed_rows * problem.lanes, rest) if rest < MIN_TRANSPOSE_BLOCK else (rows, 0)
    each = 0.0
    for r in range(0, transposed_rows, problem.lanes):
        side = min(problem.lanes, transposed_rows - r)
        width = 1 << (side - 1).bit_length()
        row = ROW_STORE_COST if CACHE_LINE_BYTES % (side * problem.element_bytes) == 0 else ROW_STORE_COST_UNALIGNED
        each += width * log2(width) + problem.lanes * (ROW_STORE_COST_EVICTED if evicted else row)
    each += single_rows * problem.lanes * (ELEMENT_STORE_COST_EVICTED if evicted else ELEMENT_STORE_COST)
    return registers * each / machine.fma_per_cycle


def hides_loop_overhead(block: RegisterTile, machine: Machine) -> bool:
    """Whether a step of the reduced loop can begin all its instructions, those of the jump among them, while its multiply-adds run."""
    fma = block.rows * block.registers
    broadcasts = 0 if machine.has_embedded_broadcast and block.registers == 1 else block.rows
    cycles = max(fma / machine.fma_per_cycle, machine.fma_latency)
    fetched = 1  # ahead of its turn
    return fma + broadcasts + block.registers + fetched + LOOP_INSTRUCTIONS <= cycles * machine.instructions_per_cycle


def total_cycles(rows: int, problem: ContractionProblem, block: RegisterTile, machine: Machine) -> float:
    """Cycles per step of the reduced loop over the whole result, partial blocks included."""
    full_r, part_r = divmod(rows, block.rows)
    rows_are_far = (
        not 0 < problem.row_stride < CACHE_LINE_BYTES and rows * problem.depth * problem.element_bytes > machine.l1 // 2
    )
    far_bytes = problem.element_bytes if rows_are_far else 0
    full_c, part_c = divmod(problem.column_vectors, block.registers)
    total = 0.0
    for r, times_r in ((block.rows, full_r), (part_r, 1 if part_r else 0)):
        for c, times_c in ((block.registers, full_c), (part_c, 1 if part_c else 0)):
            if times_r and times_c:
                from_l2 = problem.depth * c * machine.vector_bits // 8 > machine.l1 // 2
                step = step_cycles(r, c, machine, from_l2, problem.private_windows, far_bytes)
                total += times_r * times_c * (step + store_cycles(r, c, problem, machine) / max(1, problem.depth))
    return total * (1 + PARTIAL_PENALTY * (bool(part_r and full_r) + bool(part_c and full_c)))


def best_tiles(rows: int, problems: Sequence[ContractionProblem], machine: Machine) -> list[RegisterTile]:
    """Blocks of equal height for contractions that share their rows: the first of `ranked_tiles`."""
    return ranked_tiles(rows, problems, machine)[0]


def ranked_tiles(rows: int, problems: Sequence[ContractionProblem], machine: Machine) -> list[list[RegisterTile]]:
    """Blocks of equal height for contractions that share their rows, for every height, the best first.

    Of the heights whose accumulators, one row of vectors and a broadcast fit the registers, the best takes the least
    time in all; ties go to the blocks that load least, then to the lowest.
    """
    ranked: list[tuple[tuple[float, float, int], list[RegisterTile]]] = []
    for height in range(1, min(max_block_rows(rows, problem, machine) for problem in problems) + 1):
        chosen, time, loads = [], 0.0, 0.0
        for shape in problems:
            block = best_width(rows, height, shape, machine)
            if block is None:
                break
            chosen.append(block)
            time += total_cycles(rows, shape, block, machine) * shape.multiply_adds / (rows * shape.columns)
            loads += (height + block.registers) / (height * block.registers)
        if len(chosen) == len(problems):
            ranked.append(((round(time, 3), loads, height), chosen))
    ranked.sort(key=lambda r: r[0])
    return [chosen for _, chosen in ranked] or [[RegisterTile(1, 1) for _ in problems]]


def best_common_width(
    row_counts_and_problems: Sequence[tuple[int, ContractionProblem]], machine: Machine
) -> tuple[float, list[RegisterTile]]:
    """Blocks of one width for contractions of so many rows each, of the heights that suit them, and the cycles of all of them.

    They walk the same panels of weights, which lie in memory only once.
    """
    widest, results_per_column = (
        max(problem.column_vectors for _, problem in row_counts_and_problems),
        max(shape.results_per_column for _, shape in row_counts_and_problems),
    )
    found: list[tuple[float, list[RegisterTile]]] = []
    for width in range(
        results_per_column, min(widest, MAX_VECTORS, (machine.registers - 2) // 2) + 1, results_per_column
    ):
        chosen, time = list[RegisterTile](), 0.0
        for rows, shape in row_counts_and_problems:
            blocks = (RegisterTile(h, width) for h in range(1, max_block_rows(rows, shape, machine) + 1))
            times = {b: total_cycles(rows, shape, b, machine) for b in blocks if fits_registers(b, shape, machine)}
            if times:
                chosen.append(min(times, key=lambda b: times[b]))
                time += times[chosen[-1]] * shape.multiply_adds / (rows * shape.columns)
        if len(chosen) == len(row_counts_and_problems):
            found.append((time, chosen))
    return min(found, key=lambda f: f[0], default=(float("inf"), [RegisterTile(1, 1) for _ in row_counts_and_problems]))


def max_block_rows(rows: int, problem: ContractionProblem, machine: Machine) -> int:
    """Rows of a block at most, of `rows`: those a multiple of a way's length apart share one set of the first-level cache."""
    return min(rows, resident_lines(problem.row_stride, machine))


def resident_lines(stride: int, machine: Machine) -> int:
    """How many lines, each `apart` bytes from the one before, the first-level cache keeps beside panels that pass by."""
    way = machine.l1 // machine.l1_ways
    return min(machine.l1_ways, USABLE_WAYS) * (way // gcd(stride, way))


def best_width(rows: int, height: int, problem: ContractionProblem, machine: Machine) -> RegisterTile | None:
    """The width that suits blocks of `height` rows; None where not even one vector fits."""
    most = MAX_VECTORS_UNPACKED if problem.unpacked and rows == 1 else MAX_VECTORS
    widths = range(problem.results_per_column, min(problem.column_vectors, most) + 1, problem.results_per_column)
    blocks = (RegisterTile(height, c) for c in widths)
    fitting = [b for b in blocks if fits_registers(b, problem, machine)]
    return min(fitting, key=lambda b: (round(total_cycles(rows, problem, b, machine), 3), -b.registers), default=None)


def fits_registers(block: RegisterTile, problem: ContractionProblem, machine: Machine) -> bool:
    """Whether the registers hold a block of accumulators, what they read for themselves, a row of vectors and a broadcast.

    A broadcast that another row uses for its next tap waits for it, so that there is one for each row; windows whose rows lie side by side
    are multiplied by vectors.  More accumulators than keep the multipliers busy should leave room for all that is still to be used of their
    windows and at the end.
    """
    hides_latency = (
        bool(problem.private_windows) and block.rows * block.registers > machine.fma_per_cycle * machine.fma_latency
    )
    window_registers = sum(
        w.live_registers(block.rows, problem.has_contiguous_rows(w)) if hides_latency else block.rows
        for w in problem.private_windows
    )
    broadcasts = (
        0
        if any(map(problem.has_contiguous_rows, problem.private_windows))
        else max(2, block.rows if problem.taps_overlap else 0)
    )
    return (
        block.rows + window_registers + 1
    ) * block.registers + broadcasts + EPILOGUE_REGISTERS * hides_latency <= machine.registers
