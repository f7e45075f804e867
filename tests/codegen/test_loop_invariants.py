"""Scalars that a loop does not change: computed before it, also in the loop that threads share."""

from __future__ import annotations

import re

import pytest

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.emit import emit_kernel
from compiler.ir.text.tile_parser import parse_kernel

ROWS = """kernel @k(in %x: f32[8, 4096], in %s: f32[8], inout %t: f32[8], out %y: f32[8, 4096]) {{
  parallel %i in 0..8 {{ {loop} %j in 0..4096 tile 16 lanes 16 {{ {body} }} }} }}"""


def blocks_of(loop: str, body: str) -> tuple[str, str]:
    """Return the block with the innermost loop of the rows' code, and what stands before it."""
    code = emit_kernel(parse_kernel(ROWS.format(loop=loop, body=body)), target_by_name("x86-64-v4"))
    before, inner = re.split(r"\n(?=loop\d+:)", code.split("define ")[1])[-2:]
    return inner, before


@pytest.mark.parametrize("loop", ["for", "parallel"])
def test_a_scalar_of_the_row_is_computed_before_its_loop(loop: str) -> None:
    inner, before = blocks_of(loop, "store %x[%i, %j] * (1.0 / %s[%i]), %y[%i, %j]")
    assert "fdiv float" in before
    assert "load float" in before
    assert "fdiv" not in inner
    assert "load float" not in inner


def test_what_the_kernel_writes_is_loaded_each_time() -> None:
    inner, before = blocks_of("for", "store %x[%i, %j] * (1.0 / %t[%i]), %y[%i, %j]")
    assert "load float" in inner
    assert "fdiv float" in inner
    assert "fdiv" not in before


def test_integer_divisions_stay() -> None:
    """A loop without iterations must not divide by zero."""
    text = """kernel @k(in %x: i32[8, 4096], in %s: i32[8], out %y: i32[8, 4096]) {
      for %i in 0..8 { for %j in 0..4096 tile 16 lanes 16 { store %x[%i, %j] + rem(7, %s[%i]), %y[%i, %j] } } }"""
    code = emit_kernel(parse_kernel(text), target_by_name("x86-64-v4"))
    assert "srem" in re.split(r"\n(?=loop\d+:)", code)[-1]


def test_a_chunk_finds_the_row_once_for_each_of_its_runs() -> None:
    inner, before = blocks_of("parallel", "store %x[%i, %j] + %s[%i], %y[%i, %j]")
    assert "udiv" not in inner
    assert before.count("udiv i64") == 1
