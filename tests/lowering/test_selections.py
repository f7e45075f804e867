"""Selections of narrow floats: values are chosen as they are, without a cast."""

from __future__ import annotations

import pytest

from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_printer import print_kernel
from compiler.lowering.kernel import lower_kernel


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_choice_between_loads_has_no_cast(dtype: str) -> None:
    text = f"graph(%c: bool[8], %x: {dtype}[8], %y: {dtype}[8]) {{ %z = where %c, %x, %y  return %z }}"
    assert "store where(%c[%i0], %x[%i0], %y[%i0])" in print_kernel(lower_kernel(parse_graph(text), "k"))


def test_a_chosen_sum_is_rounded_once() -> None:
    text = "graph(%c: bool[8], %x: bf16[8], %y: bf16[8]) { %s = add %x, %y  %z = where %c, %s, %y  return %z }"
    lowered = print_kernel(lower_kernel(parse_graph(text), "k"))
    assert lowered.count("cast<bf16>") == 1
