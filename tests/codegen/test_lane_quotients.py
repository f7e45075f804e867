"""Indices that lanes divide: one scalar division for a vector whose quotients differ by one at most."""

from __future__ import annotations

import pytest
from native import check_kernel

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.emit import emit_kernel
from compiler.ir.text.tile_parser import parse_kernel


def kernel(size: int, step: int = 1, start: int = 0, count: int = 60, tile: int = 16) -> str:
    """Elements of two blocked buffers of which neither has the index of a lane as it is."""
    blocks = (step * (count - 1) + start) // size + 1
    at = f"(%i*{step} + {start})"
    return f"""kernel @blocks(in %x: f32[{blocks}], in %z: f32[{size}, {blocks}], out %y: f32[3, {count}]) {{
      for %j in 0..3 {{
        for %i in 0..{count} tile {tile} lanes 8 {{ store %x[{at}//{size}] * %z[{at}%{size}, {at}//{size}], %y[%j, %i] }}
      }}
    }}"""


@pytest.mark.parametrize("size", [2, 7, 8, 13, 59, 100])
@pytest.mark.parametrize(("step", "start"), [(1, 0), (1, 5), (2, 1), (3, 0), (15, 2)])
def test_blocks_of_any_size(size: int, step: int, start: int, target: str) -> None:
    check_kernel(kernel(size, step, start), target)


@pytest.mark.parametrize("size", [12, 21, 29])
def test_blocks_that_rows_begin_inside(size: int, target: str) -> None:
    check_kernel(
        f"""kernel @rows(in %x: f32[9], out %y: f32[6, 20]) {{
          for %j in 0..6 {{ for %i in 0..20 tile 16 lanes 8 {{ store %x[(%j*20 + %i)//{size}%9], %y[%j, %i] }} }}
        }}""",
        target,
    )


@pytest.mark.parametrize(("size", "is_scalar"), [(8, True), (13, True), (7, False)])
def test_lanes_share_a_division_where_they_meet_two_blocks_at_most(size: int, is_scalar: bool) -> None:
    text = emit_kernel(parse_kernel(kernel(size, count=64)), target_by_name("x86-64-v3"))
    assert ("sdiv <8 x i64>" not in text) == is_scalar
