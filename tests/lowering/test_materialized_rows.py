"""Rows that a kernel keeps: how long they may be."""

from __future__ import annotations

import pytest

from compiler.cost.machine import AVX512, GPU, Machine
from compiler.errors import LoweringError
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.tile.kernel import Local, walk
from compiler.lowering.kernel import lower_kernel

SHARES = """graph(%x: f32[4, {n}]) {{
  %e = exp %x  %s = sum %e {{dims=[1], keepdim=true}}  %y = div %e, %s  {rest}
}}"""


def local_types(n: int, rest: str = "return %y", machine: Machine = AVX512) -> list[str]:
    kernel = lower_kernel(parse_graph(SHARES.format(n=n, rest=rest)), "k", machine)
    return [str(s.type) for s in walk(kernel.body) if isinstance(s, Local)]


def test_a_row_like_that_of_the_result_may_be_long() -> None:
    assert local_types(100_000) == ["f32[100000]"]
    with pytest.raises(LoweringError, match="too large"):
        local_types(300_000)


def test_other_rows_may_not() -> None:
    rest = "%z = cast %y {dtype=f64}  return %z"
    assert local_types(60_000, rest) == ["f32[60000]"]
    with pytest.raises(LoweringError, match="too large"):
        local_types(100_000, rest)


def test_on_a_gpu_all_rows_are_registers() -> None:
    with pytest.raises(LoweringError, match="too large"):
        local_types(100_000, machine=GPU())
