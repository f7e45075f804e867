"""contract: what is moved for one kernel alone is made inside its loops."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.export import Dim

import compiler
from compiler.cost.machine import AVX512, Machine
from compiler.ir.text.tile_printer import print_program
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.target import MatrixShape
from compiler.testing.checks import check_pass, parse_ir

PAD = """kernel @pad(in %x0: f32[64, 4, 6], out %p: f32[64, 6, 6]) {
  parallel %i in 0..64 { parallel %j in 1..5 { parallel %k in 0..6 { store %x0[%i, %j - 1, %k], %p[%i, %j, %k] } } }
  parallel %g in 0..64 { parallel %k in 0..6 { store 0.0, %p[%g, 0, %k] } }
  parallel %g in 0..64 { parallel %k in 0..6 { store 0.0, %p[%g, 5, %k] } } }"""

SUMS = """kernel @sums(in %x0: f32[64, 6, 6], in %w: f32[64, 3], out %y: f32[64, 4, 6]) {
  parallel %c in 0..64 { parallel %i in 0..4 { parallel %j in 0..6 {
    %s = reduce add %r in 0..3 { yield %x0[%c, %i + %r, %j] * %w[%c, %r] }
    store %s, %y[%c, %i, %j] } } } }"""

HEAD = "program { input %a: f32[64, 4, 6]  input %b: f32[64, 3]  output %d: f32[64, 4, 6]"

APART = f"""{HEAD} buffer %t: f32[64, 6, 6]
  {PAD} {SUMS}
  launch @pad(%a, %t) for "t"  launch @sums(%t, %b, %d) for "d" }}"""


def test_a_padded_image_is_made_where_it_is_read() -> None:
    """Part by part, and no buffer is left."""
    check_pass(
        "compute-at",
        before=APART,
        after=f"""{HEAD}
          kernel @sums(in %x0_1: f32[64, 4, 6], in %w: f32[64, 3], out %y: f32[64, 4, 6]) {{
            parallel %c in 0..64 {{
              local %x0: f32[6, 6]
              parallel %j_1 in 1..5 {{ parallel %k in 0..6 {{ store %x0_1[%c, %j_1 - 1, %k], %x0[%j_1, %k] }} }}
              parallel %k_1 in 0..6 {{ store 0.0, %x0[0, %k_1] }}
              parallel %k_2 in 0..6 {{ store 0.0, %x0[5, %k_2] }}
              parallel %i in 0..4 {{ parallel %j in 0..6 {{
                %s = reduce add %r in 0..3 {{ yield %x0[%i + %r, %j] * %w[%c, %r] }}
                store %s, %y[%c, %i, %j] }} }} }} }}
          launch @sums(%a, %b, %d) for "d" }}""",
    )


BLENDED = """program {{ input %a: f32[64, 6, 20]  output %d: f32[64, 5, 20]{buffer}
  {kernels} }}"""


def test_slices_of_a_pointwise_consumer_are_contiguous_where_it_stores() -> None:
    """Its loops over channels, along which both kernels have contiguous elements, become the inner ones."""
    check_pass(
        "compute-at",
        before=BLENDED.format(
            buffer="  buffer %t: f32[20, 64, 6]",
            kernels="""
          kernel @twice(in %x: f32[64, 6, 20], out %p: f32[20, 64, 6]) {
            parallel %c in 0..20 { parallel %i in 0..64 { parallel %j in 0..6 {
              store %x[%i, %j, %c] * 2.0, %p[%c, %i, %j] } } } }
          kernel @blend(in %p: f32[20, 64, 6], out %y: f32[64, 5, 20]) {
            parallel %c in 0..20 { parallel %i in 0..64 { parallel %j in 0..5 {
              store %p[%c, %i, %j] + %p[%c, %i, %j + 1], %y[%i, %j, %c] } } } }
          launch @twice(%a, %t) for "t"  launch @blend(%t, %d) for "d" """,
        ),
        after=BLENDED.format(
            buffer="",
            kernels="""
          kernel @blend(in %x: f32[64, 6, 20], out %y: f32[64, 5, 20]) {
            parallel %i in 0..64 {
              local %p: f32[20, 6]{1, 0}
              parallel %c_1 in 0..20 { parallel %j_1 in 0..6 { store %x[%i, %j_1, %c_1] * 2.0, %p[%c_1, %j_1] } }
              parallel %c in 0..20 { parallel %j in 0..5 {
                store %p[%c, %j] + %p[%c, %j + 1], %y[%i, %j, %c] } } } }
          launch @blend(%a, %d) for "d" """,
        ),
    )


def test_a_kernel_that_others_launch_too_stays_for_them() -> None:
    text = APART.replace(
        "output %d: f32[64, 4, 6]", "input %e: f32[64, 6, 6]  output %d: f32[64, 4, 6]  output %f: f32[64, 4, 6]"
    )
    found = print_program(
        run_pipeline(
            parse_ir(text.replace(' for "d" }', ' for "d"  launch @sums(%e, %b, %f) }')), "compute-at", Context()
        )
    )
    assert "launch @sums_2(%a, %b, %d)" in found
    assert "launch @sums(%e, %b, %f)" in found
    assert "@pad" not in found


def test_launches_of_the_same_two_kernels_share_the_new_one() -> None:
    text = APART.replace("output %d: f32[64, 4, 6]", "output %d: f32[64, 4, 6]  output %f: f32[64, 4, 6]").replace(
        "buffer %t: f32[64, 6, 6]", "buffer %t: f32[64, 6, 6]  buffer %u: f32[64, 6, 6]"
    )
    more = text.replace(' for "d" }', ' for "d"  launch @pad(%a, %u)  launch @sums(%u, %b, %f) }')
    found = print_program(run_pipeline(parse_ir(more), "compute-at", Context()))
    assert found.count("kernel @") == 1
    assert "launch @sums_2(%a, %b, %d)" in found
    assert "launch @sums_2(%a, %b, %f)" in found


def test_loops_around_the_shared_ones_keep_their_place() -> None:
    """A mask whose rows all heads read: taking rows before heads would read every head's operands once for each row."""
    check_pass(
        "compute-at",
        unchanged="""program { input %a: f32[64, 5]  input %b: f32[4, 64, 5]  output %d: f32[4, 64, 5]  buffer %m: f32[64, 5]
          kernel @mask(in %x: f32[64, 5], out %p: f32[64, 5]) {
            parallel %i in 0..64 { parallel %k in 0..5 { store exp(%x[%i, 4 - %k]), %p[%i, %k] } } }
          kernel @heads(in %m: f32[64, 5], in %x: f32[4, 64, 5], out %y: f32[4, 64, 5]) {
            parallel %h in 0..4 { parallel %i in 0..64 { parallel %k in 0..5 {
              store %m[%i, %k] * %x[%h, %i, %k], %y[%h, %i, %k] } } } }
          launch @mask(%a, %m) for "m"  launch @heads(%m, %b, %d) for "d" }""",
    )


def test_all_dimensions_that_both_walk_are_shared() -> None:
    """In the reader's order; not the one that is moved along."""

    def program(kernels: str, steps: str, more: str = "") -> str:
        return f"program {{ input %a: f32[8, 16, 5]  output %d: f32[16, 8, 5]  {more} {kernels}  {steps} }}"

    check_pass(
        "compute-at",
        before=program(
            """kernel @flip(in %x: f32[8, 16, 5], out %p: f32[8, 16, 5]) {
              parallel %i in 0..8 { parallel %j in 0..16 { parallel %k in 0..5 { store %x[%i, %j, 4 - %k], %p[%i, %j, %k] } } } }
            kernel @most(in %x: f32[8, 16, 5], out %y: f32[16, 8, 5]) {
              parallel %c in 0..16 { parallel %n in 0..8 { parallel %k in 0..5 { store exp(%x[%n, %c, %k]), %y[%c, %n, %k] } } } }""",
            "launch @flip(%a, %t)  launch @most(%t, %d)",
            "buffer %t: f32[8, 16, 5]",
        ),
        after=program(
            """kernel @most(in %x_1: f32[8, 16, 5], out %y: f32[16, 8, 5]) {
              parallel %c in 0..16 { parallel %n in 0..8 {
                local %x: f32[5]
                parallel %k_1 in 0..5 { store %x_1[%n, %c, 4 - %k_1], %x[%k_1] }
                parallel %k in 0..5 { store exp(%x[%k]), %y[%c, %n, %k] } } } }""",
            "launch @most(%a, %d)",
        ),
    )


@pytest.mark.parametrize("open_", [False, True])
@pytest.mark.parametrize(
    "model",
    [nn.Conv2d(96, 96, 3, 2, 1, groups=96), nn.Conv2d(96, 96, 5, 1, 2, groups=96), nn.MaxPool2d(3, 2, 1)],
    ids=["strided", "wide", "maximum"],
)
def test_padded_images_of_many_channels(model: nn.Module, open_: bool) -> None:
    """As machine code, against float64; of open size with the program for small images."""
    sides = ({2: Dim("h", min=4, max=100), 3: Dim("w", min=4, max=100)},) if open_ else None
    options = {"graph_passes": "default,-eliminate-padding"}
    compiled = compiler.compile(model, (torch.randn(2, 96, 19, 33),), dynamic_shapes=sides, options=options)
    assert compiled.remarks.select("compute-at", "applied")
    for h, w in ((19, 33), (14, 14), (5, 40)) if open_ else ((19, 33),):
        x = torch.randn(2, 96, h, w)
        expected = copy.deepcopy(model).double()(x.double())
        torch.testing.assert_close(compiled(x).double(), expected, atol=1e-5, rtol=1e-5)


STAY = {
    "an output": APART.replace("buffer %t", "output %t"),
    "what another kernel reads too": APART.replace("output %d", "output %e: f32[64, 4, 6]  output %d").replace(' for "d"', "  launch @sums(%t, %b, %e)"),
    "what is copied": APART.replace("output %d", "output %e: f32[64, 6, 6]  output %d").replace(' for "d"', "  copy %t -> %e"),
    "dimensions walked in reverse": APART.replace("%p[%i,", "%p[63 - %i,"),
    "a dimension that is added up": f"""program {{ input %a: f32[64, 4, 6]  output %d: f32[6, 6]  buffer %t: f32[64, 6, 6] {PAD}
      kernel @sums(in %x0: f32[64, 6, 6], out %y: f32[6, 6]) {{ parallel %i in 0..6 {{ parallel %j in 0..6 {{
        %s = reduce add %c in 0..64 {{ yield %x0[%c, %i, %j] }} store %s, %y[%i, %j] }} }} }}
      launch @pad(%a, %t)  launch @sums(%t, %d) }}""",
    "rows across memory": """program { input %a: f32[6, 64]  output %d: f32[64]  buffer %t: f32[64, 6]
      kernel @turn(in %x: f32[6, 64], out %y: f32[64, 6]) { parallel %i in 0..64 { parallel %j in 0..6 { store %x[%j, %i], %y[%i, %j] } } }
      kernel @most(in %x: f32[64, 6], out %y: f32[64]) {
        parallel %i in 0..64 { %s = reduce max %j in 0..6 { yield %x[%i, %j] } store %s, %y[%i] } }
      launch @turn(%a, %t)  launch @most(%t, %d) }""",
    "sums": APART.replace(
        "store %x0[%i, %j - 1, %k], %p[%i, %j, %k]",
        "%s = reduce add %r in 0..4 { yield %x0[%i, %r, %k] } store %s, %p[%i, %j, %k]",
    ),
    "parts for few threads": APART.replace("64", "32"),
}  # fmt: skip


@pytest.mark.parametrize("case", STAY)
def test_programs_that_stay(case: str) -> None:
    check_pass("compute-at", unchanged=STAY[case])


@pytest.mark.parametrize(("threads", "l2", "made"), [(2, 1 << 20, True), (4, 1 << 20, False), (2, 2300, False)])
def test_parts_stay_near_and_are_enough_for_all_threads(threads: int, l2: int, made: bool) -> None:
    """64 of them, 16 at a time: 4 for two threads.  In lanes, each takes 6 x 6 x 16 numbers, 2304 bytes."""
    context = Context(machine=Machine(threads=threads, l2=l2))
    assert ("local" in print_program(run_pipeline(parse_ir(APART), "compute-at", context))) == made


@pytest.mark.parametrize(("l2", "made"), [(6 * 18 * 4, True), (6 * 18 * 4 - 1, False)])
def test_a_part_whose_rows_fill_the_lanes_is_made_by_itself(l2: int, made: bool) -> None:
    wide = parse_ir(APART.replace("6]", "18]").replace("0..6 ", "0..18 "))
    assert ("local" in print_program(run_pipeline(wide, "compute-at", Context(machine=Machine(l2=l2))))) == made


SIZE = "size n in 2..101 hint 6"

OPEN = """program {{ {size} input %a: f32[64, n]  output %d: f32[64, n]  buffer %t: f32[64, n + 2]  {kernels} }}"""

SUM = """parallel %i in 0..n {{ %s = reduce add %r in 0..3 {{ yield %x[{0}%i + %r] }} store %s, %y[%c, %i] }}"""


def test_a_part_of_open_size_stays_in_its_buffer() -> None:
    """Which the one kernel writes before it reads it."""
    check_pass(
        "compute-at",
        before=OPEN.format(
            size=SIZE,
            kernels=f"""kernel @pad({SIZE}, in %x: f32[64, n], out %p: f32[64, n + 2]) {{
              parallel %c in 0..64 {{ parallel %j in 0..n {{ store %x[%c, %j], %p[%c, %j + 1] }} }}
              parallel %c in 0..64 {{ store 0.0, %p[%c, 0] }}
              parallel %c in 0..64 {{ store 0.0, %p[%c, n + 1] }} }}
            kernel @sums({SIZE}, in %x: f32[64, n + 2], out %y: f32[64, n]) {{ parallel %c in 0..64 {{ {SUM.format("%c, ")} }} }}
            launch @pad(%a, %t)  launch @sums(%t, %d)""",
        ),
        after=OPEN.format(
            size=SIZE,
            kernels=f"""kernel @sums({SIZE}, in %x_1: f32[64, n], scratch %x: f32[64, n + 2], out %y: f32[64, n]) {{
              parallel %c in 0..64 {{
                parallel %j in 0..n {{ store %x_1[%c, %j], %x[%c, %j + 1] }}
                store 0.0, %x[%c, 0]
                store 0.0, %x[%c, n + 1]
                {SUM.format("%c, ")} }} }}
            launch @sums(%a, %t, %d)""",
        ),
    )


CODES = """program { input %a: i8[64, 64]  input %b: i8[32, 64]  output %d: i32[64, 32]  buffer %t: u8[64, 64]
  kernel @codes(in %x0: i8[64, 64], out %p: u8[64, 64]) {
    parallel %i in 0..64 { parallel %k in 0..64 { store bitcast<u8>(%x0[%i, %k]) ^ 128, %p[%i, %k] } } }
  kernel @product(in %x0: u8[64, 64], in %w: i8[32, 64], out %y: i32[64, 32]) {
    parallel %i in 0..64 { parallel %j in 0..32 {
      %s = reduce add %r in 0..64 { yield cast<i32>(%x0[%i, %r]) * cast<i32>(%w[%j, %r]) }
      store %s, %y[%i, %j] } } }
  launch @codes(%a, %t) for "t"  launch @product(%t, %b, %d) for "d" }"""


def test_operands_of_dot_products_stay_parameters() -> None:
    """A local buffer is not read packed; without such products, the copy is computed inside."""
    check_pass("compute-at", unchanged=CODES, matrix_shapes=(MatrixShape(1, 16, 4, "u8", "i8", "i32"),))
    assert len(run_pipeline(parse_ir(CODES), "compute-at", Context(Machine())).kernels) == 1


WIDENED = """program { input %a: f16[1024, 256]  input %b: f16[256, 256]  output %d: f32[1024, 256]  buffer %t: f32[1024, 256]
  kernel @widen(in %x0: f16[1024, 256], out %p: f32[1024, 256]) {
    parallel %i in 0..1024 { parallel %k in 0..256 { store cast<f32>(%x0[%i, %k]), %p[%i, %k] } } }
  kernel @product(in %x0: f32[1024, 256], in %w: f16[256, 256], out %y: f32[1024, 256]) {
    parallel %i in 0..1024 { parallel %j in 0..256 {
      %s = reduce add %r in 0..256 { yield %x0[%i, %r] * cast<f32>(%w[%j, %r]) }
      store %s, %y[%i, %j] } } }
  launch @widen(%a, %t) for "t"  launch @product(%t, %b, %d) for "d" }"""


@pytest.mark.parametrize(("own_units", "kernels"), [(False, 2), (True, 1)])
def test_rows_stay_apart_whose_tiles_would_all_convert_the_weights(own_units: bool, kernels: int) -> None:
    machine = replace(AVX512, converts_beside_products=own_units, threads=1)
    assert len(run_pipeline(parse_ir(WIDENED), "compute-at", Context(machine)).kernels) == kernels
