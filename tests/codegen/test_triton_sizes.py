"""Dynamic sizes in Triton source: arguments of the kernel and of its grid, of one compilation for all values."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from compiler.codegen.triton.emit import emit_triton
from compiler.codegen.triton.loader import compile_offline
from compiler.codegen.triton.program_sources import emit_program
from compiler.codegen.triton.targets import GPU_TARGETS
from compiler.codegen.triton.triton_names import TritonError
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from tests.triton_process import NEEDS_TRITON

ROWS = """kernel @rows(size n in 2..{high} hint 500, in %x: f32[n, 40], out %y: f32[40, n]) {{
  parallel %i in 0..n tile 16 {{
    %s = reduce add %k in 0..40 tile 64 {{ yield %x[%i, %k] }}
    parallel %j in 0..40 tile 16 {{ store %x[%i, %j] - %s, %y[%j, %i] }}
  }}
}}"""


def source(text: str) -> str:
    return emit_triton(parse_kernel(text))


def test_sizes_are_arguments_of_kernel_and_grid() -> None:
    text = source(ROWS.format(high=4096))
    assert "@triton.jit(do_not_specialize=['n'])\ndef rows(x, y, n):" in text
    assert "def launch(x, y, n):\n    kernel[(((n + 15)//16)*3,)](x, y, n, **options)" in text
    assert "signature = {'x': '*fp32', 'y': '*fp32', 'n': 'i32'}" in text
    assert "i = pid // 3 * 16 + tl.arange(0, 16)" in text
    assert "tl.store(y + i[None, :] + j[:, None]*n, y_block" in text
    assert "i[:, None] < n" in text


def compiled_kinds(text: str) -> set[str]:
    return set(compile_offline(text, GPU_TARGETS["sm90"]).artefacts)


@NEEDS_TRITON
def test_long_and_short_sizes_compile_without_a_gpu() -> None:
    texts = [source(ROWS.format(high=high)) for high in (4096, 1 << 33)]
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # Triton may interpret in this one
        assert list(pool.map(compiled_kinds, texts)) == [{"ptx", "cubin"}] * 2


def test_indices_are_long_where_a_size_may_need_it() -> None:
    assert "int64" not in source(ROWS.format(high=4096))
    text = source(ROWS.format(high=1 << 33))
    assert "n = tl.cast(n, tl.int64)" in text
    assert "pid = tl.cast(tl.program_id(0), tl.int64)" in text
    assert "'n': 'i64'" in text


def test_a_grid_is_never_negative() -> None:
    text = source("""kernel @tail(size n in 0..64 hint 9, in %x: f32[n], out %y: f32[n]) {
      parallel %i in 3..n { store %x[%i], %y[%i] }
    }""")
    grid = text.split("kernel[(")[1].split(",)]")[0]
    assert [eval(grid, {"n": n}) for n in (0, 2, 3, 10)] == [0, 0, 0, 7]


def test_a_division_by_a_size_and_a_minimum_are_written_out() -> None:
    text = source("""kernel @k(size n in 2..64 hint 9, out %y: i64[n, 40]) {
      parallel %i in 0..n*40 tile 32 { store index(%i // n + min(%i, n)), %y[%i // 40, %i % 40] }
    }""")
    assert "q = tl.minimum(i, n)" in text
    assert "i//n" in text


def test_a_name_that_is_taken_is_changed() -> None:
    text = source("""kernel @n(size n in 2..64 hint 9, in %n: f32[n], out %pid: f32[n]) {
      parallel %i in 0..n tile 16 { store %n[%i], %pid[%i] }
    }""")
    assert "def n(n_1, pid_1, n_2):" in text
    assert "kernel[((n_2 + 15)//16,)](n_1, pid_1, n_2, **options)" in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for %j in 0..40 tile 64 { for %k in 0..%j { store %x[%k], %y[%j] } }", "the bounds of %k differ inside a block of %j"),
        ("copy_async %x[0] -> %y[0] size 40 wait %y", "Triton copies by itself; run lower-async-copies"),
    ],
)  # fmt: skip
def test_refusals(body: str, message: str) -> None:
    with pytest.raises(TritonError, match=message):
        source(f"kernel @k(in %x: f32[40], out %y: f32[40]) {{ {body} }}")


def test_hints_are_left_out() -> None:
    loop = "parallel %i in 0..40 tile 64 {{ {} store %x[%i], %y[%i] }}"
    kernels = (
        f"kernel @k(in %x: f32[40], out %y: f32[40]) {{ {loop.format(s)} }}" for s in ("", "prefetch %x[%i + 4]")
    )
    plain, hinted = map(source, kernels)
    assert plain == hinted


def test_equal_kernels_share_a_source() -> None:
    kernel = "kernel @{}(in %{}: f32[8], out %z: f32[8]) {{ parallel %i in 0..8 tile 8 {{ store -%{}[%i], %z[%i] }} }}"
    program = parse_program(f"""program {{ input %a: f32[8] output %b: f32[8] output %c: f32[8]
      {kernel.format("first", "x", "x")} {kernel.format("second", "y", "y")}
      launch @first(%a, %b) launch @second(%b, %c) }}""")
    sources = emit_program(program)
    assert sources["first"] is sources["second"]
