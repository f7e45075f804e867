"""Transposed convolutions as a product and sums of what overlaps: when, and with the same result."""

from __future__ import annotations

import pytest

from compiler.ir.text.graph_parser import parse_graph
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_equivalent, check_pass

ANY_COST = "lower-to-col2im{max-time-ratio=1000.0}"


def convolution(image: str, weight: str, attrs: str) -> str:
    """A graph of one transposed convolution, as it is imported."""
    return f"graph(%x: {image}, %w: {weight}) {{ %y = conv_transposed %x, %w {{{attrs}}} return %y }}"


UP = "stride=[2, 2], padding=[1, 1], dilation=[1, 1], output_padding=[0, 0]"


def test_one_product_for_all_taps() -> None:
    check_pass(
        ANY_COST,
        before="""graph(%x: f32[2, 8, 7, 8], %w: f32[8, 3, 4, 4]) {
          %y = conv_phases %x, %w {stride=[2, 2], start=[1, 1], size=[10, 12]} return %y }""",
        after="""graph(%x: f32[2, 8, 7, 8], %w: f32[8, 3, 4, 4]) {
          %reshape_0: f32[8, 48] = reshape %w {shape=[8, 48]}
          %permute_0: f32[48, 8] = permute %reshape_0 {dims=[1, 0]}
          %reshape_1: f32[2, 8, 56] = reshape %x {shape=[2, 8, 56]}
          %matmul_0: f32[2, 48, 56] = matmul %permute_0, %reshape_1 {dtype=f32}
          %reshape_2: f32[2, 3, 4, 4, 7, 8] = reshape %matmul_0 {shape=[2, 3, 4, 4, 7, 8]}
          %y: f32[2, 3, 10, 12] = col2im %reshape_2 {stride=[2, 2], dilation=[1, 1], start=[3, 3], size=[10, 12]}
          return %y }""",
        remark="one product for all taps",
    )


@pytest.mark.parametrize(
    "text",
    [
        convolution("f32[1, 4, 7]", "f32[4, 2, 5]", "stride=[3], padding=[1], dilation=[1], output_padding=[2]"),
        convolution("f32[2, 4, 3, 5]", "f32[4, 1, 3, 2]", "stride=[2, 1], padding=[0, 1], dilation=[1, 1], output_padding=[1, 0]"),
        convolution("f32[1, 3, 4, 4]", "f32[3, 2, 2, 3]", "stride=[2, 3], padding=[1, 0], dilation=[1, 1], output_padding=[0, 2]"),
        convolution("f32[2, 3, 3, 2, 2]", "f32[3, 2, 2, 2, 3]", "stride=[2, 2, 3], padding=[0, 1, 1], dilation=[1, 1, 1], output_padding=[1, 0, 0]"),
        convolution("f32[1, 3, 4]", "f32[3, 2, 2]", "stride=[3], padding=[1], dilation=[1], output_padding=[1]"),
        convolution("f32[1, 3, 4, 4]", "f32[3, 2, 2, 2]", "stride=[2, 2], padding=[0, 0], dilation=[2, 3], output_padding=[0, 0]"),
        convolution("bf16[1, 3, 4, 4]", "bf16[3, 2, 3, 3]", UP),
        convolution("f32[2, 32, 3]", "f32[32, 3, 3]", "stride=[2], padding=[1], dilation=[1], output_padding=[1], groups=2"),
        convolution("f32[1, 48, 3]", "f32[48, 1, 2]", "stride=[2], padding=[0], dilation=[1], output_padding=[0], groups=3"),
        convolution("f32[1, 2, 3, 2, 3]", "f32[2, 1, 2, 3, 2]", "stride=[1, 2, 2], padding=[0, 1, 0], dilation=[1, 1, 1], output_padding=[0, 1, 0]"),
        # the image's own padding and the convolution's are one
        """graph(%x: f32[1, 3, 4], %w: f32[3, 2, 4]) {
          %p = pad %x {before=[0, 0, 2], after=[0, 0, 1]}
          %y = conv_transposed %p, %w {stride=[2], padding=[1], dilation=[1], output_padding=[0]} return %y }""",
    ],
)  # fmt: skip
def test_every_window_keeps_its_meaning(text: str) -> None:
    before = run_pipeline(parse_graph(text), "decompose,canonicalize")
    after = run_pipeline(before, ANY_COST)
    assert "matmul" in {n.op.name for n in after.nodes}
    check_equivalent(before, after)


def test_constant_weights_do_not_multiply_the_padding() -> None:
    taps = ", ".join(map(str, range(1, 9)))
    graph = parse_graph(f"""graph(%x: f32[1, 1, 4]) {{ %c = constant f32[8] [{taps}]  %w = reshape %c {{shape=[1, 2, 4]}}
      %y = conv_transposed %x, %w {{stride=[2], padding=[1], dilation=[1], output_padding=[0]}} return %y }}""")
    after = run_pipeline(graph, f"decompose,canonicalize,fold,{ANY_COST}")
    (product,) = (n for n in after.nodes if n.op.name == "matmul")
    assert product.shape == (1, 8, 4)
    check_equivalent(graph, after)


@pytest.mark.parametrize(
    ("image", "weight", "attrs", "lowered"),
    [
        ("f32[1, 64, 32, 32]", "f32[64, 3, 4, 4]", UP, True),
        ("f32[1, 128, 16, 16]", "f32[128, 1, 3, 3]", UP, True),
        ("f32[1, 64, 32, 32]", "f32[64, 64, 4, 4]", UP, False),  # lanes along channels
        ("f32[1, 128, 56, 56]", "f32[128, 64, 3, 3]", UP, False),
        ("f32[1, 4, 32, 32]", "f32[4, 8, 4, 4]", UP, False),  # more overlaps than products
        ("f32[1, 64, 32, 32]", "f32[64, 3, 3, 3]", UP.replace("2, 2", "1, 1"), False),  # lanes read neighbouring pixels
        ("f32[1, 64, 32, 32]", "f32[64, 2, 4, 4]", UP + ", groups=4", True),
        ("f32[1, 64, 32, 32]", "f32[64, 2, 4, 4]", UP + ", groups=8", False),  # sums of 8
        ("f32[0, 64, 32, 32]", "f32[64, 3, 4, 4]", UP, False),
        ("f32[1, 0, 32, 32]", "f32[0, 3, 4, 4]", UP, False),
        ("f32[1, 64, 32, 32]", "f32[64, 0, 4, 4]", UP, False),
    ],
)
def test_channels_overlaps_and_groups_decide(image: str, weight: str, attrs: str, lowered: bool) -> None:
    graph = run_pipeline(parse_graph(convolution(image, weight, attrs)), "decompose,canonicalize,lower-to-col2im")
    assert ("matmul" in {n.op.name for n in graph.nodes}) == lowered


def test_windows_that_do_not_overlap_are_put_side_by_side() -> None:
    check_pass(
        ANY_COST,
        before="""graph(%x: f32[1, 8, 5], %w: f32[8, 3, 2]) {
          %y = conv_phases %x, %w {stride=[2], start=[1], size=[8]} return %y }""",
        after="""graph(%x: f32[1, 8, 5], %w: f32[8, 3, 2]) {
          %a: f32[8, 6] = reshape %w {shape=[8, 6]}
          %b: f32[6, 8] = permute %a {dims=[1, 0]}
          %c: f32[1, 8, 5] = reshape %x {shape=[1, 8, 5]}
          %d: f32[1, 6, 5] = matmul %b, %c {dtype=f32}
          %e: f32[1, 3, 2, 5] = reshape %d {shape=[1, 3, 2, 5]}
          %f: f32[1, 3, 5, 2] = permute %e {dims=[0, 1, 3, 2]}
          %g: f32[1, 3, 10] = reshape %f {shape=[1, 3, 10]}
          %y: f32[1, 3, 8] = slice %g {dim=2, start=1, size=8}
          return %y }""",
    )
