"""Every second, third, ... element, also backwards: whole vectors are loaded and picked from, and nothing behind the last one is read."""

from __future__ import annotations

import pytest
from native import check_kernel

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.emit import emit_kernel
from compiler.cost.shuffles import is_deinterleaved
from compiler.ir.text.tile_parser import parse_kernel


def kernel(step: int, count: int, tile: int, lanes: int, dtype: str = "f32") -> str:
    """`count` elements, `step` apart, of a buffer that begins with one end and ends with the other."""
    last = (count - 1) * abs(step)
    index = f"%i*{step}" if step > 0 else f"{last} - %i*{-step}"
    return f"""kernel @pick(in %x: {dtype}[3, {last + 1}], out %y: {dtype}[3, {count}]) {{
      for %j in 0..3 {{ for %i in 0..{count} tile {tile} lanes {lanes} {{ store %x[%j, {index}], %y[%j, %i] }} }}
    }}"""


@pytest.mark.parametrize("step", [*range(2, 10), *range(-9, 0)])
@pytest.mark.parametrize(("count", "tile", "lanes"), [(1, 8, 8), (5, 8, 8), (16, 16, 8), (21, 16, 16), (7, 7, 4)])
def test_elements_some_steps_apart(step: int, count: int, tile: int, lanes: int, target: str) -> None:
    check_kernel(kernel(step, count, tile, lanes), target)


@pytest.mark.parametrize("dtype", ["f64", "i8", "bf16", "bool"])
def test_other_types(dtype: str, target: str) -> None:
    check_kernel(kernel(3, 20, 16, 8, dtype), target)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_short_steps_need_no_gather(lanes: int) -> None:
    """As the passes count on."""
    for step in [*range(2, lanes + 2), *range(-lanes - 1, 0)]:
        text = emit_kernel(parse_kernel(kernel(step, 64, 16, lanes)), target_by_name("x86-64-v4"))
        assert ("gather" not in text) == is_deinterleaved(step, lanes) == (abs(step) <= lanes // 2)
