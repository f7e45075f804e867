"""Fusion of quantized graphs: operands of dot products stay in memory, where they are read packed."""

from __future__ import annotations

import pytest

from compiler.cost.machine import AVX512
from compiler.ir.graph.structure import Fused
from compiler.ir.text.graph_parser import parse_graph
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.target import MatrixShape

VPDPBUSD = MatrixShape(1, 16, 4, "u8", "i8", "i32")

BLOCK = """graph(%x: u8[1, 144, 56, 56], %r: u8[1, 24, 56, 56], %v: i8[24, 144, 1, 1], %w: i8[144, 24, 1, 1]) {
  %p = conv %x, %v {stride=[1, 1], dilation=[1, 1], dtype=i32}  %f = cast %p {dtype=f32}  %m = mul %f, 0.01
  %g = cast %r {dtype=f32}  %h = sub %g, 128.0  %i = mul %h, 0.05  %s = add %i, %m
  %t = mul %s, 13.4  %q = round %t  %z = add %q, 159.0  %a = maximum %z, 0.0  %b = minimum %a, 255.0  %u = cast %b {dtype=u8}
  %o = conv %u, %w {stride=[1, 1], dilation=[1, 1], dtype=i32}  %y = cast %o {dtype=f32}  return %y }"""
RESIDUAL = ["cast", "sub", "mul"]
REQUANTIZED = ["cast", "mul", "add", "mul", "round", "add", "maximum", "minimum", "cast"]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ((VPDPBUSD,), [[*RESIDUAL, "conv", *REQUANTIZED], ["conv", "cast"]]),
        ((), [["conv"], [*RESIDUAL, *REQUANTIZED, "conv", "cast"]]),
    ],
)
def test_a_quantized_operand_is_stored_for_dot_products(
    shapes: tuple[MatrixShape, ...], expected: list[list[str]]
) -> None:
    """Rows computed inside the kernel of their product would be multiplied one at a time."""
    graph = run_pipeline(parse_graph(BLOCK), "fuse", Context(AVX512, shapes))
    bodies = [n.attrs["body"] for n in graph.nodes if isinstance(n.structure, Fused)]
    assert [[n.op.name for n in b.nodes if n.operands] for b in bodies] == expected
