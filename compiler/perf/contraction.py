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

from compiler.perf.machine import LINE, Machine
from compiler.perf.shuffles import BLOCK


@dataclass(frozen=True)
class RegisterTile:
    """Rows times vector registers of accumulators."""

    rows: int
    registers: int


@dataclass(frozen=True)
class Window:
    """An operand that each accumulator reads for itself, as the image of a depthwise convolution.

    Rows start `stride` places apart and read `taps` places `dilation` apart, one after the other, some of which are their neighbours'.
    """

    stride: int = 1
    taps: int = 1
    dilation: int = 1

    def places(self, rows: int) -> int:
        """How many places the taps of `rows` rows read; what several of them read is one."""
        return len({r * self.stride + t * self.dilation for r in range(rows) for t in range(self.taps)})

    def loads(self, rows: int) -> float:
        """Loads per step of `rows` rows, of each of their vectors: none without taps."""
        return self.places(rows) / max(self.taps, 1)

    def held(self, rows: int, near: bool = False) -> int:
        """Registers that wait for the taps of `rows` rows: one for each place, but no more than two for a row; and where places lie side
        by side, in the first-level cache, a quarter of them are as well read again.
        """
        return -(-3 * rows // 4) if near else min(self.places(rows), 2 * rows)


@dataclass(frozen=True)
class Shape:
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
    products: int
    own: tuple[Window, ...] = ()
    apart: int = 0
    element: int = 4
    overlapping: bool = False
    across: int = 0
    beside: int = 1
    whole: bool = False

    def near(self, w: Window) -> bool:
        """Whether the rows of `w` lie side by side."""
        return 0 < self.apart <= LINE * w.stride

    @property
    def vectors(self) -> int:
        """Vectors of all columns."""
        return -(-self.columns // self.lanes) * self.beside


WIDEST, WIDEST_IN_PLACE = 6, 16
"""Vectors of a block at most; and where a single row reads what is not packed: memory bounds it, and gives lines side by side sooner."""

AT_THE_END = 2
"""Registers for what is done with sums over windows: they are short, so that the next ones have begun by then."""

LOOP_OVERHEAD = 0.5
"""Cycles per step for counting and for loads that do not quite overlap."""

AHEAD, BEHIND = 0.1, 0.3
"""Share of the second-level cache's transfer time that multiply-adds do not hide: of panels, which are fetched ahead, and of rows."""

JUMP = 5
"""Instructions for counting a step, for its addresses and for going back."""

ALONE, ALONE_CROWDED = 2, 12
"""Multiply-adds that take as long as a result stored by itself, and as one whose line leaves the cache before it is full."""

ROW, ROW_SPLIT, ROW_CROWDED = 2, 4, 6
"""The same for a row of a block that is turned in registers; for one that is no even part of a line, so that others meet it there, which
takes long where lines come from memory; and for one whose line leaves the cache before it is full.
"""

SHARING = 10
"""Lines that stay in one set of the first-level cache, if it has so many ways: eight of eight do, and ten of twelve."""

PARTIAL_PENALTY = 0.03
"""Share of the time by which each kind of partial block must pay, for the code it adds."""


def step_cycles(
    rows: int, registers: int, machine: Machine, streamed: bool = False, own: Sequence[Window] = (), far: int = 0
) -> float:
    """Cycles for one step of the reduced loop; `streamed` vectors come from the second-level cache, and so do elements of `far` bytes of
    rows that lie far apart.
    """
    fma = rows * registers / machine.fma_per_cycle
    each = sum(w.loads(rows) for w in own)
    ahead = 0.0 if own else registers * machine.vector_bits / 8 / LINE  # what is fetched before its turn
    loads = (registers + ahead + (each * registers if own else rows * machine.broadcast)) / machine.loads_per_cycle
    panels = registers * machine.vector_bits / 8 / machine.l2_bytes_per_cycle if streamed else 0.0
    lines = rows * far / machine.l2_bytes_per_cycle if not own else 0.0
    return max(fma, loads, machine.fma_latency, panels) + LOOP_OVERHEAD + AHEAD * panels + BEHIND * lines


def leaving_cycles(rows: int, registers: int, shape: Shape, machine: Machine) -> float:
    """Cycles in which the results of a block leave across memory: turned in registers first, where it has rows enough.

    Shuffles are as fast as multiply-adds, stores half as fast.
    """
    if not shape.across:
        return 0.0
    rows, registers = rows * shape.beside, registers // shape.beside
    crowded = shape.lanes * registers > in_sets(shape.across, machine)
    turned, rest = divmod(rows, shape.lanes)
    turned, alone = (turned * shape.lanes, rest) if rest < BLOCK else (rows, 0)
    each = 0.0
    for r in range(0, turned, shape.lanes):
        side = min(shape.lanes, turned - r)
        width = 1 << (side - 1).bit_length()
        row = ROW if LINE % (side * shape.element) == 0 else ROW_SPLIT
        each += width * log2(width) + shape.lanes * (ROW_CROWDED if crowded else row)
    each += alone * shape.lanes * (ALONE_CROWDED if crowded else ALONE)
    return registers * each / machine.fma_per_cycle


def jump_hides(block: RegisterTile, machine: Machine) -> bool:
    """Whether a step of the reduced loop can begin all its instructions, those of the jump among them, while its multiply-adds run."""
    fma = block.rows * block.registers
    broadcasts = 0 if machine.spread and block.registers == 1 else block.rows
    cycles = max(fma / machine.fma_per_cycle, machine.fma_latency)
    fetched = 1  # ahead of its turn
    return fma + broadcasts + block.registers + fetched + JUMP <= cycles * machine.instructions_per_cycle


def total_cycles(rows: int, shape: Shape, block: RegisterTile, machine: Machine) -> float:
    """Cycles per step of the reduced loop over the whole result, partial blocks included."""
    full_r, part_r = divmod(rows, block.rows)
    spread = not 0 < shape.apart < LINE and rows * shape.depth * shape.element > machine.l1 // 2
    far = shape.element if spread else 0
    full_c, part_c = divmod(shape.vectors, block.registers)
    total = 0.0
    for r, times_r in ((block.rows, full_r), (part_r, 1 if part_r else 0)):
        for c, times_c in ((block.registers, full_c), (part_c, 1 if part_c else 0)):
            if times_r and times_c:
                streamed = shape.depth * c * machine.vector_bits // 8 > machine.l1 // 2
                step = step_cycles(r, c, machine, streamed, shape.own, far)
                total += times_r * times_c * (step + leaving_cycles(r, c, shape, machine) / max(1, shape.depth))
    return total * (1 + PARTIAL_PENALTY * (bool(part_r and full_r) + bool(part_c and full_c)))


def best_tiles(rows: int, shapes: Sequence[Shape], machine: Machine) -> list[RegisterTile]:
    """Blocks of equal height for contractions that share their rows: the first of `ranked_tiles`."""
    return ranked_tiles(rows, shapes, machine)[0]


def ranked_tiles(rows: int, shapes: Sequence[Shape], machine: Machine) -> list[list[RegisterTile]]:
    """Blocks of equal height for contractions that share their rows, for every height, the best first.

    Of the heights whose accumulators, one row of vectors and a broadcast fit the registers, the best takes the least
    time in all; ties go to the blocks that load least, then to the lowest.
    """
    ranked: list[tuple[tuple[float, float, int], list[RegisterTile]]] = []
    for height in range(1, min(most_rows(rows, shape, machine) for shape in shapes) + 1):
        chosen, time, loads = [], 0.0, 0.0
        for shape in shapes:
            block = best_width(rows, height, shape, machine)
            if block is None:
                break
            chosen.append(block)
            time += total_cycles(rows, shape, block, machine) * shape.products / (rows * shape.columns)
            loads += (height + block.registers) / (height * block.registers)
        if len(chosen) == len(shapes):
            ranked.append(((round(time, 3), loads, height), chosen))
    ranked.sort(key=lambda r: r[0])
    return [chosen for _, chosen in ranked] or [[RegisterTile(1, 1) for _ in shapes]]


def equally_wide(parts: Sequence[tuple[int, Shape]], machine: Machine) -> tuple[float, list[RegisterTile]]:
    """Blocks of one width for contractions of so many rows each, of the heights that suit them, and the cycles of all of them.

    They walk the same panels of weights, which lie in memory only once.
    """
    widest, beside = max(shape.vectors for _, shape in parts), max(shape.beside for _, shape in parts)
    found: list[tuple[float, list[RegisterTile]]] = []
    for width in range(beside, min(widest, WIDEST, (machine.registers - 2) // 2) + 1, beside):
        chosen, time = list[RegisterTile](), 0.0
        for rows, shape in parts:
            blocks = (RegisterTile(h, width) for h in range(1, most_rows(rows, shape, machine) + 1))
            times = {b: total_cycles(rows, shape, b, machine) for b in blocks if fits(b, shape, machine)}
            if times:
                chosen.append(min(times, key=lambda b: times[b]))
                time += times[chosen[-1]] * shape.products / (rows * shape.columns)
        if len(chosen) == len(parts):
            found.append((time, chosen))
    return min(found, key=lambda f: f[0], default=(float("inf"), [RegisterTile(1, 1) for _ in parts]))


def most_rows(rows: int, shape: Shape, machine: Machine) -> int:
    """Rows of a block at most, of `rows`: those a multiple of a way's length apart share one set of the first-level cache."""
    return min(rows, in_sets(shape.apart, machine))


def in_sets(apart: int, machine: Machine) -> int:
    """How many lines, each `apart` bytes from the one before, the first-level cache keeps beside panels that pass by."""
    way = machine.l1 // machine.l1_ways
    return min(machine.l1_ways, SHARING) * (way // gcd(apart, way))


def best_width(rows: int, height: int, shape: Shape, machine: Machine) -> RegisterTile | None:
    """The width that suits blocks of `height` rows; None where not even one vector fits."""
    most = WIDEST_IN_PLACE if shape.whole and rows == 1 else WIDEST
    widths = range(shape.beside, min(shape.vectors, most) + 1, shape.beside)
    blocks = (RegisterTile(height, c) for c in widths)
    fitting = [b for b in blocks if fits(b, shape, machine)]
    return min(fitting, key=lambda b: (round(total_cycles(rows, shape, b, machine), 3), -b.registers), default=None)


def fits(block: RegisterTile, shape: Shape, machine: Machine) -> bool:
    """Whether the registers hold a block of accumulators, what they read for themselves, a row of vectors and a broadcast.

    A broadcast that another row uses for its next tap waits for it, so that there is one for each row; windows whose rows lie side by side
    are multiplied by vectors.  More accumulators than keep the multipliers busy should leave room for all that is still to be used of their
    windows and at the end.
    """
    many = bool(shape.own) and block.rows * block.registers > machine.fma_per_cycle * machine.fma_latency
    own = sum(w.held(block.rows, shape.near(w)) if many else block.rows for w in shape.own)
    broadcasts = 0 if any(map(shape.near, shape.own)) else max(2, block.rows if shape.overlapping else 0)
    return (block.rows + own + 1) * block.registers + broadcasts + AT_THE_END * many <= machine.registers
