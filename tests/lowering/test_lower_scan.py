"""Scans as loops: which loop is walked, what fuses into it, and what does not."""

from __future__ import annotations

import pytest

from compiler.errors import LoweringError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.structure import Fused
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_printer import print_kernel
from compiler.lowering.kernel import lower_kernel
from compiler.lowering.program import lower
from compiler.passes.manager import run_pipeline


def kernel(text: str) -> str:
    return " ".join(print_kernel(lower_kernel(parse_graph(text), "k")).split())


def kernels(text: str) -> list[list[str]]:
    """The ops of each kernel, in order."""
    fused = run_pipeline(parse_graph(text), "decompose,fuse")
    bodies: list[Graph] = [n.attrs["body"] for n in fused.nodes if isinstance(n.structure, Fused)]
    assert len(bodies) == len(lower(fused).steps)
    return [[n.op.name for n in body.nodes if n.operands] for body in bodies]


STEP = (
    "local %carry0: f64[] store 0.0, %carry0[] for %{walk} in 0..{size} {{ %s0 = %carry0[] %s1 = %s0 + cast<f64>(%x[{read}]) "
    "store %s1, %carry0[] %s2 = cast<f32>(%s1) store %s2, %out0[%i0, %i1] }}"
)


@pytest.mark.parametrize(("dim", "around", "walk", "size"), [(0, "%i1 in 0..8", "i0", 4), (1, "%i0 in 0..4", "i1", 8)])
def test_the_scanned_dimension_is_innermost(dim: int, around: str, walk: str, size: int) -> None:
    got = kernel(f"graph(%x: f32[4, 8]) {{ %y = cumsum %x {{dim={dim}}} return %y }}")
    body = STEP.format(walk=walk, size=size, read="%i0, %i1")
    assert got == f"kernel @k(in %x: f32[4, 8], out %out0: f32[4, 8]) {{ parallel {around} {{ {body} }} }}"


def test_from_the_end() -> None:
    got = kernel("graph(%x: f32[4, 8]) { %y = cumsum %x {dim=1, reverse=true} return %y }")
    assert "%x[%i0, -%i1 + 7]" in got
    assert "%out0[%i0, -%i1 + 7]" in got


def test_exclusive_gives_what_was_carried() -> None:
    assert "cast<f32>(%s0)" in kernel("graph(%x: f32[8]) { %y = cumsum %x {dim=0, exclusive=true} return %y }")


def test_a_scan_of_one_element_carries_nothing() -> None:
    assert "carry" not in kernel("graph(%x: f32[4, 1]) { %y = cumsum %x {dim=1} return %y }")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%m = gt %x, 0.0 %w = where %m, %x, 0.0 %c = cumsum %w {dim=1} %y = mul %c, 2.0", [["gt", "where", "cumsum", "mul"]]),
        ("%f = flip %x {dims=[1]} %c = cumsum %f {dim=1} %y = flip %c {dims=[1]}", [["flip", "cumsum", "flip"]]),
        ("%s = softmax %x {dim=1} %y = cumsum %s {dim=1}", [["amax", "sub", "exp", "sum", "div", "cumsum"]]),
        ("%a = cumsum %x {dim=0} %y = cumsum %a {dim=1}", [["cumsum"], ["cumsum"]]),
        ("%a = cumsum %x {dim=1} %y = sum %a {dims=[1]}", [["cumsum"], ["sum"]]),
        ("%a = sum %x {dims=[1], keepdim=true} %y = cumsum %a {dim=0}", [["sum"], ["cumsum"]]),
        ("%a = cumsum %x {dim=1} %y = slice %a {dim=1, start=2, size=3}", [["cumsum"], ["slice"]]),
    ],
    ids=["mask and scale", "flips", "after softmax", "two ways", "before a sum", "of sums", "part"],
)  # fmt: skip
def test_what_fuses(text: str, expected: list[list[str]]) -> None:
    assert kernels(f"graph(%x: f32[64, 80]) {{ {text} return %y }}") == expected


def test_extremes_and_their_places_are_found_together() -> None:
    text = "graph(%x: f32[64, 80]) { %v = cummax %x {dim=1} %p = cummax_index %x {dim=1} return %v, %p }"
    fused = run_pipeline(parse_graph(text), "decompose,cse,fuse")
    assert len(lower(fused).kernels) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("%a = cumsum %x {dim=0} %b = cumsum %x {dim=1} %y = add %a, %b", "along several dimensions"),
        ("%a = cumsum %x {dim=1} %f = flip %a {dims=[1]} %y = add %a, %f", "not read in scan order"),
        ("%a = cumsum %x {dim=1} %y = sum %a {dims=[1]}", "is not indexed by all loops"),
        (
            "%a = sum %x {dims=[1], keepdim=true} %b = expand %a {shape=[8, 8]} %y = cumsum %b {dim=0}",
            "faster as its own kernel",
        ),
        ("%a = cumsum %x {dim=1} %p = pad %a {before=[0, 1], after=[0, 1]} %y = exp %p", "not read in scan order"),
    ],
    ids=["two ways", "both ends", "reduced", "reduced in a step", "guarded"],
)
def test_what_is_no_kernel(body: str, reason: str) -> None:
    with pytest.raises(LoweringError, match=reason):
        kernel(f"graph(%x: f32[8, 8]) {{ {body} return %y }}")


def test_no_name_is_that_of_a_size_that_is_only_read() -> None:
    size = "%n = dim_value {value=s0} %f = cast %n {dtype=f32}"
    got = kernel(
        f"graph(size s0 in 1..9 hint 4, %x: f32[8]) {{ {size} %d = div %x, %f %y = cumsum %d {{dim=0}} return %y }}"
    )
    assert "index(s0)" in got
    assert "%s0 =" not in got
