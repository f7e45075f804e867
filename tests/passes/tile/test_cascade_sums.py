"""cascade-sums: long sums in blocks, which round less."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import compiler
from compiler.testing.checks import check_pass

COLUMNS = """kernel @sums(in %x: f32[{n}, 8], out %y: f32[8]) {{
  parallel %i in 0..8 tile 8 lanes 8 {{
    %s = reduce {op} %r in 0..{n} {{ yield %x[%r, %i] }}
    store %s, %y[%i]
  }}
}}"""


def test_a_long_sum_is_added_in_blocks_and_a_rest() -> None:
    check_pass(
        "cascade-sums",
        before=COLUMNS.format(n=1000, op="add"),
        after="""kernel @sums(in %x: f32[1000, 8], out %y: f32[8]) {
          parallel %i in 0..8 tile 8 lanes 8 {
            %s.blocks = reduce add %r.block in 0..15 {
              %s.block = reduce add %r in %r.block*64..%r.block*64 + 64 { yield %x[%r, %i] }
              yield %s.block
            }
            %s.rest_1 = reduce add %r_1 in 960..1000 { yield %x[%r_1, %i] }
            %s = %s.blocks + %s.rest_1
            store %s, %y[%i]
          }
        }""",
    )


def test_blocks_without_a_rest_are_one_sum_of_sums() -> None:
    check_pass(
        "cascade-sums",
        before=COLUMNS.format(n=1024, op="add"),
        after="""kernel @sums(in %x: f32[1024, 8], out %y: f32[8]) {
          parallel %i in 0..8 tile 8 lanes 8 {
            %s = reduce add %r.block in 0..16 {
              %s.block = reduce add %r in %r.block*64..%r.block*64 + 64 { yield %x[%r, %i] }
              yield %s.block
            }
            store %s, %y[%i]
          }
        }""",
    )


def test_lanes_and_tiles_are_accumulators_of_their_own() -> None:
    text = """kernel @sum(in %x: f32[{n}], out %y: f32[]) {{
      %s = reduce add %r in 0..{n} tile 16 lanes 8 {{ yield %x[%r] }}
      store %s, %y[]
    }}"""
    check_pass("cascade-sums", unchanged=text.format(n=512 * 16))
    check_pass(
        "cascade-sums",
        before=text.format(n=576 * 16),
        after="""kernel @sum(in %x: f32[9216], out %y: f32[]) {
          %s = reduce add %r.block in 0..9 {
            %s.block = reduce add %r in %r.block*1024..%r.block*1024 + 1024 tile 16 lanes 8 { yield %x[%r] }
            yield %s.block
          }
          store %s, %y[]
        }""",
    )


def test_inner_ranges_are_a_block_and_what_they_bind_stays_with_them() -> None:
    check_pass(
        "cascade-sums",
        before="""kernel @norms(in %x: f32[2, 3, 11, 25], out %y: f32[2]) {
          parallel %i in 0..2 {
            %s = reduce add %a in 0..3, %b in 0..11, %c in 0..25 { %v = %x[%i, %a, %b, %c] * 2.0  yield %v * %v }
            store %s, %y[%i]
          }
        }""",
        after="""kernel @norms(in %x: f32[2, 3, 11, 25], out %y: f32[2]) {
          parallel %i in 0..2 {
            %s = reduce add %a in 0..3 {
              %s.blocks = reduce add %b.block in 0..5 {
                %s.block = reduce add %b in %b.block*2..%b.block*2 + 2, %c in 0..25 { %v = %x[%i, %a, %b, %c] * 2.0  yield %v * %v }
                yield %s.block
              }
              %s.rest_1 = reduce add %b_1 in 10..11, %c_1 in 0..25 { %v_1 = %x[%i, %a, %b_1, %c_1] * 2.0  yield %v_1 * %v_1 }
              yield %s.blocks + %s.rest_1
            }
            store %s, %y[%i]
          }
        }""",
    )


def test_short_sums_maxima_and_integers_stay() -> None:
    check_pass("cascade-sums", unchanged=COLUMNS.format(n=512, op="add"))
    check_pass("cascade-sums", unchanged=COLUMNS.format(n=1000, op="max"))
    check_pass("cascade-sums", unchanged=COLUMNS.format(n=1000, op="add").replace("f32", "i32"))


def test_sums_whose_accumulators_fill_the_registers_stay() -> None:
    check_pass(
        "cascade-sums",
        unchanged=COLUMNS.format(n=1000, op="add")
        .replace("tile 8", "tile 136")
        .replace("8]", "136]")
        .replace("0..8", "0..136"),
    )


@pytest.mark.parametrize(("shape", "dim"), [((100_000, 8), 0), ((4, 100_000), 1), ((16, 64, 40, 40), (0, 2, 3))])
def test_sums_of_nearly_equal_terms_are_as_precise_as_eager_ones(
    shape: tuple[int, ...], dim: int | tuple[int, ...]
) -> None:
    """Equal terms round in the same direction every time: the error of one accumulator grows with their number."""

    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(dim)

    torch.manual_seed(0)
    x = torch.rand(*shape) * 0.01 + 3.58
    exact = x.double().mean(dim)
    error = (compiler.compile(Mean(), (x,))(x) - exact).abs() / exact
    assert error.max() < 1e-6  # 6e-4 with one accumulator


def test_products_of_two_operands_stay() -> None:
    check_pass(
        "cascade-sums",
        unchanged="""kernel @row(in %x: f32[1000], in %w: f32[1000, 8], out %y: f32[8]) {
          parallel %i in 0..8 tile 8 lanes 8 {
            %s = reduce add %r in 0..1000 { yield %x[%r] * %w[%r, %i] }
            store %s, %y[%i]
          }
        }""",
    )
