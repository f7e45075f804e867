"""Prefetch: rows read several times are fetched one ahead."""

from __future__ import annotations

from functools import partial

import pytest

from compiler.cost.machine import Machine
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.tile_printer import print_kernel
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass

ROWS = """kernel @centre(in %x: f32[{rows}, 1024], out %y: f32[{rows}, 1024]) {{
  parallel %i in 0..{rows} {{
    %s = reduce add %r in 0..1024 tile 64 lanes 16 {{ yield %x[%i, %r] }}
    for %j in 0..1024 tile 64 lanes 16 {{ store %x[%i, %j] - %s, %y[%i, %j] }}
  }}
}}"""


def test_the_second_loop_asks_for_the_next_row() -> None:
    text = print_kernel(run_pipeline(parse_kernel(ROWS.format(rows=4096)), "prefetch"))
    assert "for %j in 0..1024 tile 64 lanes 16 {\n      prefetch %x[%i + 1, %j]\n" in text
    assert print_kernel(parse_kernel(text)) == text


def test_rows_of_sums_over_two_loops_are_left_alone() -> None:
    """The second loop has no index of the outer one."""
    kernel = parse_kernel("""kernel @k(in %x: f32[8, 64, 8192], out %y: f32[8, 8192]) {
      parallel %i in 0..8 { parallel %g in 0..8 {
        %s = reduce add %j in 0..64, %k in 0..1024 tile 64 lanes 16 { yield %x[%i, %j, %g*1024 + %k] }
        for %l in 0..1024 tile 64 lanes 16 { store %x[%i, 0, %g*1024 + %l] - %s, %y[%i, %g*1024 + %l] }
      } } }""")
    assert run_pipeline(kernel, "prefetch") is kernel


def test_rows_that_data_decides_are_left_alone() -> None:
    """The second loop begins before it knows them."""
    kernel = parse_kernel("""kernel @k(in %x: f32[8192, 1024], in %n: i64[8192, 1024], out %y: f32[8192, 1024]) {
      parallel %i in 0..8192 {
        %s = reduce add %r in 0..1024 tile 64 lanes 16 {
          %a = %n[%i, %r]
          yield %x[%a, %i + %r]
        }
        for %j in 0..1024 tile 64 lanes 16 {
          %b = %n[%i, %j]
          store %x[%b, %i + %j] - %s, %y[%i, %j]
        }
      } }""")
    text = print_kernel(run_pipeline(kernel, "prefetch"))
    assert "prefetch %n[%i + 1, %j]" in text
    assert "prefetch %x" not in text


def test_rows_that_stay_in_cache_are_left_alone() -> None:
    kernel = parse_kernel(ROWS.format(rows=16))
    assert run_pipeline(kernel, "prefetch") is kernel


def test_rows_of_which_no_cache_holds_two_are_left_alone() -> None:
    kernel = parse_kernel(ROWS.format(rows=4096))
    assert run_pipeline(kernel, "prefetch", Context(machine=Machine(l2=8191))) is kernel
    assert run_pipeline(kernel, "prefetch", Context(machine=Machine(l2=8192))) is not kernel


PANELS = """kernel @linear(in %x: f32[{rows}, 1024], const %w: f32[{columns}, 1024]{{0/64, 1, 0%64}}, out %y: f32[{rows}, {columns}]) {{
  parallel %j in 0..{columns} tile 64 lanes 16 {{
    for %i in 0..{rows} tile 8 {{
      %s = reduce add %k in 0..1024 {{ yield %x[%i, %k] * %w[%j, %k] }}
      store %s, %y[%i, %j]
    }}
  }}
}}"""


def test_panels_of_weights_are_fetched_a_little_ahead() -> None:
    text = print_kernel(run_pipeline(parse_kernel(PANELS.format(rows=32, columns=960)), "prefetch"))
    assert "prefetch %w[%j, %k + 64]" in text
    assert print_kernel(parse_kernel(text)) == text


def test_weights_wait_in_the_second_cache_where_rows_take_longer_than_memory() -> None:
    """Eight rows of a vector are eight multiply-adds for a line, which memory brings in 6.4 cycles."""
    slow = Machine(fma_per_cycle=1)
    text = print_kernel(
        run_pipeline(parse_kernel(PANELS.format(rows=32, columns=960)), "prefetch", Context(machine=slow))
    )
    assert "prefetch %w[%j, %k + 64] level 2\n" in text
    assert "prefetch %w[%j, %k + 16]\n" in text
    assert print_kernel(parse_kernel(text)) == text
    few = parse_kernel(PANELS.format(rows=32, columns=960).replace("tile 8", "tile 6"))
    text = print_kernel(run_pipeline(few, "prefetch", Context(machine=slow)))
    assert text.count("prefetch") == 1
    assert "prefetch %w[%j, %k + 64]\n" in text


def test_an_open_number_of_rows_asks_as_suits_what_a_tile_has() -> None:
    before = """kernel @linear(size n in 1..20 hint 12, in %x: f32[n, 8], const %w: f32[64, 8]{0/64, 1, 0%64}, out %y: f32[n, 64]) {
      for %j in 0..64 tile 64 lanes 16 {
        for %i in 0..n tile 8 {
          %s = reduce add %k in 0..8 {
            yield %x[%i, %k] * %w[%j, %k]
          }
          store %s, %y[%i, %j]
        }
      }
    }"""
    few, far, near = "%w[%j, %k + 64] reuse 1..7", "%w[%j, %k + 64] level 2 reuse 7..", "%w[%j, %k + 16] reuse 7.."
    asking = " ".join(f"prefetch {place}" for place in (few, far, near))
    after = before.replace("yield", f"{asking} yield")
    check_pass("prefetch", before=before, after=after, machine=Machine(fma_per_cycle=1, l1=1024), idempotent=False)
    check_pass(
        "prefetch",
        before=before,
        after=before.replace("yield", f"prefetch {few[:-10]} yield"),
        machine=Machine(l1=1024),
        idempotent=False,
    )


def test_weights_that_stay_in_cache_are_left_alone() -> None:
    kernel = parse_kernel(PANELS.format(rows=32, columns=960).replace("1024", "12"))
    assert run_pipeline(kernel, "prefetch") is kernel


def test_weights_that_are_not_walked_from_end_to_end_are_left_alone() -> None:
    kernel = parse_kernel(PANELS.format(rows=32, columns=960).replace("{0/64, 1, 0%64}", "{1, 0}"))
    assert run_pipeline(kernel, "prefetch") is kernel


def test_a_window_of_weights_is_one_walk() -> None:
    """The last channels of a tap ask for the first ones of the next."""
    kernel = parse_kernel("""
      kernel @conv(in %x: f32[66, 512], const %w: f32[512, 512, 3]{0/64, 2, 1, 0%64}, out %y: f32[64, 512]) {
        parallel %j in 0..512 tile 64 lanes 16 {
          for %i in 0..64 tile 8 {
            %s = reduce add %t in 0..3, %k in 0..512 { yield %x[%i + %t, %k] * %w[%j, %k, %t] }
            store %s, %y[%i, %j]
          }
        }
      }""")
    assert "prefetch %w[%j, %k + 64, %t]" in print_kernel(run_pipeline(kernel, "prefetch"))


WEIGHTS = str([[row * column % 5 for column in range(16)] for row in range(16)])
STEP = f"""program {{
  input %h: f32[2, 16]
  constant %w: f32[16, 16]{{1, 0}} {WEIGHTS}
  output %y: f32[4, 2, 16]
  kernel @step(in %x: f32[2, 16], const %w: f32[16, 16]{{1, 0}}, out %y: f32[2, 16]) {{
    for %j in 0..16 tile 16 lanes 16 {{ for %i in 0..2 tile 2 {{
      %s = reduce add %k in 0..16 {{ yield %x[%i, %k] * %w[%j, %k] }}
      store %s, %y[%i, %j]
    }} }}
  }}
  repeat %t in 0..4 {{ view %y.t = %y[%t]   launch @step(%h, %w, %y.t) }}
}}"""
ASKING = STEP.replace("0..16 { yield", "0..16 { prefetch %w[%j, %k + 2] yield")


def test_weights_that_the_next_step_of_a_loop_finds_in_a_cache_are_left_alone() -> None:
    """One KiB, an eighth of the last cache."""
    machine = Machine(l1=512, l3=8192)
    check_pass(
        "prefetch{distance=128}", unchanged=STEP, machine=machine, remark="constants stay in the last-level cache"
    )


def test_but_not_those_that_it_finds_in_memory() -> None:
    machine = Machine(l1=512, l3=8191)
    check_pass("prefetch{distance=128}", before=STEP, after=ASKING, machine=machine, idempotent=False)


def test_nor_those_of_a_kernel_that_runs_once() -> None:
    machine = Machine(l1=512, l3=8192)
    before, after = (s.replace("repeat %t in 0..4 {", "").replace("[%t]", "[0]")[:-1] for s in (STEP, ASKING))
    check_pass("prefetch{distance=128}", before=before, after=after, machine=machine, idempotent=False)


GROUPS = """kernel @groups(in %x: f32[4096], const %w: i32[128, 96, 4]{{1/96, 0, 2, 1%96}}, const %s: f32[128], out %y: f32[96]) {{
  parallel %j in 0..96 tile 96 lanes 16 {{
    %a = reduce add %g in 0..128 {{
      %p = reduce add %k in 0..32{unroll} {{
        {prefetch}yield %x[%g*32 + %k] * cast<f32>(%w[%g, %j, %k//8] >> cast<i32>(index(%k%8)) & 15) }}
      yield %p * %s[%g]
    }}
    store %a, %y[%j]
  }} }}"""
"""Eight weights share a word, so that a group of 32 reads four rows of words."""


def test_sums_in_groups_fetch_the_row_of_another_group_in_each_unrolled_step() -> None:
    unrolled = partial(GROUPS.format, unroll=" unroll 8")
    after = unrolled(prefetch="prefetch %w[%g + 10, %j, %k//8]  ")
    check_pass("prefetch", before=unrolled(prefetch=""), after=after, idempotent=False)


def test_arrays_that_one_loop_reads_share_the_distance() -> None:
    """A group has 1536 bytes of weights and 384 of scales."""
    text = GROUPS.replace("const %s: f32[128]", "const %s: f32[96, 128]{{0/96, 1, 0%96}}").replace(
        "%s[%g]", "%s[%j, %g]"
    )
    text = text.replace("%a = reduce add %g in 0..128 {{", "%a = reduce add %g in 0..128 {{ {scales}")
    text = text.replace("{unroll}", " unroll 8")
    after = text.format(prefetch="prefetch %w[%g + 8, %j, %k//8]  ", scales="prefetch %s[%j, %g + 8]  ")
    machine = Machine(l1=32 << 10)
    check_pass("prefetch", before=text.format(prefetch="", scales=""), after=after, machine=machine, idempotent=False)


def test_steps_that_share_a_row_fetch_nothing_unless_they_are_unrolled() -> None:
    check_pass("prefetch", unchanged=GROUPS.format(unroll="", prefetch=""))


CACHE = """program {{
  input %q: f32[3, 16]
  input %keys: f32[32, 16]
  input %values: f32[32, 16]
  output %y: f32[3, 16]
  buffer %s: f32[3, 32]
  kernel @scores(in %q: f32[3, 16], in %x: f32[32, 16], out %s: f32[3, 32]) {{
    for %j in 0..32 tile 4 {{ for %h in 0..3 tile 3 {{
      %a = reduce add %k in 0..16 tile 16 lanes 16 {{ {of_keys}yield %q[%h, %k] * %x[%j, %k] }}
      store %a, %s[%h, %j]
    }} }}
  }}
  kernel @mix(in %s: f32[3, 32], in %x: f32[32, 16], out %y: f32[3, 16]) {{
    for %k in 0..16 tile 16 lanes 16 {{ for %h in 0..3 tile 3 {{
      %a = reduce add %j in 0..32 {{ {of_values}yield %s[%h, %j] * %x[%j, %k] }}
      store %a, %y[%h, %k]
    }} }}
  }}
  launch @scores(%q, %keys, %s)
  launch @mix(%s, %values, %y)
}}"""
"""Keys and values of 2 KiB each, and a query of 192 bytes."""


def test_inputs_that_are_read_once_from_memory_are_fetched_ahead() -> None:
    """Keys a whole row at each step of a sum over lanes, values a vector."""
    after = CACHE.format(of_keys="prefetch %x[%j + 8, %k] ", of_values="prefetch %x[%j + 8, %k] ")
    before, machine = CACHE.format(of_keys="", of_values=""), Machine(l1=512, l3=4287)
    check_pass("prefetch{distance=512}", before=before, after=after, machine=machine, idempotent=False)
    check_pass(
        "prefetch{distance=767}",
        before=before,
        after=after.replace("8, %k] yield %s", "11, %k] yield %s"),
        machine=machine,
        idempotent=False,
    )


def test_inputs_are_left_alone_that_a_cache_holds_until_the_next_call() -> None:
    text = CACHE.format(of_keys="", of_values="")
    check_pass("prefetch{distance=512}", unchanged=text, machine=Machine(l1=512, l3=4288))


def test_nor_inputs_that_a_kernel_reads_again() -> None:
    text = CACHE.format(of_keys="", of_values="").replace("tile 3 {", "{")
    check_pass("prefetch{distance=512}", unchanged=text, machine=Machine(l1=512, l3=4287))


def test_nor_what_the_program_computes() -> None:
    text = CACHE.format(of_keys="", of_values="").replace("launch @mix(%s, %values", "launch @mix(%s, %copy")
    text = text.replace("input %keys", "input %more: f32[9]\n  input %keys").replace(
        "launch @mix", "buffer %copy: f32[32, 16]  copy %values -> %copy  launch @mix"
    )
    check_pass(
        "prefetch{distance=512}",
        before=text,
        after=text.replace("yield %q", "prefetch %x[%j + 8, %k] yield %q"),
        machine=Machine(l1=512, l3=4287),
        idempotent=False,
    )


def test_a_sum_whose_terms_are_lanes_has_no_panel() -> None:
    kernel = parse_kernel("""kernel @k(in %x: f32[65536], const %w: f32[65536], out %y: f32[]) {
      %s = reduce add %k in 0..65536 tile 64 lanes 16 { yield %x[%k] * %w[%k] }
      store %s, %y[]
    }""")
    assert run_pipeline(kernel, "prefetch") is kernel


STRIDED = """kernel @product(in %x: f32[64, 1024], in %w: f32[1024, {columns}], out %y: f32[64, {columns}]) {{
  parallel %j in 0..64 tile 32 lanes 16 {{ for %i in 0..64 tile 8 {{
    %s = reduce add %k in 0..1024 {{ yield %x[%i, %k] * %w[%k, %j] }}
    store %s, %y[%i, %j]
  }} }}
}}"""


@pytest.mark.parametrize(
    ("columns", "l2", "prefetched"), [(960, 1 << 20, True), (960, 1 << 22, False), (96, 1 << 16, False)]
)
def test_rows_far_apart_are_fetched_some_steps_ahead(columns: int, l2: int, prefetched: bool) -> None:
    """Rows of 96 floats follow one another closely, and what the second-level cache holds is near."""
    kernel = parse_kernel(STRIDED.format(columns=columns))
    text = print_kernel(run_pipeline(kernel, "prefetch", Context(machine=Machine(l2=l2))))
    assert ("prefetch %w[%k + 8, %j]\n" in text) is prefetched
    assert text.count("prefetch") == prefetched


@pytest.mark.parametrize(("tile", "prefetched"), [(480, True), (960, False)])
def test_rows_that_are_read_whole_follow_one_another(tile: int, prefetched: bool) -> None:
    kernel = parse_kernel(f"""kernel @product(in %x: f32[1024], in %w: f32[1024, 960], out %y: f32[960]) {{
      parallel %j in 0..960 tile {tile} lanes 16 {{
        %s = reduce add %k in 0..1024 {{ yield %x[%k] * %w[%k, %j] }}
        store %s, %y[%j]
      }} }}""")
    text = print_kernel(run_pipeline(kernel, "prefetch", Context(machine=Machine(l2=1 << 20))))
    assert ("prefetch" in text) is prefetched


@pytest.mark.parametrize(("limit", "prefetched"), [(1, False), (2, True)])
def test_a_few_rows_with_much_work_on_a_line_do_without(limit: int, prefetched: bool) -> None:
    """A product takes one operation, an addition before it the second."""
    text = """kernel @linear(in %x: f32[1024], const %w: f32[64, 1024]{0/64, 1, 0%64}, out %y: f32[64]) {
      parallel %j in 0..64 tile 64 lanes 16 {
        %s = reduce add %k in 0..1024 { yield %x[%k] * (%w[%j, %k] + 1.0) }
        store %s, %y[%j]
      } }"""
    kernel = run_pipeline(parse_kernel(text), "prefetch", Context(Machine(prefetched_operations=limit)))
    assert ("prefetch" in print_kernel(kernel)) == prefetched
