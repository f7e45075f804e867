"""Register blocks: cycles counted by hand, and choices that fit."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from compiler.analysis.accesses import Accesses
from compiler.cost.contraction import (
    ContractionProblem,
    OperandWindow,
    RegisterTile,
    best_common_width,
    best_tiles,
    fits_registers,
    hides_loop_overhead,
    max_block_rows,
    reloads_panels,
    step_cycles,
    store_cycles,
    total_cycles,
)
from compiler.cost.contraction_nest import packed_scalars
from compiler.cost.machine import AVX2, AVX512, Machine, shipped_machine
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Reduce, walk


@pytest.mark.parametrize(
    ("rows", "registers", "own", "cycles"),
    [
        (8, 3, 0, 12.0),  # 24 multiply-adds, two a cycle
        (1, 3, 0, 4.0),  # 3 multiply-adds wait for their last values
        (1, 6, 0, (12 + AVX512.loads_per_broadcast) / 2),  # 6 vectors, 6 lines fetched ahead
        (2, 6, 0, (12 + 2 * AVX512.loads_per_broadcast) / 2),
        (8, 3, 1, 13.5),  # 3 vectors and 24 of the image, two loads a cycle
        (1, 1, 1, 4.0),
        (5, 4, 2, 22.0),  # 4 vectors and 40 others
    ],
)
def test_a_step(rows: int, registers: int, own: int, cycles: float) -> None:
    assert step_cycles(rows, registers, AVX512, private_windows=[OperandWindow()] * own) == pytest.approx(
        cycles + AVX512.loop_overhead
    )


def test_operands_that_each_accumulator_reads_cost_loads() -> None:
    machine = Machine(loads_per_cycle=1)
    assert step_cycles(4, 2, machine, private_windows=[OperandWindow()]) == pytest.approx(2 + 8 + AVX512.loop_overhead)
    assert step_cycles(4, 2, machine) == pytest.approx(2 * 2 + 4 * machine.loads_per_broadcast + AVX512.loop_overhead)


def test_scalars_that_rows_bring_to_lanes_take_operations() -> None:
    """A move and a broadcast for each row beside its multiply-adds, in units that do two operations for one multiply-add."""
    machine = Machine(fma_per_cycle=1, vector_unit_ratio=2.0)
    assert step_cycles(13, 1, machine, row_operations=2) == pytest.approx(13 * 3 / 2 + machine.loop_overhead)
    assert step_cycles(6, 3, machine, row_operations=2) == pytest.approx(6 * 3 + machine.loop_overhead)
    text = """kernel @k(in %x: bf16[8, 96], const %w: bf16x2[48, 4], out %y: f32[48, 96]) {
      for %j in 0..48 tile 16 lanes 16 { for %i in 0..96 {
        %s = reduce add %k in 0..4 { yield dot<f32>(OPERAND, %w[%j, %k]) }
        store %s, %y[%j, %i] } } }"""
    counts = []
    for operand in ("pack<bf16x2>(%x[%k*2, %i], %x[%k*2 + 1, %i])", "pack<bf16x2>(%x[%k*2, %j], %x[%k*2 + 1, %j])"):
        table = Accesses(parse_kernel(text.replace("OPERAND", operand)))
        (s,) = (s for s in walk(table.kernel.body) if isinstance(s, Reduce))
        counts.append(packed_scalars(table, s, table.loops["j"][0]))
    assert counts == [1, 0]


def test_what_comes_from_the_second_level_is_not_quite_hidden() -> None:
    """Two vectors are 128 bytes, an element of each of fourteen rows 56, of 32 a cycle."""
    near = step_cycles(14, 2, AVX512, from_l2=True)
    assert near == pytest.approx(14 + AVX512.loop_overhead + AVX512.panel_stall_share * 4)
    assert step_cycles(14, 2, AVX512, from_l2=True, far_bytes=4) == pytest.approx(
        near + AVX512.row_stall_share * 56 / 32
    )


def test_rows_of_wide_elements_fill_the_first_level_sooner() -> None:
    """Fourteen rows of 300 elements are 16,800 bytes or 33,600, of 48 KiB."""
    narrow = ContractionProblem(16, 16, 300, 1, row_stride=2048)
    block = RegisterTile(14, 1)
    assert total_cycles(14, narrow, block, AVX512) == step_cycles(14, 1, AVX512)
    assert total_cycles(14, replace(narrow, element_bytes=8), block, AVX512) == step_cycles(14, 1, AVX512, far_bytes=8)


@pytest.mark.parametrize(
    ("apart", "rows"),
    [
        (4, 100),  # pixels side by side
        (1024, 40),  # four rows to a way
        (2048, 20),
        (3072, 40),
        (4096, 10),  # all in one set
        (12288, 10),
        (0, 10),  # unknown
    ],
)
def test_rows_leave_ways_of_a_cache_set_to_others(apart: int, rows: int) -> None:
    assert max_block_rows(100, ContractionProblem(32, 16, 64, 1, row_stride=apart), AVX512) == rows
    assert max_block_rows(7, ContractionProblem(32, 16, 64, 1, row_stride=apart), AVX512) == 7


def test_rows_may_fill_a_set_of_few_ways() -> None:
    machine = replace(AVX512, l1=32 << 10, l1_ways=8)
    assert max_block_rows(100, ContractionProblem(32, 16, 64, 1, row_stride=4096), machine) == 8
    assert max_block_rows(100, ContractionProblem(32, 16, 64, 1, row_stride=1024), machine) == 32


@pytest.mark.parametrize(("rows", "registers", "waiting"), [(10, 2, True), (11, 2, False), (7, 3, True), (8, 3, False)])
def test_broadcasts_wait_for_the_taps_of_other_rows(rows: int, registers: int, waiting: bool) -> None:
    """Ten rows of two: 20 sums, two vectors and ten broadcasts."""
    shape = ContractionProblem(columns=64, lanes=16, depth=9, multiply_adds=1)
    assert fits_registers(RegisterTile(rows, registers), shape, AVX512)
    assert (
        fits_registers(RegisterTile(rows, registers), replace(shape, tap_windows=(OperandWindow(1, 3),)), AVX512)
        == waiting
    )


def test_fourteen_rows_suit_images_of_fourteen() -> None:
    """They read a panel half as often as seven; 28 of one vector would wait for their broadcasts."""
    for apart in (4, 2048):
        shape = ContractionProblem(256, 16, 2304, 196 * 256, row_stride=apart)
        assert best_tiles(14, [shape], AVX512) == [RegisterTile(14, 2)]
        assert best_tiles(196, [shape], AVX512) == [RegisterTile(14, 2)]
    assert best_tiles(14, [ContractionProblem(256, 16, 2304, 14 * 256, row_stride=4096)], AVX512)[0].rows <= 10


@pytest.mark.parametrize(
    ("window", "rows", "loads"),
    [
        (OperandWindow(1, 3), 7, 9 / 3),  # neighbours share two of three places
        (OperandWindow(2, 3), 7, 15 / 3),  # and one of three
        (OperandWindow(3, 3), 7, 7),
        (OperandWindow(1, 3, dilation=2), 4, 8 / 3),
        (OperandWindow(1, 1), 5, 5),
    ],
)
def test_windows_that_overlap_are_loaded_once(window: OperandWindow, rows: int, loads: float) -> None:
    assert window.loads(rows) == pytest.approx(loads)


@pytest.mark.parametrize(
    ("window", "rows", "registers", "fitting"),
    [
        (OperandWindow(1, 3), 5, 2, True),  # 10 sums, 14 places, 2 vectors, 2 broadcasts, 2 at the end
        (OperandWindow(1, 3), 6, 2, False),  # 12, 16 and 2
        (OperandWindow(2, 3), 8, 1, True),
        (OperandWindow(2, 3), 10, 1, False),  # 10, 20 and 1: stride 2 shares one place of three
        (OperandWindow(1, 64), 9, 1, True),  # a long window is not held whole
        (OperandWindow(1, 3), 4, 3, False),  # 12, 18 and 3
    ],
)
def test_what_windows_share_stays_in_registers(window: OperandWindow, rows: int, registers: int, fitting: bool) -> None:
    shape = ContractionProblem(columns=64, lanes=16, depth=9, multiply_adds=1, private_windows=(window,))
    assert fits_registers(RegisterTile(rows, registers), shape, AVX512) == fitting


def test_few_sums_may_read_a_place_again() -> None:
    """Rather than leave the multipliers idle."""
    shape = ContractionProblem(columns=64, lanes=8, depth=9, multiply_adds=1, private_windows=(OperandWindow(1, 3),))
    assert fits_registers(RegisterTile(6, 1), shape, AVX2)
    assert not fits_registers(RegisterTile(7, 1), shape, AVX2)


def test_rows_side_by_side_wait_in_the_cache_as_well() -> None:
    """As many rows as a line has results, where an image whose channels lie beside each other has half of them."""
    window = ContractionProblem(16, 16, 9, 28 * 16 * 9, (OperandWindow(1, 3),), row_stride=64, lane_stride=3136)
    assert fits_registers(RegisterTile(16, 1), window, AVX512)
    assert not fits_registers(RegisterTile(17, 1), window, AVX512)
    assert not fits_registers(RegisterTile(16, 1), replace(window, row_stride=384), AVX512)
    for rows in (28, 33, 56):
        assert best_tiles(rows, [window], AVX512) == [RegisterTile(16, 1)]
    assert best_tiles(56, [replace(window, private_windows=(OperandWindow(2, 3),), row_stride=128)], AVX512) == [
        RegisterTile(16, 1)
    ]
    assert best_tiles(56, [replace(window, row_stride=384)], AVX512) == [RegisterTile(8, 1)]


@pytest.mark.parametrize(
    ("rows", "across", "multiply_adds"),
    [
        (16, 64, 16 * 4 + 16 * 2),  # four shuffles for each vector, 16 rows
        (14, 64, 16 * 4 + 16 * 4),  # and no even part of a line
        (8, 64, 8 * 3 + 16 * 2),
        (4, 64, 4 * 2 + 16 * 2),
        (3, 64, 3 * 16 * 2),  # one by one
        (20, 64, 16 * 4 + 16 * 2 + 4 * 2 + 16 * 2),
        (17, 64, 16 * 4 + 16 * 2 + 16 * 2),
        (16, 4096, 16 * 4 + 16 * 6),  # lines that share a set
        (3, 4096, 3 * 16 * 12),
        (16, 0, 0),  # lanes lie side by side
    ],
)
def test_results_that_leave_across_memory(rows: int, across: int, multiply_adds: int) -> None:
    shape = ContractionProblem(columns=64, lanes=16, depth=9, multiply_adds=1, lane_stride=across)
    assert store_cycles(rows, 1, shape, AVX512) == multiply_adds / 2
    near = total_cycles(rows, replace(shape, lane_stride=0), RegisterTile(rows, 1), AVX512)
    assert total_cycles(rows, shape, RegisterTile(rows, 1), AVX512) == near + multiply_adds / 2 * 4 / 9


def test_results_beside_each_other_leave_together() -> None:
    """Of 8 rows and 2 vectors beside each other, 16 results of each column leave as of 16 rows and one vector."""
    shape = ContractionProblem(columns=64, lanes=16, depth=9, multiply_adds=1, lane_stride=64 * 5)
    assert replace(shape, results_per_column=2).column_vectors == 2 * shape.column_vectors
    assert store_cycles(8, 2, replace(shape, results_per_column=2), AVX512) == store_cycles(16, 1, shape, AVX512)
    assert best_tiles(64, [replace(shape, results_per_column=2)], AVX512)[0].registers % 2 == 0


def test_sums_of_nothing_have_blocks() -> None:
    assert best_tiles(6, [ContractionProblem(32, 16, 0, 0, lane_stride=64)], AVX512)[0].rows >= 1


def test_sums_choose_blocks_that_can_be_turned() -> None:
    """Rather than rows that are left over or stored one by one, and few planes at once where their lines share a set."""
    machine = replace(shipped_machine("znver4"), l1=32 << 10, l1_ways=8)
    window = ContractionProblem(576, 16, 9, 14 * 576 * 9, (OperandWindow(1, 3),), row_stride=2304)
    assert best_tiles(14, [replace(window, lane_stride=784)], machine) == [RegisterTile(8, 1)]
    stem = ContractionProblem(64, 16, 27, 224 * 64 * 27, row_stride=4)
    assert best_tiles(224, [stem], machine)[0].registers > 1
    assert best_tiles(224, [replace(stem, lane_stride=224 * 224 * 4)], machine) == [RegisterTile(16, 1)]


def test_partial_blocks_are_counted() -> None:
    shape = ContractionProblem(columns=32, lanes=16, depth=9, multiply_adds=1)
    whole = total_cycles(8, shape, RegisterTile(8, 2), AVX512)
    assert whole == pytest.approx(step_cycles(8, 2, AVX512))
    both = step_cycles(8, 2, AVX512) + step_cycles(2, 2, AVX512)
    assert total_cycles(10, shape, RegisterTile(8, 2), AVX512) == pytest.approx(both * 1.03)


@pytest.mark.parametrize("machine", [AVX512, AVX2])
@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (7, 24), (56, 64), (112, 32), (3, 1000)])
def test_blocks_fit_the_registers_and_nothing_beats_them(machine: Machine, own: int, rows: int, columns: int) -> None:
    shape = ContractionProblem(columns, machine.lanes(32), 9, rows * columns * 9, (OperandWindow(),) * own)
    (block,) = best_tiles(rows, [shape], machine)

    def fits(b: RegisterTile) -> bool:
        at_the_end = 2 if own and b.rows * b.registers > 8 else 0
        return (b.rows * (1 + own) + 1) * b.registers + 1 + at_the_end < machine.registers

    assert fits(block)
    assert block.rows <= rows
    assert block.registers <= -(-columns // shape.lanes)
    rivals = [RegisterTile(r, c) for r in range(1, min(rows, 10) + 1) for c in range(1, 7)]
    rivals = [b for b in rivals if fits(b) and b.registers <= -(-columns // shape.lanes)]
    fastest = min(total_cycles(rows, shape, b, machine) for b in rivals)
    assert total_cycles(rows, shape, block, machine) == pytest.approx(fastest, rel=1e-3)


def test_parts_that_walk_the_same_panels_take_one_width() -> None:
    """And each the height that its rows allow; no width beats the one chosen."""
    parts = [(rows, ContractionProblem(256, 16, 4608, rows * 256 * 4608)) for rows in (12, 4, 1)]
    time, chosen = best_common_width(parts, AVX512)
    assert len({b.registers for b in chosen}) == 1
    assert all((b.rows + 1) * b.registers <= AVX512.registers - 2 for b in chosen)
    for width in range(1, 7):
        blocks = [RegisterTile(min(rows, 30 // width - 1, 10), width) for rows, _ in parts]
        other = sum(total_cycles(r, s, b, AVX512) * s.depth for (r, s), b in zip(parts, blocks, strict=True))
        assert time <= other


@pytest.mark.parametrize(
    ("rows", "registers", "machine", "hidden"),
    [
        (14, 2, AVX512, True),  # 28 multiply-adds, 14 broadcasts, 2 vectors, 6 others: 50 of 84
        (6, 2, AVX2, False),  # 12, 6, 2 and 6: 26 of 24
        (1, 2, AVX2, True),  # 2, 1, 2 and 6: 11 of 16, while each sum waits for its last value
        (20, 1, AVX512, True),
        (12, 1, AVX2, False),  # no multiply-add spreads a scalar of its own
    ],
)
def test_a_jump_that_begins_beside_the_multiply_adds_costs_nothing(
    rows: int, registers: int, machine: Machine, hidden: bool
) -> None:
    assert hides_loop_overhead(RegisterTile(rows, registers), machine) == hidden


def test_panels_whose_steps_share_cache_sets_are_read_for_more_rows() -> None:
    """Steps 4 KiB apart leave the cache after ten, so that each tile reads its panel from L2: lower tiles do so more often."""
    apart = ContractionProblem(1024, 16, 32, 1024 * 1024 * 32, unpacked=True, panel_stride=4096)
    beside = replace(apart, panel_stride=4096 + 64)
    assert reloads_panels(2, apart, AVX512)
    assert not reloads_panels(2, beside, AVX512)
    assert not reloads_panels(2, replace(apart, depth=10), AVX512)
    (low,), (high,) = best_tiles(1024, [beside], AVX512), best_tiles(1024, [apart], AVX512)
    assert low.rows < high.rows


@pytest.mark.parametrize("stride", [1, 2, 3, 6])
@pytest.mark.parametrize("dilation", [1, 2, 4])
def test_positions_of_windows_are_counted(stride: int, dilation: int) -> None:
    for rows, taps in product(range(9), range(6)):
        elements = {r * stride + t * dilation for r in range(rows) for t in range(taps)}
        assert OperandWindow(stride, taps, dilation).positions(rows) == len(elements)
