"""fuse: what products read from a copy."""

from __future__ import annotations

import pytest

from compiler.cost.machine import AVX512, GPU, Machine
from compiler.ir.text.graph_parser import parse_graph
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline

PRODUCT = """graph(%x: f32[{shape}], %y: f32[4, 8, 64, {columns}]) {{
  %p = permute %x {{dims=[{dims}]}}  %z = matmul %p, %y  {result}  return %r }}"""
SHARES = "%s = sum %z {dims=[3], keepdim=true}  %r = div %z, %s"
PLAIN, BATCH_LAST = "%r = neg %z", "%r = permute %z {dims=[0, 2, 3, 1]}"
HEADS_LAST, HEADS_BEFORE_ROWS = ("4, 96, 64, 8", "0, 3, 1, 2"), ("4, 96, 8, 64", "0, 2, 1, 3")


def kernels(operand: tuple[str, str], columns: int, result: str, machine: Machine) -> int:
    """The kernels that a product with a permuted operand becomes."""
    context, (shape, dims) = Context(machine), operand
    text = PRODUCT.format(shape=shape, dims=dims, columns=columns, result=result)
    run_pipeline(parse_graph(text), "fuse", context)
    return context.statistics["fuse: kernels"]


@pytest.mark.parametrize(
    ("operand", "columns", "result", "machine", "expected"),
    [
        (HEADS_LAST, 32, PLAIN, AVX512, 2),
        (HEADS_LAST, 32, SHARES, AVX512, 2),
        (HEADS_BEFORE_ROWS, 32, PLAIN, AVX512, 1),
        (HEADS_LAST, 4, PLAIN, AVX512, 1),
        (HEADS_LAST, 32, BATCH_LAST, AVX512, 1),
        (HEADS_LAST, 32, PLAIN, GPU(), 1),
    ],
    ids=["interleaved", "with rows of results", "rows apart", "few products", "results interleave too", "GPU"],
)
def test_interleaved_matrices_are_copied(
    operand: tuple[str, str], columns: int, result: str, machine: Machine, expected: int
) -> None:
    assert kernels(operand, columns, result, machine) == expected


OVERLAPPING = """graph(%x: f32[1, 8, {taps}, 20], %w: f32[64, 8]) {{
  %c = col2im %x {{stride=[{stride}], dilation=[1], start=[0], size=[40]}}  %z = matmul %w, %c  return %z }}"""


@pytest.mark.parametrize(("stride", "divides"), [(2, True), (1, False)])
def test_sums_at_quotients_of_indices_stay_outside_products(stride: int, divides: bool) -> None:
    """Lanes and rows of the product would need a copy of the loops for each remainder."""
    context = Context()
    run_pipeline(parse_graph(OVERLAPPING.format(taps=4, stride=stride)), "fuse", context)
    assert any("divide the indices" in r.message for r in context.remarks) == divides
