"""gpu-dot: the blocks of contractions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.cost.machine import GPU
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.tile_printer import print_expr
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import Reduce, stmt_ranges, walk
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass

MATMUL = """kernel @matmul(in %x: f32[10, 7], in %w: f32[9, 7], out %y: f32[10, 9])WARPS {
  parallel %i in 0..10ROWS {
    parallel %j in 0..9COLUMNS {
      %sum = reduce add %k in 0..7DEPTH { yield %x[%i, %k] * %w[%j, %k] }
      store %sum, %y[%i, %j]
    }
  }
}"""


def tiled(text: str, rows: int, columns: int, depth: int, warps: int = 0) -> str:
    for place, tile in (("ROWS", rows), ("COLUMNS", columns), ("DEPTH", depth)):
        text = text.replace(place, f" tile {tile}" if tile else "")
    return text.replace("WARPS", f" warps {warps}" if warps else "")


def sized(rows: int, columns: int, depth: int) -> str:
    """The same kernel on larger matrices."""
    return MATMUL.replace("10", str(rows)).replace("9", str(columns)).replace("7", str(depth))


def blocks(text: str, options: str = "") -> tuple[int, int, int]:
    """The tiles that the pass chooses for rows, columns and depth."""
    kernel = run_pipeline(parse_kernel(text), f"gpu-dot{options}")
    tiles = {r.var: r.tile for s in walk(kernel.body) for r in stmt_ranges(s)}
    return tiles["i"], tiles["j"], tiles["k"]


def test_blocks_are_at_least_what_matrix_units_take() -> None:
    check_pass(
        "gpu-dot",
        before=tiled(MATMUL, 0, 0, 0),
        after=tiled(MATMUL, 16, 16, 16, warps=8),
        remark="%sum: blocks of 16 x 16 x 16, 8 warps, 1 stages: ",
    )


def test_the_cost_model_chooses_blocks_warps_and_stages() -> None:
    text = (
        tiled(sized(4096, 4096, 1024), 0, 0, 0).replace("in %x: f32", "in %x: f16").replace("in %w: f32", "in %w: f16")
    )
    text = text.replace("%x[%i, %k] * %w[%j, %k]", "cast<f32>(%x[%i, %k]) * cast<f32>(%w[%j, %k])")
    kernel = run_pipeline(parse_kernel(text), "gpu-dot")
    (depth,) = (r for s in walk(kernel.body) for r in stmt_ranges(s) if r.var == "k")
    assert min(blocks(text)) >= 64
    assert kernel.warps >= 4
    assert depth.stages > 1


def test_options_and_tiles_that_exist_are_kept() -> None:
    assert blocks(tiled(sized(60, 500, 20), 0, 0, 0), "{rows=32, columns=128, depth=16}") == (32, 128, 16)
    assert blocks(tiled(sized(60, 500, 20), 0, 64, 0))[1] == 64


def test_the_loop_that_loads_are_pipelined_along_is_innermost() -> None:
    text = """kernel @k(in %x: f16[64, 128, 4], in %w: f16[64, 128, 4], out %y: f32[64, 64]) {
      parallel %i in 0..64 { parallel %j in 0..64 {
        %s = reduce add %k in 0..128, %r in 0..4 { yield cast<f32>(%x[%i, %k, %r]) * cast<f32>(%w[%j, %k, %r]) }
        store %s, %y[%i, %j] } } }"""
    kernel = run_pipeline(parse_kernel(text), "gpu-dot{depth=32, stages=3}")
    (ranges,) = (s.ranges for s in walk(kernel.body) if isinstance(s, Reduce))
    assert [(r.var, r.tile, r.stages) for r in ranges] == [("r", 1, 1), ("k", 32, 3)]


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (MATMUL.replace("f32", "i64"), "no matrix unit multiplies i64"),
        (MATMUL.replace("%w[%j, %k]", "%w[0, %k]"), "no reuse of an operand"),
        (MATMUL.replace("%w[%j, %k]", "%x[%i, %k]"), "no reuse of an operand"),
    ],
)
def test_left_alone(text: str, remark: str) -> None:
    check_pass("gpu-dot", unchanged=tiled(text, 0, 0, 0), remark=remark)


NARROW = """kernel @matmul(in %x: f16[20, 32], in %w: f16[128, 32], out %y: f16[20, 128])WARPS {
  parallel %i in 0..20ROWS {
    parallel %j in 0..128COLUMNS {
      %sum = reduce add %k in 0..32DEPTH { yield FACTORS }
      store cast<f16>(%sum), %y[%i, %j]
    }
  }
}"""

IMAGE, WEIGHT = "cast<f32>(%x[%i, %k])", "cast<f32>(%w[%j, %k])"


def product(left: str, right: str) -> str:
    return NARROW.replace("FACTORS", f"{left} * {right}")


ONE = GPU(multiprocessors=1)


def test_few_rows_become_columns_of_the_transposed_product() -> None:
    """64 rows fill the matrix units: of the weight there are enough, of the image there are not."""
    check_pass(
        "gpu-dot",
        before=tiled(product(IMAGE, WEIGHT), 0, 0, 0),
        after=tiled(product(WEIGHT, IMAGE), 32, 64, 32, warps=4),
        remark="transposed, blocks of 64 x 32 x 32",
        machine=ONE,
    )


def test_a_transposed_product_that_takes_no_less_stays() -> None:
    text = product(IMAGE, WEIGHT).replace("20", "128").replace("f16[128, 32], out", "f16[20, 32], out")
    text = text.replace("f16[128, 128]", "f16[128, 20]").replace("%j in 0..128", "%j in 0..20")
    check_pass("gpu-dot", before=tiled(text, 0, 0, 0), after=tiled(text, 64, 32, 32, warps=4), machine=ONE)


def test_all_products_of_a_nest_have_the_same_rows() -> None:
    """Otherwise one of them would be transposed in registers."""
    second = f"%t = reduce add %l in 0..32 {{ yield {IMAGE} * {WEIGHT} }} ".replace("%k", "%l")
    text = product(IMAGE, WEIGHT).replace("store cast<f16>(%sum)", f"{second} store cast<f16>(%sum + %t)")
    kernel = run_pipeline(parse_kernel(tiled(text, 0, 0, 0)), "gpu-dot", Context(ONE))
    factors = [c.lhs for c in filter(None, map(contraction_of, walk(kernel.body)))]
    assert ["%w" in print_expr(e) for e in factors] == [True, True]


@pytest.mark.parametrize(
    ("before", "after", "machine"),
    [
        ("f16", "f32", replace(ONE, has_matrix_f32=True)),  # results go to memory as they are
        ("parallel %j", "for %j", ONE),  # a program computes several blocks of columns
    ],
)
def test_products_that_are_not_transposed(before: str, after: str, machine: GPU) -> None:
    kernel = parse_kernel(tiled(product(IMAGE, WEIGHT).replace(before, after), 0, 0, 0))
    (reduction,) = (s for s in walk(run_pipeline(kernel, "gpu-dot", Context(machine)).body) if isinstance(s, Reduce))
    assert "%x" in print_expr(reduction.value).split(" * ")[0]


def test_the_left_factor_has_the_rows() -> None:
    """By default the columns are the loop along which results are neighbours in memory: here the outer one."""
    text = product(IMAGE, WEIGHT).replace("%y[%i, %j]", "%y[%j, %i]").replace("f16[20, 128]", "f16[128, 20]")
    check_pass(
        "gpu-dot{rows=64, columns=32}",
        before=tiled(text, 0, 0, 0),
        after=tiled(text.replace(f"{IMAGE} * {WEIGHT}", f"{WEIGHT} * {IMAGE}"), 32, 64, 32, warps=4),
    )


def test_of_blocks_that_take_about_the_same_time_matrix_units_read_one_in_shared_memory() -> None:
    """16 x 32 results would be estimated 0.3 % faster, in operands that pass through registers."""
    text = product(IMAGE, WEIGHT).replace("20", "192").replace("128", "784")
    text = text.replace("%w[%j, %k]", "%w[%k, %j]").replace("%w: f16[784, 32]", "%w: f16[32, 784]")
    context = Context(GPU())
    kernel = run_pipeline(parse_kernel(tiled(text, 0, 0, 0)), "gpu-dot", context)
    assert [r.tile for s in walk(kernel.body) for r in stmt_ranges(s)] == [16, 64, 32]
    assert "transposed, blocks of 64 x 16 x 32" in str(context.remarks)
