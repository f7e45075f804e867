"""The score of a lane loop, counted by hand: accesses of the scalar program less those of vectors of 16."""

from __future__ import annotations

import pytest

from compiler.analysis.accesses import Accesses
from compiler.cost.machine import AVX2, AVX512, Machine
from compiler.cost.vectorization import best_disjoint_loops, lane_count, score_loops, transpose_loops
from compiler.ir.text.tile_parser import parse_kernel


def scores(params: str, body: str, machine: Machine = AVX512, packed: tuple[str, ...] = ()) -> dict[str, int]:
    return score_loops(Accesses(parse_kernel(f"kernel @k({params}) {{ {body} }}")), 16, machine, packed)


def score(x: str, load: str, role: str = "in", y: str = "f32[64]", store: str = "%i") -> int:
    """The score of a loop of 64 steps, each with one load and one store."""
    return scores(f"{role} %x: {x}, out %y: {y}", f"for %i in 0..64 {{ store %x[{load}], %y[{store}] }}")["i"]


def test_contiguous_accesses_become_vectors() -> None:
    assert score("f32[64]", "%i") == 2 * (64 - 4)


def test_a_vector_that_straddles_lines_costs_half_as_much_again() -> None:
    assert score("f32[65]", "%i + 1") == (64 - 6) + (64 - 4)
    assert score("f32[80]", "%i + 16") == 2 * (64 - 4)
    rows = "parallel %j in 0..3 {{ for %i in 0..64 {{ store %x[%j, %i], %y[%j, %i] }} }}".replace("{{", "{").replace(
        "}}", "}"
    )
    assert scores("in %x: f32[3, 64], out %y: f32[3, 65]", rows)["i"] == (192 - 12) + (192 - 18)


def test_one_element_for_all_lanes_is_one_access() -> None:
    assert score("f32[3]", "2") == 2 * (64 - 4)


def test_a_short_step_is_picked_from_vectors() -> None:
    assert score("f32[64, 3]", "%i, 1") == (64 - 18) + (64 - 4)
    assert score("f32[64, 3]", "%i, 1", role="const") == 2 * (64 - 4)
    assert score("f32[128]", "%i*2", role="const") == (64 - 12) + (64 - 4)


@pytest.mark.parametrize(("rows", "shared"), [(1, 1), (4, 4)])
def test_rows_of_a_contraction_share_what_is_picked(rows: int, shared: int) -> None:
    params = f"in %x: f32[130], const %w: f32[{rows}, 3], out %y: f32[{rows}, 64]"
    found = scores(
        params,
        f"""parallel %j in 0..{rows} {{ parallel %i in 0..64 {{
          %s = reduce add %r in 0..3 {{ yield %x[%i*2 + %r] * %w[%j, %r] }} store %s, %y[%j, %i] }} }}""",
    )
    vectors = 12 * rows
    assert found["i"] == 3 * (16 - 1) * vectors + 16 * vectors - vectors * (1 + 2 / shared) + (64 - 4) * rows


def test_a_long_step_is_gathered_at_a_loss() -> None:
    assert score("f32[64, 9]", "%i, 1") == (64 - 96) + (64 - 4)
    assert score("f32[64, 1024]", "%i, 1") == (64 - 512) + (64 - 4)


def test_lanes_past_the_end_of_a_loop_are_gathered_too() -> None:
    found = scores("in %x: f32[5, 40], out %y: f32[5]", "for %i in 0..5 { store %x[%i, 0], %y[%i] }")
    assert found["i"] == (5 - 16 * 1.5) + (5 - 1)


def test_scattered_stores_cost_more_the_farther_they_go() -> None:
    assert score("f32[64]", "%i", y="f32[64, 9]", store="%i, 0") == (64 - 4) - 64 * 4
    assert score("f32[64]", "%i", y="f32[64, 1024]", store="%i, 0") == (64 - 4) - 64 * 20


def test_short_steps_are_stored_as_parts_of_vectors_where_masks_are_for_free() -> None:
    store = "for %i in 0..64 { store %x[%i], %y[%i, 0] }"
    params = "in %x: f32[64], out %y: f32[64, 3]"
    assert scores(params, store)["i"] == (64 - 4) + 64 - 3 * 1.5 * 4
    assert scores(params, store, Machine(has_mask_registers=False))["i"] == (64 - 4) - 64 * 4


def test_margins_count_in_alignment_and_strides() -> None:
    assert score("f32[64]{0+1:1}", "%i") == (64 - 6) + (64 - 4)
    assert score("f32[64]{0+16:1}", "%i") == 2 * (64 - 4)
    assert score("f32[64, 2]{1, 0}", "%i, 1") == 2 * (64 - 4)


def test_a_parameter_may_be_taken_as_packed() -> None:
    found = scores("in %x: f32[64], out %y: f32[64, 3]", "for %i in 0..64 { store %x[%i], %y[%i, 0] }", packed=("y",))
    assert found["i"] == 2 * (64 - 4)


def grouped(size: int) -> int:
    """The score of lanes along the results of a group, of which there are three."""
    body = f"""for %g in 0..3 {{ for %j in 0..{size} {{
      %s = reduce add %k in 0..5 {{ yield %x[%g, %k] * %w[%g*{size} + %j, %k] }}
      store %s, %y[%g, %j]
    }} }}"""
    return scores(f"in %x: f32[3, 5], const %w: f32[{3 * size}, 5], out %y: f32[3, {size}]", body)["j"]


def test_constants_are_packed_by_groups() -> None:
    """Groups of whole vectors, or of less than one; others would meet panels in their middle."""
    steps, stored = 3 * 5 * 64, 3 * 64
    assert grouped(64) == 4 * (steps - steps // 16) + stored - stored // 16
    assert grouped(24) / 24 < 0.9 * grouped(12) / 12


def test_lanes_of_a_reduction_are_combined_at_the_end() -> None:
    params = "in %x: f32[64], in %w: f32[64], out %y: f32[2]"
    one = scores(params, "for %j in 0..2 { %s = reduce add %k in 0..64 { yield %x[%k] } store %s, %y[%j] }")
    two = scores(params, "for %j in 0..2 { %s = reduce add %k in 0..64 { yield %x[%k] * %w[%k] } store %s, %y[%j] }")
    assert one["k"] == 2 * 2 * (64 - 4) - 2 * 4
    assert two["k"] == 2 * 4 * (64 - 4) - 2 * 24


def test_arithmetic_counts_too() -> None:
    sums = "for %i in 0..64 { store %x[%i] * 2.0 + 1.0, %y[%i] }"
    assert scores("in %x: f32[64], out %y: f32[64]", sums)["i"] == 4 * (64 - 4)


def test_loops_without_lanes() -> None:
    assert scores("in %x: f32[3], out %y: f32[3]", "for %i in 0..3 { store %x[%i], %y[%i] }") == {"i": -1}
    assert scores("inout %y: f32[64]", "for %i in 1..64 { store %y[%i - 1], %y[%i] }") == {"i": -1}
    local = "for %i in 0..64 { local %t: f32[9] store 0.0, %t[0] store %t[0], %y[%i] }"
    assert scores("out %y: f32[64]", local, Machine(l2=16 * 36 - 1)) == {"i": -1}
    assert scores("out %y: f32[64]", local, Machine(l2=16 * 36))["i"] > 0


@pytest.mark.parametrize(
    ("given", "chosen", "total"),
    [
        ({"i": 5, "j": 3, "k": 1}, ("i",), 5),
        ({"i": 3, "j": 3, "k": 1}, ("j", "k"), 4),
        ({"i": -1, "j": -1, "k": 2}, ("k",), 2),
        ({"i": -1, "j": 0, "k": -1}, (), 0),
    ],
)
def test_a_loop_or_those_inside_it(given: dict[str, int], chosen: tuple[str, ...], total: int) -> None:
    kernel = parse_kernel("""kernel @k(in %x: f32[8, 8], out %y: f32[8, 8]) { for %i in 0..8 {
      %s = reduce max %j in 0..8 { yield %x[%i, %j] }
      for %k in 0..8 { store %s, %y[%i, %k] } } }""")
    assert best_disjoint_loops(kernel.body, given) == (total, chosen)


@pytest.mark.parametrize(
    ("types", "lanes"),
    [(("f32", "f32"), 8), (("f64", "f32"), 4), (("bf16", "bf16"), 8), (("i64", "f32"), 8), (("i8", "i16"), 8)],
)
def test_a_register_of_the_widest_type(types: tuple[str, str], lanes: int) -> None:
    x, y = types
    value = "%x[%i]" if x == y else f"cast<{y}>(%x[%i])"
    kernel = parse_kernel(f"kernel @k(in %x: {x}[4], out %y: {y}[4]) {{ for %i in 0..4 {{ store {value}, %y[%i] }} }}")
    assert lane_count(kernel, AVX2) == lanes


def test_blocks_are_turned_where_another_loop_walks_along_memory() -> None:
    """Each vector takes its share of the rows, as many as lanes, and of the shuffles."""

    def turned(rows: int, gap: int = 1) -> int:
        body = f"parallel %j in 0..{rows} {{ for %i in 0..64 {{ store %x[%j, %i], %y[%i, %j] }} }}"
        return scores(f"in %x: f32[{rows}, 64], out %y: f32[64, {rows + gap}]", body)["i"]

    assert turned(16) == 16 * (64 - 4) + 16 * 64 - 64 * 3
    assert turned(8) == 8 * (64 - 4) + 8 * 64 - 32 * 4
    assert turned(3) == 3 * (64 - 4) + 3 * 64 - 3 * 4 * 1.5 * 3  # several rows in one vector
    assert turned(3, gap=4) == 3 * (64 - 4) + 3 * 64 - 3 * 4 * 1.5 * 7  # a row in several vectors
    assert turned(3, gap=6) == 3 * (64 - 4) + 3 * 64 - 3 * 64 * 5


@pytest.mark.parametrize(
    ("store", "cost"),
    [
        ("%y[%i, %j*2 + %b]", 32 * 4),  # 8 side by side
        ("%y[%i, %j*2 + 2*%b]", 8 * 64 * 5),  # not side by side
        ("%y[%i, %b*4 + %j]", 32 * 6),  # %j alone is long enough
    ],
)
def test_two_loops_may_walk_along_memory(store: str, cost: int) -> None:
    body = f"parallel %j in 0..4 {{ parallel %b in 0..2 {{ for %i in 0..64 {{ store %x[%j, %b, %i], {store} }} }} }}"
    found = scores("in %x: f32[4, 2, 64], out %y: f32[64, 9]", body)["i"]
    assert found == 8 * (64 - 4) + 8 * 64 - cost


@pytest.mark.parametrize(("length", "cost"), [(16, 64 * 3), (20, 80 * (2 + 1 + 4 * 16))])
def test_blocks_that_end_inside_lines_cost_much_where_rows_share_a_set(length: int, cost: int) -> None:
    body = f"parallel %j in 0..{length} {{ for %i in 0..64 {{ store %x[%j, %i], %y[%i, %j] }} }}"
    found = scores(f"in %x: f32[{length}, 64], out %y: f32[64, 1024]", body)["i"]
    assert found == length * (64 - 4) + length * 64 - cost


def test_blocks_are_turned_around_contractions_only() -> None:
    """The rows of any other reduction come one at a time, and so do those that share no vector."""

    def stored(value: str) -> int:
        """Return what lanes save in the store: beside a store along the lanes, which no block is turned for."""
        body = f"""parallel %i in 0..64 {{ parallel %j in 0..16 {{
          %s = reduce add %k in 0..4 {{ yield {value} }} store %s, %y[PLACE] }} }}"""
        given = "in %x: f32[16, 4, 64], in %w: f32[16, 4], out %y: f32[{}]"
        apart = scores(given.format("64, 17"), body.replace("PLACE", "%i, %j"))["i"]
        return apart - scores(given.format("16, 64"), body.replace("PLACE", "%j, %i"))["i"] - 64

    turned, scattered = 64 * 3, 16 * 64 * 5
    assert stored("%x[%j, %k, %i] + 1.0") == -scattered
    assert stored("%x[%j, %k, %i] * %w[0, %k]") == -scattered
    assert stored("%x[0, %k, %i] * %w[%j, %k]") == -turned


def test_blocks_are_not_transposed_around_two_products() -> None:
    """Their epilogue is split off, and takes one row at a time."""

    def rows(results: int) -> int:
        products = "".join(
            f"%s{n} = reduce add %k{n} in 0..4 {{ yield %x[%k{n}, %i] * %w[{n}, %k{n}, %j] }}" for n in range(results)
        )
        body = f"parallel %i in 0..64 {{ parallel %j in 0..16 {{ {products} store %s0, %y[%i, %j] }} }}"
        return scores("const %x: f32[4, 64], in %w: f32[2, 4, 16], out %y: f32[64, 17]", body)["i"]

    each_product = 2 * 16 * 4 * (64 - 4) + 2 * 16 * 4 * (64 - 4)
    assert rows(1) == each_product + 16 * 64 - 64 * 3
    assert rows(2) == 2 * each_product + 16 * 64 - 16 * 64 * 5


def test_a_panel_is_better_than_rows_apart() -> None:
    """Each step of the sum meets another line of %x, and the next vector of a packed constant."""

    def contracted(role: str) -> int:
        body = """parallel %j in 0..64 { %s = reduce add %k in 0..4 { yield %x[%k, %j] * %w[%k] } store %s, %y[%j] }"""
        return scores(f"{role} %x: f32[4, 64], in %w: f32[4], out %y: f32[64]", body)["j"]

    assert contracted("const") - contracted("in") == 4 * 4 // 2


def test_vectors_of_a_local_buffer_straddle_lines_too() -> None:
    """Unlike those of a buffer that each lane has for itself."""
    loop = "local %t: f32[80] for %i in 0..64 {{ store %t[{}], %y[%i] }}".format
    assert scores("out %y: f32[64]", loop("%i"))["i"] == 2 * (64 - 4)
    assert scores("out %y: f32[64]", loop("%i + 1"))["i"] == (64 - 6) + (64 - 4)
    own = "for %i in 0..64 { local %t: f32[9] store 0.0, %t[1] store %t[1], %y[%i] }"
    assert scores("out %y: f32[64]", own)["i"] == 3 * (64 - 4)


def test_blocks_are_not_transposed_across_a_local_buffer() -> None:
    """Neighbours along %h lie side by side, but its steps fill one buffer."""
    text = """kernel @k(in %x: f32[8, 16, 6], out %y: f32[8, 16]{1, 0}) {
      parallel %h in 0..8 { BUFFER parallel %i in 0..16 { store VALUE, %y[%h, %i] } }
    }"""
    buffer = "local %t: f32[16] for %j in 0..16 { store %x[%h, %j, 0], %t[%j] }"
    for declared, value, loops in (("", "%x[%h, %i, 0]", ["h"]), (buffer, "%t[%i]", [])):
        table = Accesses(parse_kernel(text.replace("BUFFER", declared).replace("VALUE", value)))
        store = next(a for a in table.all if a.buffer == "y")
        assert [r.var for r in transpose_loops(table, store, "i", 8)] == loops


def test_blocks_are_transposed_along_rows_of_a_product() -> None:
    """Neighbours in memory that each multiply another vector are not rows of one tile."""
    text = """kernel @k(in %x: f32[4, 9], in %w: f32[4, 64, 4], out %y: f32[64, 36]) {
      parallel %i in 0..64 { parallel %q in 0..9 { parallel %r in 0..4 {
        %s = reduce add %k in 0..4 { yield %x[%k, %q] * %w[%k, %i, WEIGHT] } store %s, %y[%i, %q*STEP + %r*NEXT] } } } }"""
    for weight, step, near, loops in (("%r", 5, 1, []), ("0", 5, 1, ["r"]), ("%r", 1, 9, ["q"])):
        given = text.replace("WEIGHT", weight).replace("STEP", str(step)).replace("NEXT", str(near))
        table = Accesses(parse_kernel(given))
        store = next(a for a in table.all if a.buffer == "y")
        assert [r.var for r in transpose_loops(table, store, "i", 16)] == loops


@pytest.mark.parametrize(("rows", "walks"), [(2000, 0), (5000, 1)])
def test_rows_in_more_pages_than_the_tlb_keeps_cost_a_page_walk_each(rows: int, walks: int) -> None:
    """Lanes along rows that lie a page apart: a block of 16 x 16 goes through 16 pages."""
    params = f"in %x: f32[{rows}, 1040], out %y: f32[1040, {rows}]"
    found = scores(
        params,
        f"parallel %j in 0..1040 {{ parallel %i in 0..{rows} {{ store %x[%i, %j], %y[%j, %i] }} }}",
    )
    elements, vectors = 1040 * rows, 1040 * -(-rows // 16)
    each = AVX512.transpose_cost + 1 + walks * AVX512.page_walk_cycles * AVX512.loads_per_cycle
    stored = AVX512.unaligned_cost if rows % 16 else 1
    assert found["i"] == int(2 * elements - vectors * (each + stored))
