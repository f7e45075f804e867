"""Loops of open length that end inside a tile of rows, and kernels that threads share from some size on."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object_file import emit_assembly
from compiler.codegen.llvm.targets import CPU_TARGETS, host_target
from compiler.errors import DynamicShapeError
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from compiler.ir.verify.program import verify_program
from compiler.options import Options
from compiler.runtime.cpu_executable import CPUExecutable

SIZES = (*range(1, 14), 20, 31)

PRODUCT = """{{
  %s = reduce add %k in 0..6 {{ yield %x[{x}, %k] * %w[%k, %j] }}
  store %s, %y[{y}, %j]
}}"""

BODIES = {
    "rows": "for %i in 0..n tile 4 balanced { for %j in 0..32 tile 32 lanes 16 " + PRODUCT.format(x="%i", y="%i") + " }",
    "shared rows": "parallel %i in 0..n tile 4 balanced { for %j in 0..32 tile 32 lanes 16 " + PRODUCT.format(x="%i", y="%i") + " }",
    "rows in shared columns": "parallel %j in 0..32 tile 16 lanes 16 { for %i in 0..n tile 3 " + PRODUCT.format(x="%i", y="%i") + " }",
    "shared rows and columns": "parallel %i in 0..n tile 4 balanced { parallel %j in 0..32 tile 16 lanes 16 " + PRODUCT.format(x="%i", y="%i") + " }",
    "rows in chains": "for %i in 0..n tile 4 balanced { for %j in 0..32 tile 16 lanes 16 " + PRODUCT.format(x="%i", y="%i").replace("0..6", "0..6 accumulators 8") + " }",
    "weights asked for in chains": "for %i in 0..n tile 4 balanced { for %j in 0..32 tile 16 lanes 16 " + PRODUCT.format(x="%i", y="%i").replace("0..6 {", "0..6 accumulators 8 { prefetch %w[%k + 2, %j]") + " }",
    "rows in two places": """parallel %i in 0..n tile 4 balanced {
      local %t: f32[32]
      for %j in 0..32 tile 16 lanes 16 { %s = reduce add %k in 0..6 { yield %x[%i, %k] * %w[%k, %j] } store %s, %t[%j] }
      for %j in 0..32 tile 16 lanes 16 { store %t[%j], %y[%i, %j] }
    }""",
}  # fmt: skip


def program(body: str, more: str = "") -> str:
    return f"""program {{
      size n in 1..33 hint 8
      input %x: f32[n, 6]
      input %w: f32[6, 32]
      output %y: f32[n, 32]
      kernel @product(size n in 1..33 hint 8, in %x: f32[n, 6], in %w: f32[6, 32], out %y: f32[n, 32]){more} {{ {body} }}
      launch @product(%x, %w, %y)
    }}"""


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def check(text: str) -> None:
    """The product of matrices of so many rows, in float64."""
    made = parse_program(text)
    verify_program(made)
    code = CPUExecutable(made, options=Options(cache=""))
    rng = np.random.default_rng(0)
    for n in SIZES:
        x, w = rng.standard_normal((n, 6), np.float32), rng.standard_normal((6, 32), np.float32)
        (y,) = code.for_sizes({"n": n})([torch.from_numpy(x), torch.from_numpy(w)])
        np.testing.assert_allclose(y.numpy(), x.astype(np.float64) @ w.astype(np.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("body", BODIES)
def test_any_number_of_rows_may_be_left(body: str, threads: int) -> None:
    check(program(BODIES[body]))


@pytest.mark.parametrize("ops", [1, 5, 100])
def test_chunks_may_have_any_size(ops: int, threads: int) -> None:
    check(program(BODIES["shared rows and columns"], f" max_chunks n*2//{ops}"))


def test_the_team_is_told_the_number_of_chunks() -> None:
    text = program(BODIES["shared rows"], " max_chunks n*3//60")
    kernel = parse_program(text).kernels["product"]
    entry = emit_kernel(kernel, host_target()).split("define void @product(")[1]
    order = [
        "sdiv i64",
        "llvm.smin.i64",
        "call void @tilewright_parallel(",
    ]
    assert re.search(".*?".join(map(re.escape, order)), entry, re.DOTALL)


def test_only_numbers_of_rows_that_can_be_left_are_written_out() -> None:
    few = BODIES["rows"]
    for most, cases in ((33, 4), (3, 2)):
        text = program(few).replace("1..33", f"1..{most}")
        written = emit_kernel(parse_program(text).kernels["product"], host_target())
        assert len(re.findall(r"^case\d+:", written, re.MULTILINE)) == cases


def test_rows_are_left_to_the_last_two_tiles() -> None:
    """Both halves are rounded where the tile's number of rows is chosen."""
    written = emit_kernel(parse_program(program(BODIES["rows"])).kernels["product"], host_target())
    order = ["lshr i64", "llvm.umin.i64", "lshr i64", "select i1", "switch i64"]
    assert re.search(".*?".join(map(re.escape, order)), written, re.DOTALL)


def test_few_sums_grow_in_chains() -> None:
    """1 to 4 rows of two vectors, each with so many sums as six steps can share and the chains allow in all."""
    for chains, sums in ((1, 2 + 4 + 6 + 8), (8, 2 * 3 + 4 * 2 + 6 + 8), (16, 2 * 6 + 4 * 3 + 6 * 2 + 8 * 2)):
        text = program(BODIES["rows"].replace("0..6", f"0..6 accumulators {chains}"))
        written = emit_kernel(parse_program(text).kernels["product"], host_target())
        assert len(re.findall(r"llvm.fmuladd.v16f32\(", written)) - 1 == sums


def test_each_step_of_a_chain_asks_for_a_later_one() -> None:
    """For the one vector of its row of weights: 1 to 4 rows take so many steps side by side as eight chains allow."""
    text = program(BODIES["weights asked for in chains"])
    written = emit_kernel(parse_program(text).kernels["product"], host_target())
    assert len(re.findall(r"call void @llvm.prefetch", written)) == 6 + 3 + 2 + 2


def test_tiles_with_few_rows_ask_otherwise() -> None:
    """Of 1 to 4 rows, the first two numbers for one place, the others for two."""
    ask = "prefetch %w[%j, %k + 1] reuse 1..3 prefetch %w[%j, %k + 2] level 2 reuse 3.. prefetch %w[%j, %k + 1] reuse 3.. yield"
    text = program(BODIES["rows"].replace("yield", ask))
    written = emit_kernel(parse_program(text).kernels["product"], host_target())
    assert len(re.findall(r"@llvm.prefetch.p0\(ptr %\S+, i32 0, i32 3, i32 1\)", written)) == 2 * (1 + 1) + 2 * (1 + 1)
    assert len(re.findall(r"@llvm.prefetch.p0\(ptr %\S+, i32 0, i32 2, i32 1\)", written)) == 2 * (1 + 1)


COLUMNS = """program {{
  size n in 1..49 hint 8
  input %x: f32[3, 6]
  input %w: f32[6, {stored}]
  output %y: f32[3, n]
  kernel @product(size n in 1..49 hint 8, in %x: f32[3, 6], in %w: f32[6, {stored}], out %y: f32[3, n]) {{
    {loop} %j in 0..n tile 32 lanes 8 {{ for %i in 0..3 tile 3 {{
      %s = reduce add %k in 0..6 {{ yield %x[%i, %k] * %w[%k, {place}] }}
      store %s, %y[%i, %j]
    }} }}
  }}
  launch @product(%x, %w, %y)
}}"""


@pytest.mark.parametrize("loop", ["for", "parallel"])
@pytest.mark.parametrize("step", [1, 2])
def test_any_number_of_vectors_may_be_left(loop: str, step: int, threads: int) -> None:
    """The last one not whole; those before it are read as others are, every second element too."""
    text = COLUMNS.format(loop=loop, place=f"%j*{step}", stored=f"n*{step}")
    code = CPUExecutable(parse_program(text), options=Options(cache=""))
    rng = np.random.default_rng(0)
    for n in (1, 7, 8, 9, 24, 25, 31, 32, 33, 48):
        x, w = rng.standard_normal((3, 6), np.float32), rng.standard_normal((6, n * step), np.float32)
        (y,) = code.for_sizes({"n": n})([torch.from_numpy(x), torch.from_numpy(w)])
        np.testing.assert_allclose(
            y.numpy(), x.astype(np.float64) @ w[:, ::step].astype(np.float64), rtol=1e-5, atol=1e-5
        )


def test_only_the_last_vector_is_masked() -> None:
    """1 to 4 vectors, in a tile of its own each: one mask for a store of each of three rows and for each load."""
    text = COLUMNS.format(loop="for", place="%j", stored="n")
    written = emit_kernel(parse_program(text).kernels["product"], host_target())
    assert len(re.findall(r"^case\d+:", written, re.MULTILINE)) == 4
    assert len(re.findall(r"call void @llvm.masked.store", written)) == 4 * 3


def test_vectors_that_are_left_of_whole_ones_are_whole() -> None:
    text = (
        COLUMNS.format(loop="for", place="%j", stored="n*8")
        .replace("0..n tile", "0..n*8 tile")
        .replace("3, n]", "3, n*8]")
    )
    assert "masked" not in emit_kernel(parse_program(text).kernels["product"], host_target())


@pytest.mark.parametrize("length", [1, 2, 7, 12])
def test_sums_in_chains_are_the_same(length: int) -> None:
    """Whatever divides the steps; a maximum too, and a reduction over two loops."""
    made = parse_program(f"""program {{
      input %x: f32[3, {length}]
      output %y: f32[3]
      output %z: f32[]
      kernel @sums(in %x: f32[3, {length}], out %y: f32[3], out %z: f32[]) {{
        for %i in 0..3 {{ %s = reduce max %k in 0..{length} accumulators 4 {{ yield %x[%i, %k] }} store %s, %y[%i] }}
        %t = reduce add %j in 0..3, %l in 0..{length} accumulators 6 {{ %v = %x[%j, %l] yield %v * %v }}
        store %t, %z[]
      }}
      launch @sums(%x, %y, %z)
    }}""")
    verify_program(made)
    x = np.random.default_rng(0).standard_normal((3, length), np.float32)
    y, z = CPUExecutable(made, options=Options(cache=""))([torch.from_numpy(x)])
    np.testing.assert_array_equal(y.numpy(), x.max(1))
    np.testing.assert_allclose(z.numpy(), (x.astype(np.float64) ** 2).sum(), rtol=1e-6)


def test_local_buffers_of_all_cases_are_one() -> None:
    kernel = parse_program(program(BODIES["rows in two places"])).kernels["product"]
    assert re.findall(r"alloca \[(\d+) x float\]", emit_kernel(kernel, host_target())) == ["192"]  # rows of three lines


def test_local_buffers_that_may_be_larger_than_a_stack_are_refused() -> None:
    text = """kernel @k(size n in 0..{most} hint 500, in %x: f32[n], out %y: f32[n]) {{
      local %t: f32[n]
      for %i in 0..n {{ store %x[%i], %t[%i] }}
      for %i in 0..n {{ store %t[-%i + n - 1], %y[%i] }}
    }}"""
    assert "alloca [1000000 x float]" in emit_kernel(parse_kernel(text.format(most=1000001)), host_target())
    with pytest.raises(DynamicShapeError, match="up to 7 MiB do not fit the stack"):
        emit_kernel(parse_kernel(text.format(most=2000001)), host_target())


def test_a_kernel_without_open_sizes_asks_nothing() -> None:
    kernel = parse_kernel("kernel @k(in %x: f32[8], out %y: f32[8]) { parallel %i in 0..8 { store %x[%i], %y[%i] } }")
    assert "serial:" not in emit_kernel(kernel, host_target())


@pytest.mark.parametrize("least", [0, 5, 100])
def test_open_results_are_the_same_past_the_cache(least: int, threads: int) -> None:
    body = BODIES["shared rows and columns"].replace("%y[%i, %j]", f"%y[%i, %j] nontemporal if n*2 >= {least}")
    check(program(body))


@pytest.mark.parametrize("n", [5, 16, 17, 48, 60])
def test_rows_of_any_length_may_go_past_the_cache(n: int) -> None:
    """Stores that have to be aligned are so."""
    size = "size n in 1..100 hint 50"
    made = parse_program(f"""program {{
      {size}
      input %x: f32[5, n]
      output %y: f32[5, n]
      kernel @copy({size}, in %x: f32[5, n], out %y: f32[5, n]) {{
        for %i in 0..5 {{ for %j in 0..n tile 32 lanes 16 {{ store %x[%i, %j], %y[%i, %j] nontemporal }} }}
      }}
      launch @copy(%x, %y)
    }}""")
    verify_program(made)
    x = torch.arange(5.0 * n).view(5, n)
    (y,) = CPUExecutable(made, options=Options(cache="")).for_sizes({"n": n})([x])
    assert torch.equal(x, y)


def test_an_index_below_a_dynamic_size_is_compared_once() -> None:
    """Sizes are not negative, so that one unsigned comparison checks both bounds."""
    kernel = parse_kernel("""kernel @rows(size n in 1..1000 hint 99, in %x: f32[n], in %k: i64[50], out %y: f32[50]) {
      for %i in 0..50 {
        %v = %k[%i]
        check %v in 0..n
        %row = where((%v >= 0) & (%v < index(n)), %v, 0)
        store %x[%row], %y[%i]
      }
    }""")
    target = CPU_TARGETS["x86-64-v3"]
    assembly = emit_assembly(emit_kernel(kernel, target), target)
    assert "cmovae" in assembly
    assert "sets" not in assembly
