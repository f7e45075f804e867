"""tile: how many indices are taken at once."""

from __future__ import annotations

import pytest

from compiler.cost.machine import AVX2, AVX512, NEON, SSE, Machine
from compiler.ir.tile.kernel import stmt_ranges, walk
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass, parse_ir


def matmul(rows: int, columns: int, depth: int, lanes: int, i: str = "", j: str = "") -> str:
    return f"""kernel @matmul(in %x: f32[{rows}, {depth}], const %w: f32[{columns}, {depth}], out %y: f32[{rows}, {columns}]) {{
      parallel %j in 0..{columns}{j or f" tile {lanes}"} lanes {lanes} {{ parallel %i in 0..{rows}{i} {{
        %s = reduce add %k in 0..{depth} {{ yield %x[%i, %k] * %w[%j, %k] }}
        store %s, %y[%i, %j]
      }} }}
    }}"""


def sizes(text: str, options: str = "", machine: Machine = AVX512) -> dict[str, int]:
    """The tile of each loop after the pass."""
    kernel = run_pipeline(parse_ir(text), f"tile{options}", Context(machine=machine))
    return {r.var: r.tile for s in walk(kernel.body) for r in stmt_ranges(s)}


def test_options_fix_the_block() -> None:
    check_pass(
        "tile{rows=4, columns=8}",
        before=matmul(10, 20, 3, 4),
        after=matmul(10, 20, 3, 4, " tile 4", " tile 8"),
        remark="4 rows x 8 columns in 4 lanes for %s",
    )


@pytest.mark.parametrize("machine", [AVX512, AVX2, SSE, NEON])
@pytest.mark.parametrize("shape", [(512, 512, 512), (128, 3072, 768), (1, 1000, 64), (17, 33, 5), (3136, 64, 576)])
def test_accumulators_fit_the_registers(shape: tuple[int, int, int], machine: Machine) -> None:
    lanes = machine.lanes(32)
    found = sizes(matmul(*shape, lanes), machine=machine)
    registers = -(-found["j"] // lanes)
    assert 1 <= found["i"] <= shape[0]
    assert 1 <= found["j"] <= shape[1]
    assert found["i"] * registers + registers + 1 <= machine.registers


def test_sums_around_a_sum_hold_registers_too() -> None:
    """One tile for both; the outer one is not a block of its own."""
    text = """kernel @k(in %x: i32[64, 8, 4], const %w: i32[8, 4, 64], const %s: i32[8, 64], out %y: i32[64, 64]) {
      parallel %i in 0..64 { parallel %j in 0..64 lanes 8 {
        %t = reduce add %g in 0..8 {
          %p = reduce add %k in 0..4 { yield %x[%i, %g, %k] * %w[%g, %k, %j] }
          yield %p * %s[%g, %j]
        }
        store %t, %y[%i, %j]
      } }
    }"""
    found = sizes(text, machine=AVX2)
    vectors = found["j"] // 8
    assert found["i"] > 1
    assert 2 * found["i"] * vectors + vectors <= AVX2.registers


def test_a_large_product_keeps_the_multipliers_busy() -> None:
    """Enough independent sums to hide the latency of one multiply-add."""
    for machine in (AVX512, AVX2):
        found = sizes(matmul(512, 512, 512, machine.lanes(32)), machine=machine)
        assert found["i"] * found["j"] // machine.lanes(32) >= machine.fma_latency * machine.fma_per_cycle


@pytest.mark.parametrize(("rows", "role", "width"), [(1, "in", 128), (1, "const", 64), (14, "in", 32)])
def test_a_single_row_reads_whole_rows_of_what_is_not_packed(rows: int, role: str, width: int) -> None:
    """A block of half the columns would skip every other half of a row, and walk them all again."""
    text = matmul(rows, 128, 256, 16).replace("f32[128, 256]", "f32[256, 128]").replace("%w[%j, %k]", "%w[%k, %j]")
    assert sizes(text.replace("const", role))["j"] == width


def test_results_across_memory_leave_in_full_lines() -> None:
    """Planes of 1024 elements share a cache set: blocks of four rows would send each line back three times before it is full."""
    text = matmul(1024, 64, 27, 16)
    assert sizes(text) == {"k": 1, "i": 4, "j": 64}
    planes = text.replace("%y: f32[1024, 64]", "%y: f32[64, 1024]").replace("%y[%i, %j]", "%y[%j, %i]")
    assert sizes(planes) == {"k": 1, "i": 14, "j": 32}


def test_rows_of_wide_elements_are_fewer() -> None:
    """Thirteen rows of 256 elements of eight bytes do not stay near."""
    text = matmul(128, 256, 256, 8)
    assert sizes(text)["i"] == 13
    assert sizes(text.replace("f32", "f64"))["i"] == 8


def test_other_lane_loops_take_some_registers() -> None:
    check_pass(
        "tile",
        before="""kernel @k(in %x: f32[100], out %y: f32[100]) {
          for %i in 0..100 tile 4 lanes 4 { store exp(%x[%i]), %y[%i] }
          %s = reduce add %k in 0..100 tile 4 lanes 4 { yield %x[%k] }
        }""",
        after="""kernel @k(in %x: f32[100], out %y: f32[100]) {
          for %i in 0..100 tile 16 lanes 4 { store exp(%x[%i]), %y[%i] }
          %s = reduce add %k in 0..100 tile 16 lanes 4 { yield %x[%k] }
        }""",
    )


def test_sums_side_by_side_hide_their_latency_and_are_never_more_than_there_are() -> None:
    text = """kernel @k(in %x: f32[7, {n}], out %y: f32[{n}]) {{
      for %i in 0..{n} tile 4 lanes 4 {{ %s = reduce max %k in 0..7 {{ yield %x[%k, %i] }} store %s, %y[%i] }} }}"""
    assert sizes(text.format(n=100))["i"] == 16
    assert sizes(text.format(n=6))["i"] == 6
    assert sizes(text.format(n=3))["i"] == 3


def test_threads_that_share_nothing_but_a_lane_loop_have_a_tile_each() -> None:
    text = """kernel @k(in %x: f32[{m}, 7, 16], out %y: f32[{m}, 16]) {{ parallel %j in 0..{m} {{
      parallel %i in 0..16 tile 4 lanes 4 {{
        %s = reduce max %k in 0..7 {{ yield %x[%j, %k, %i] }} store %s, %y[%j, %i] }} }} }}"""
    assert sizes(text.format(m=1))["i"] == 8  # of two threads
    assert sizes(text.format(m=2))["i"] == 16


def test_fewer_where_each_index_has_a_long_buffer() -> None:
    text = """kernel @k(in %x: f32[50, 100], out %y: f32[50, 100]) {
      for %i in 0..100 tile 4 lanes 4 {
        local %t: f32[50]
        for %j in 0..50 { store %x[%j, %i], %t[%j] }
        for %k in 0..50 { store %t[49 - %k], %y[%k, %i] }
      } }"""
    assert sizes(text)["i"] == 16
    assert sizes(text, machine=Machine(l2=8 * 200))["i"] == 8
    assert sizes(text, machine=Machine(l2=100))["i"] == 4


def test_rows_that_depend_on_each_other_are_taken_one_by_one() -> None:
    text = """kernel @k(in %x: f32[20, 3], const %w: f32[8, 3], inout %y: f32[21, 8]) {
      for %i in 0..20 { for %j in 0..8 tile 4 lanes 4 {
        %s = reduce add %k in 0..3 { yield %x[%i, %k] * %w[%j, %k] }
        store %s + %y[%i, %j], %y[%i + 1, %j]
      } } }"""
    assert sizes(text)["i"] == 1
    assert sizes(text.replace("%y[%i, %j]", "1.0:f32"))["i"] > 1


def test_the_start_of_a_block_is_no_row() -> None:
    text = """kernel @k(in %x: f32[640, 3], const %w: f32[8, 3], out %y: f32[640, 8]) {
      for %b in 0..40 { for %j in 0..8 tile 4 lanes 4 { for %i in %b*16..%b*16 + 16 {
        %s = reduce add %k in 0..3 { yield %x[%i, %k] * %w[%j, %k] }
        store %s, %y[%i, %j]
      } } } }"""
    assert sizes(text)["b"] == 1
    assert sizes(text)["i"] > 1


def test_a_sum_of_bound_products_has_no_block() -> None:
    text = """kernel @k(in %x: f32[20, 8], out %y: f32[8]) {
      for %i in 0..8 tile 4 lanes 4 { %s = reduce add %k in 0..20 { %v = %x[%k, %i] yield %v * %v } store %s, %y[%i] } }"""
    assert sizes(text)["i"] == 8


def turning(columns: int, i: str, j: str) -> str:
    return f"""kernel @k(in %x: f32[{columns}, 40], out %y: f32[40, {columns}]) {{
      parallel %j in 0..40{j} lanes 8 {{ parallel %i in 0..{columns}{i} {{ store %x[%i, %j], %y[%j, %i] }} }} }}"""


@pytest.mark.parametrize(("columns", "rows"), [(4, " tile 4"), (8, " tile 8"), (30, " tile 8"), (3, " tile 3")])
def test_loops_that_walk_memory_across_the_lanes_are_turned_in_blocks(columns: int, rows: str) -> None:
    check_pass(
        "tile",
        before=turning(columns, "", " tile 8"),
        after=turning(columns, rows, " tile 8"),
        remark=f"%y: {rows[-1:]} %i blocks transposed in registers",
    )


def test_three_columns_of_a_longer_row_are_no_block() -> None:
    before = turning(3, "", " tile 8").replace("f32[40, 3]", "f32[40, 5]")
    check_pass("tile", before=before, after=before.replace(" tile 8", " tile 32"))


def interleaved(i: str, b: str, j: str) -> str:
    return f"""kernel @k(in %x: f32[40, 2, 40], out %y: f32[40, 80]) {{
      parallel %b in 0..2{b} {{ parallel %i in 0..40{i} {{ parallel %j in 0..40{j} lanes 8 {{
        store %x[%i, %b, %j], %y[%j, 2*%i + %b] }} }} }} }}"""


def doubled(i: str, b: str, j: str) -> str:
    return f"""kernel @k(in %x: f32[40, 10], out %y: f32[40, 20]) {{
      parallel %j in 0..40{j} lanes 8 {{ parallel %i in 0..10{i} {{ parallel %b in 0..2{b} {{
        store %x[%j, %i], %y[%j, 2*%i + %b] }} }} }} }}"""


def test_stores_choose_blocks_before_loads_do() -> None:
    """A block for the load would leave every second element of a row to the store."""
    check_pass("tile", before=doubled("", "", " tile 8"), after=doubled(" tile 4", " tile 2", " tile 8"))


def test_two_loops_that_walk_memory_across_the_lanes_are_turned_in_blocks() -> None:
    check_pass(
        "tile",
        before=interleaved("", "", " tile 8"),
        after=interleaved(" tile 4", " tile 2", " tile 8"),
        remark="%y: 4 %i x 2 %b blocks transposed in registers",
    )


def test_rows_of_sums_take_those_that_lie_between_them_along() -> None:
    """As in a transposed convolution, whose neighbours in memory have other weights."""
    text = """kernel @k(in %x: f32[16, 40], const %w: f32[16, 2, 40], out %y: f32[40, 80]) {
      parallel %b in 0..2B { parallel %j in 0..40J lanes 8 { parallel %i in 0..40I {
        %s = reduce add %k in 0..16 { yield %x[%k, %i] * %w[%k, %b, %j] }
        store %s, %y[%j, 2*%i + %b] } } } }"""

    def tiled(b: str, j: str, i: str) -> str:
        return text.replace("B", b, 1).replace("J", j, 1).replace("I", i, 1)

    check_pass(
        "tile",
        before=tiled("", " tile 8", ""),
        after=tiled(" tile 2", " tile 8", " tile 10"),
        remark="10 rows x 2 x 8 columns in 8 lanes for %s",
    )


def in_parts(buffer: str, own: str, where: str) -> str:
    """Depthwise windows of a padded copy that is made for each part of the channels."""
    return f"""kernel @k(in %x: f32[96, 30, 30], {buffer}const %w: f32[96, 3, 3], out %y: f32[96, 28, 28]) {{
      parallel %c in 0..96 tile 16 lanes 16 {{
        {own}
        for %a in 0..30 {{ for %b in 0..30 {{ store %x[%c, %a, %b], %p[{where}%a, %b] }} }}
        for %h in 0..28 {{ for %i in 0..28 {{
          %s = reduce add %r in 0..3, %t in 0..3 {{ yield %p[{where}%h + %r, %i + %t] * %w[%c, %r, %t] }}
          store %s, %y[%c, %h, %i]
        }} }}
      }}
    }}"""


@pytest.mark.parametrize(
    "text",
    [in_parts("", "local %p: f32[30, 30]", ""), in_parts("scratch %p: f32[96, 30, 30]{1, 2, 0}, ", "", "%c, ")],
    ids=["local", "scratch"],
)
def test_sums_of_what_is_turned_are_as_wide(text: str) -> None:
    """One vector of channels, and rows that fill a line: they lie side by side, in the buffer for work too (`pack`)."""
    assert sizes(text) == {"c": 16, "a": 1, "b": 16, "h": 1, "i": 16, "r": 1, "t": 1}


def test_a_block_that_is_turned_holds_no_reduction() -> None:
    """Its accumulators would fill the registers."""
    text = """kernel @k(in %x: f32[8, 20, 40], out %y: f32[40, 8]) {
      parallel %j in 0..40 tile 8 lanes 8 { parallel %i in 0..8 {
        %s = reduce max %k in 0..20 { yield %x[%i, %k, %j] }
        store %s, %y[%j, %i] } } }"""
    assert sizes(text)["i"] == 1


def test_a_loop_that_another_place_divides_walks_no_memory() -> None:
    """It will be split in two."""
    text = """kernel @k(in %x: f32[4, 40], out %y: f32[40, 8]) {
      parallel %j in 0..40 tile 8 lanes 8 { parallel %i in 0..8 { store %x[%i // 2, %j], %y[%j, %i] } } }"""
    assert sizes(text)["i"] == 1


def test_neighbouring_windows_keep_what_they_share() -> None:
    """Lanes along channels: a block of rows leaves room for the image beside its accumulators."""
    found = sizes("""kernel @k(in %x: f32[30, 30, 48], const %w: f32[3, 3, 48], out %y: f32[28, 28, 48]) {
      parallel %c in 0..48 tile 16 lanes 16 { parallel %i in 0..28 { parallel %j in 0..28 {
        %s = reduce add %r in 0..3, %q in 0..3 { yield %x[%i + %r, %j + %q, %c] * %w[%r, %q, %c] }
        store %s, %y[%i, %j, %c] } } } }""")
    assert found["i"] == 1
    assert found["j"] * found["c"] // 16 * 2 <= AVX512.registers - 2


def test_contractions_that_walk_one_constant_agree_on_its_panels() -> None:
    """Whatever suits each of them alone: their weights lie in memory once.  Rows are their own."""
    parts = " ".join(
        f"""parallel %j{n} in 0..96 tile 16 lanes 16 {{ parallel %i{n} in 0..{rows} {{
          %s{n} = reduce add %k in 0..64 {{ yield %x[%i{n} + {first}, %k] * %w[%j{n}, %k] }}
          store %s{n}, %y[%i{n} + {first}, %j{n}] }} }}"""
        for n, rows, first in ((0, 1, 0), (1, 12, 1))
    )
    found = sizes(f"kernel @k(in %x: f32[13, 64], const %w: f32[96, 64], out %y: f32[13, 96]) {{ {parts} }}")
    assert found["j0"] == found["j1"]
    assert found["i0"] == 1
    assert found["i1"] > 1


def test_rows_of_a_loop_that_holds_other_rows_are_not_taken_together() -> None:
    """The second sum has fewer rows inside than outside, but the first one's are inside as well."""
    parts = " ".join(
        f"""parallel %r{n} in 0..{rows} {{
          %s{n} = reduce add %k in 0..64 {{ yield %x[%i, %r{n} + {first}, %k] * %w[%j, %k] }}
          store %s{n}, %y[%i, %r{n} + {first}, %j] }}"""
        for n, rows, first in ((0, 12, 0), (1, 4, 12))
    )
    head = "kernel @k(in %x: f32[6, 16, 64], const %w: f32[96, 64], out %y: f32[6, 16, 96])"
    found = sizes(f"{head} {{ parallel %j in 0..96 tile 16 lanes 16 {{ parallel %i in 0..6 {{ {parts} }} }} }}")
    assert found["i"] == 1
    assert found["r0"] > 1
    assert found["r1"] > 1


def pixels(channels: int, taps: int, first: str, i: str = "", j: str = " tile 16") -> str:
    """14 results of a convolution with 32 channels over eight of its image's; this is read at `first`."""
    return f"""kernel @k(in %x: f32[57, {channels}], const %w: f32[32, {taps}, 8], out %y: f32[14, 32]) {{
      parallel %j in 0..32{j} lanes 16 {{ parallel %i in 0..14{i} {{
        %s = reduce add %k in 0..8, %t in 0..{taps} {{ yield %x[{first}, %k] * %w[%j, %t, %k] }}
        store %s, %y[%i, %j]
      }} }} }}"""


@pytest.mark.parametrize(
    ("channels", "taps", "first", "rows"),
    [
        (512, 3, "%i*2 + %t*15", 7),  # 4096 bytes apart
        (256, 3, "%i*2 + %t*15", 14),  # 2048 bytes: half in each of two sets
        (256, 3, "%i + %t", 7),  # the taps written out meet places of other rows
        (256, 3, "%i*2 + %t*14", 7),  # those of every seventh
        (256, 10, "%i + %t", 14),  # those of a loop do not wait
    ],
)
def test_rows_of_an_image(channels: int, taps: int, first: str, rows: int) -> None:
    check_pass(
        "tile",
        before=pixels(channels, taps, first),
        after=pixels(channels, taps, first, f" tile {rows}", " tile 32"),
        remark=f"{rows} rows x 32 columns in 16 lanes for %s",
    )


SCORES = """kernel @scores(in %q: f32[{heads}, 64], in %keys: f32[{keys}, 64], out %y: f32[{heads}, {keys}]) {{
  parallel %h in 0..{heads}{h} {{
    for %j in 0..{keys}{j} {{
      %s = reduce add %k in 0..64 tile {k} lanes 16 {{ yield %q[%h, %k] * %keys[%j, %k] }}
      store %s, %y[%h, %j]
    }}
  }} }}"""
"""Heads that share keys, with lanes along the sum."""

SUMMED = """kernel @scores(in %q: f32[{heads}, 64], in %keys: f32[{keys}, 64], out %y: f32[{heads}], out %z: f32[{heads}]) {{
  parallel %h in 0..{heads}{h} {{
    %a = reduce add %j in 0..{keys} {{
      %s = reduce add %k in 0..64 tile 64 lanes 16 {{ yield %q[%h, %k] * %keys[%j, %k] }}
      yield %s
    }}
    store %a, %y[%h]
    store 0.0, %z[%h]
  }} }}"""
"""The same with one result for each head."""


def product_of_rows(groups: int, rows: int, image: str = "%k, %j", statements: str = "") -> str:
    return f"""kernel @k(in %w: f32[{groups}, {rows}, 64], in %x: f32[{groups}, 64, 512], out %y: f32[{groups}, {rows}, 512]) {{
      parallel %g in 0..{groups} {{ parallel %h in 0..{rows} {{ parallel %j in 0..512 lanes 16 {{
        %s = reduce add %k in 0..64 {{ yield %w[%g, %h, %k] * %x[{image}] }}
        store %s, %y[%g, %h, %j]
      }} }} {statements} }}
    }}"""


@pytest.mark.parametrize(
    ("groups", "rows", "block"), [(2, 4, (2, 4)), (4, 2, (4, 2)), (64, 4, (14, 1)), (4, 64, (1, 14))]
)
def test_rows_of_two_short_loops_are_taken_together(groups: int, rows: int, block: tuple[int, int]) -> None:
    """Vectors of the image are loaded once for all of them."""
    found = sizes(product_of_rows(groups, rows, "0, %k, %j"))
    assert (found["g"], found["h"]) == block


def test_rows_that_read_other_vectors_or_hold_two_sums_are_not_taken_together() -> None:
    """Nothing is shared between groups, and tiles of two sums would have to agree."""
    second = "parallel %i in 0..4 { %t = reduce add %k in 0..64 { yield %w[%g, %i, %k] * %x[0, %k, 0] } store %t, %y[%g, %i, 0] }"
    assert sizes(product_of_rows(2, 4, "%g, %k, %j"))["g"] == 1
    assert sizes(product_of_rows(2, 4, "0, %k, %j", second))["g"] == 1


def test_rows_of_sums_over_lanes_share_what_they_read() -> None:
    check_pass(
        "tile",
        before=SUMMED.format(heads=3, keys=512, h=""),
        after=SUMMED.format(heads=3, keys=512, h=" tile 3"),
        remark="3 rows of %h share what %s reads",
    )


@pytest.mark.parametrize(("heads", "keys"), [(5, 512), (3, 61)])
def test_rows_share_nothing_if_no_tile_divides_them_or_the_cache_holds_it(heads: int, keys: int) -> None:
    check_pass("tile", unchanged=SUMMED.format(heads=heads, keys=keys, h=""))


@pytest.mark.parametrize(
    ("heads", "keys", "block"),
    [
        (3, 64, (3, 4)),
        (3, 512, (3, 4)),  # whether the first-level cache holds the keys or not
        (4, 61, (4, 4)),  # the last keys are a smaller block
        (5, 512, (3, 4)),  # 3 and 2 load less than 4 and 1
        (2, 7, (2, 4)),
    ],
)
def test_blocks_of_sums_over_lanes_share_what_they_read(heads: int, keys: int, block: tuple[int, int]) -> None:
    """One sum of a block needs no second accumulator."""
    h, j = block
    check_pass(
        "tile",
        before=SCORES.format(heads=heads, keys=keys, h="", j="", k=64),
        after=SCORES.format(heads=heads, keys=keys, h=f" tile {h}", j=f" tile {j}", k=16),
        remark=f"{h} %h x {j} %j sums of %s share what they read",
    )


@pytest.mark.parametrize(
    ("length", "rows", "k"), [(32, 4, 16), (64, 2, 16), (128, 1, 32), (1024, 1, 32), (2048, 4, 16)]
)
def test_a_block_reads_short_rows_from_memory_in_order(length: int, rows: int, k: int) -> None:
    text = SCORES.format(heads=3, keys=(1 << 20) // length, h="", j="", k=length)  # 4 MiB
    found = sizes(text.replace("0..64", f"0..{length}").replace(", 64]", f", {length}]"))
    assert (found["h"], found.get("j", 1), found["k"]) == (3, rows, k)


@pytest.mark.parametrize(("machine", "block"), [(AVX512, 16), (AVX2, 12), (NEON, 16)])
def test_a_block_of_sums_and_its_shorter_side_fit_the_registers(machine: Machine, block: int) -> None:
    found = sizes(SCORES.format(heads=4, keys=64, h="", j="", k=64), machine=machine)
    assert found["h"] * found["j"] == block


def test_one_row_is_no_block() -> None:
    check_pass("tile", unchanged=SCORES.format(heads=1, keys=64, h="", j="", k=64))


def slices(count: int, tile: str = "", columns: int = 64) -> str:
    """A sum of a few sums that read the same words."""
    return f"""kernel @k(in %x: i32[8, {count}, 4], const %w: i32[8, 2, 96], in %s: f32[8, {count}], out %y: f32[96]) {{
      parallel %j in 0..96 tile {columns} lanes 16 {{
        %t = reduce add %g in 0..8 {{
          %u = reduce add %i in 0..{count}{tile} {{
            %p = reduce add %k in 0..4 {{ yield %x[%g, %i, %k] * (%w[%g, %k//2, %j] >> 4 & 15) }}
            yield cast<f32>(%p) * %s[%g, %i]
          }}
          yield %u
        }}
        store %t, %y[%j]
      }}
    }}"""


@pytest.mark.parametrize(("count", "tile", "columns"), [(3, " tile 3", 48), (7, " tile 7", 48), (1, "", 96)])
def test_sums_that_another_sum_adds_share_vectors(count: int, tile: str, columns: int) -> None:
    """Registers hold them, a sum for each column, and the word and what is computed of it."""
    check_pass(
        "tile",
        before=slices(count, columns=16),
        after=slices(count, tile, columns),
        remark=f"{count} rows x {columns} columns",
        machine=AVX512,
    )


@pytest.mark.parametrize("value", ["abs(%x[%i, %k] - %w[%k, %j])", "%v * %v"])
@pytest.mark.parametrize("machine", [AVX512, AVX2, NEON])
def test_distances_have_blocks_of_accumulators(value: str, machine: Machine) -> None:
    text = f"""kernel @k(in %x: f32[300, 64], in %w: f32[64, 320], out %y: f32[300, 320]) {{
      parallel %i in 0..300 {{ parallel %j in 0..320 tile {machine.lanes(32)} lanes {machine.lanes(32)} {{
        %s = reduce add %k in 0..64 {{ %v = %x[%i, %k] - %w[%k, %j]  yield {value} }}
        store %s, %y[%i, %j]
      }} }}
    }}"""
    found = sizes(text, machine=machine)
    registers = -(-found["j"] // machine.lanes(32))
    assert found["i"] > 1
    assert (
        registers > 1
    )  # a broadcast serves several vectors: no operand of an instruction, it takes a step of a vector unit
    assert found["i"] * registers + registers + 1 <= machine.registers


def test_wide_accumulators_take_several_registers() -> None:
    """Numbers of 64 bits of 16 comparisons."""
    text = """kernel @k(in %x: f32[300, 64], in %w: f32[64, 320], out %y: i64[300, 320]) {
      parallel %i in 0..300 { parallel %j in 0..320 tile 16 lanes 16 {
        %s = reduce add %k in 0..64 { yield cast<i64>(%x[%i, %k] < %w[%k, %j]) }
        store %s, %y[%i, %j]
      } }
    }"""
    found = sizes(text)
    assert 2 * found["i"] * found["j"] // 16 < AVX512.registers


def test_a_range_of_the_sum_that_has_lanes_may_be_the_row_loop() -> None:
    text = """kernel @k(in %x: f32[6, 6], in %w: f32[6, 6], out %y: f32[]) {
      %t = reduce add %i in 0..6, %j in 0..6 tile 16 lanes 16 {
        %p = reduce add %k in 0..6 { yield %x[%i, %k] * %w[%k, %j] }
        yield %p * %p
      }
      store %t, %y[]
    }"""
    assert sizes(text)["k"] == 1
