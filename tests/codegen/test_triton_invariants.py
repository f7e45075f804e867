"""Loads of Triton source stand outside the loops that they do not vary in."""

from __future__ import annotations

import pytest

from compiler.codegen.triton.emit import emit_triton
from compiler.codegen.triton.source_scopes import SourceScopes
from compiler.ir.text.tile_parser import parse_kernel


def body_of(kernel: str) -> list[str]:
    """The lines of the function that a kernel becomes, without their indentation inside it."""
    source = emit_triton(parse_kernel(kernel)).split("@triton.jit")[-1]
    return [line.removeprefix("    ") for line in source.split("\n\n\n")[0].splitlines()[2:]]


def test_a_load_takes_its_index_along() -> None:
    assert body_of("""kernel @f(in %x: f32[8, 64], in %b: f32[64], out %y: f32[8, 64]) {
      for %i in 0..8 { for %j in 0..64 tile 64 { store %x[%i, %j] + %b[%j], %y[%i, %j] } } }""") == [
        "j = tl.arange(0, 64)",
        "b_block = tl.load(b + j)",
        "for i in range(0, 8):",
        "    x_block = tl.load(x + i*64 + j)",
        "    y_block = x_block + b_block",
        "    tl.store(y + i*64 + j, y_block)",
    ]


def test_a_load_leaves_the_inner_loops_only() -> None:
    body = body_of("""kernel @f(in %x: f32[4, 64], out %y: f32[4, 8, 64]) {
      for %i in 0..4 { for %k in 0..8 { for %j in 0..64 tile 64 { store %x[%i, %j], %y[%i, %k, %j] } } } }""")
    assert body[2:4] == ["    x_block = tl.load(x + i*64 + j)", "    for k in range(0, 8):"]


def test_blocks_loaded_before_a_loop_serve_the_next_one() -> None:
    body = body_of("""kernel @f(in %x: f32[64], out %y: f32[2, 8, 64]) {
      for %i in 0..8 { for %j in 0..64 tile 64 { store %x[%j], %y[0, %i, %j] } }
      for %i in 0..8 { for %j in 0..64 tile 64 { store %x[%j], %y[1, %i, %j] } } }""")
    assert sum("tl.load" in line for line in body) == 1


def test_parameters_that_are_stored_to_stay() -> None:
    body = body_of("""kernel @f(inout %x: f32[64], out %y: f32[8, 64]) {
      for %i in 0..8 { for %j in 0..64 tile 64 { store %x[%j], %y[%i, %j]  store 1.0, %x[%j] } } }""")
    assert "    x_block = tl.load(x + j)" in body


def test_loads_by_a_checked_index_follow_the_check() -> None:
    body = body_of("""kernel @f(in %n: i64[4], in %t: f32[16], out %y: f32[4, 8]) {
      for %i in 0..4 { %a = %n[0]  check %a in 0..16  for %k in 0..8 { store %t[%a], %y[%i, %k] } } }""")
    check = next(k for k, line in enumerate(body) if "device_assert" in line)
    assert body[check + 1 : check + 3] == ["    t_block = tl.load(t + n_block)", "    for k in range(0, 8):"]


@pytest.mark.parametrize(("least", "indent"), [(0, "    "), (1, "")])
def test_loads_stay_in_loops_that_may_have_no_iteration(least: int, indent: str) -> None:
    body = body_of(f"""kernel @f(size n in {least}..100 hint 8, in %x: f32[n], out %y: f32[n, 64]) {{
      for %i in 0..n {{ for %j in 0..64 tile 64 {{ store %x[n - 1], %y[%i, %j] }} }} }}""")
    assert f"{indent}x_block = tl.load(x + (n - 1))" in body or f"{indent}x_block = tl.load(x + n - 1)" in body


def test_masked_loads_stay_in_the_loops_that_bound_them() -> None:
    body = body_of("""kernel @f(in %x: f32[16], out %y: f32[4, 16]) {
      for %j in 0..16 tile 16 { store %x[%j], %y[0, %j] }
      for %k in 0..4 { for %j in 0..%k + 1 tile 16 { store %x[%j], %y[%k, %j] } } }""")
    assert body[3:5] == ["for k in range(0, 4):", "    x_block_1 = tl.load(x + j, mask=j < k + 1)"]


def test_nothing_leaves_the_loop_of_a_persistent_program() -> None:
    body = body_of("""kernel @f(in %x: f32[64], out %y: f32[8, 64]) persistent 2 {
      parallel %i in 0..8 { for %j in 0..64 tile 64 { store %x[%j], %y[%i, %j] } } }""")
    assert body[0].startswith("for pid in ")


def test_loops_without_lines_are_left_out() -> None:
    source = SourceScopes()
    source.open_loop("for i in range(0, 8):", runs_always=True)
    source.write("x = 0", source.outermost_depth(known=0))
    source.close_loop()
    assert [text for text, _ in source.scopes[0].lines] == ["x = 0"]
