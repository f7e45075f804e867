"""Convolutions as a product and sums of what overlaps: when, and with the same result."""

from __future__ import annotations

import pytest

from compiler.ir.text.graph_parser import parse_graph
from compiler.passes.base import Context
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
  %permute_0: f32[4, 4, 3, 8] = permute %w {dims=[2, 3, 1, 0]}
  %reshape_0: f32[48, 8] = reshape %permute_0 {shape=[48, 8]}
  %reshape_1: f32[2, 8, 56] = reshape %x {shape=[2, 8, 56]}
  %matmul_0: f32[2, 48, 56] = matmul %reshape_0, %reshape_1 {dtype=f32}
  %reshape_2: f32[2, 4, 4, 3, 7, 8] = reshape %matmul_0 {shape=[2, 4, 4, 3, 7, 8]}
  %permute_1: f32[2, 3, 4, 4, 7, 8] = permute %reshape_2 {dims=[0, 3, 1, 2, 4, 5]}
  %col2im_0: f32[2, 3, 10, 12] = col2im %permute_1 {stride=[2, 2], dilation=[1, 1], start=[3, 3], size=[10, 12]}
  return %col2im_0
}""",
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
        convolution("f32[1, 3, 6, 5]", "f32[3, 2, 3, 2]", "stride=[1, 1], padding=[1, 2], dilation=[1, 2], output_padding=[0, 0]"),
        "graph(%x: f32[2, 3, 9], %w: f32[2, 3, 4]) { %y = conv %x, %w {stride=[1], dilation=[2]} return %y }",
        "graph(%x: f32[1, 48, 5, 4], %w: f32[9, 16, 3, 2]) { %y = conv %x, %w {stride=[1, 1], dilation=[1, 2], groups=3} return %y }",
        convolution("f32[1, 32, 3, 4]", "f32[32, 3, 3, 2]", "stride=[1, 1], padding=[0, 0], dilation=[1, 2], output_padding=[0, 0], groups=2"),
        "graph(%x: bf16[1, 3, 4, 5], %w: bf16[2, 3, 3, 2]) { %y = convolution %x, %w {stride=[1, 1], padding=[2, 0], dilation=[1, 1]} return %y }",
        "graph(%x: f32[1, 3, 4, 3, 4], %w: f32[2, 3, 3, 1, 2]) { %y = conv %x, %w {stride=[1, 1, 1], dilation=[1, 1, 1]} return %y }",
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
        ("f32[1, 64, 32, 32]", "f32[64, 3, 3, 3]", UP.replace("2, 2", "1, 1"), True),
        ("f32[1, 64, 32, 32]", "f32[64, 64, 3, 3]", UP.replace("2, 2", "1, 1"), False),
        ("f32[1, 8, 128, 128]", "f32[8, 5, 3, 3]", UP.replace("2, 2", "1, 1"), False),
        ("f32[1, 64, 32, 32]", "f32[64, 2, 4, 4]", UP + ", groups=4", True),
        ("f32[1, 64, 32, 32]", "f32[64, 2, 4, 4]", UP + ", groups=8", False),  # sums of 8
        ("f32[1, 64, 32, 32]", "f32[64, 2, 4, 4]", UP.replace("2, 2", "1, 1") + ", groups=4", True),
        ("f32[0, 64, 32, 32]", "f32[64, 3, 4, 4]", UP, False),
        ("f32[1, 0, 32, 32]", "f32[0, 3, 4, 4]", UP, False),
        ("f32[1, 64, 32, 32]", "f32[64, 0, 4, 4]", UP, False),
    ],
)
def test_channels_overlaps_and_groups_decide(image: str, weight: str, attrs: str, lowered: bool) -> None:
    graph = run_pipeline(parse_graph(convolution(image, weight, attrs)), "decompose,canonicalize,lower-to-col2im")
    assert ("matmul" in {n.op.name for n in graph.nodes}) == lowered


@pytest.mark.parametrize(
    ("stride", "size", "padded"),
    [(2, 8, ""), (3, 12, "%pad_0 = pad %permute_1 {before=[0, 0, 0, 0], after=[0, 0, 1, 0]}")],
    ids=["adjacent", "with gaps"],
)
def test_windows_that_do_not_overlap_are_put_side_by_side(stride: int, size: int, padded: str) -> None:
    signature = "graph(%x: f32[1, 8, 5], %w: f32[8, 3, 2])"
    check_pass(
        ANY_COST,
        before=f"""{signature} {{
          %y = conv_phases %x, %w {{stride=[{stride}], start=[1], size=[{size}]}} return %y }}""",
        after=f"""{signature} {{
          %permute_0 = permute %w {{dims=[2, 1, 0]}}  %reshape_0 = reshape %permute_0 {{shape=[6, 8]}}
          %matmul_0 = matmul %reshape_0, %x {{dtype=f32}}  %reshape_1 = reshape %matmul_0 {{shape=[1, 2, 3, 5]}}
          %permute_1 = permute %reshape_1 {{dims=[0, 2, 1, 3]}}  {padded}
          %permute_2 = permute {"%pad_0" if padded else "%permute_1"} {{dims=[0, 1, 3, 2]}}
          %reshape_2 = reshape %permute_2 {{shape=[1, 3, {5 * stride}]}}
          %slice_0 = slice %reshape_2 {{dim=2, start=1, size={size}}}  return %slice_0 }}""",
    )


def test_the_taps_of_an_ordinary_convolution_are_turned_around() -> None:
    check_pass(
        ANY_COST,
        before="""graph(%x: f32[1, 8, 6], %w: f32[3, 8, 4]) {
          %y = conv %x, %w {stride=[1], dilation=[1]} return %y }""",
        after="""graph(%x: f32[1, 8, 6], %w: f32[3, 8, 4]) {
  %flip_0: f32[3, 8, 4] = flip %w {dims=[2]}
  %permute_0: f32[8, 3, 4] = permute %flip_0 {dims=[1, 0, 2]}
  %permute_1: f32[4, 3, 8] = permute %permute_0 {dims=[2, 1, 0]}
  %reshape_0: f32[12, 8] = reshape %permute_1 {shape=[12, 8]}
  %matmul_0: f32[1, 12, 6] = matmul %reshape_0, %x {dtype=f32}
  %reshape_1: f32[1, 4, 3, 6] = reshape %matmul_0 {shape=[1, 4, 3, 6]}
  %permute_2: f32[1, 3, 4, 6] = permute %reshape_1 {dims=[0, 2, 1, 3]}
  %col2im_0: f32[1, 3, 3] = col2im %permute_2 {stride=[1], dilation=[1], start=[3], size=[3]}
  return %col2im_0
}""",
        remark="one product for all taps",
    )


CONSTANT_WEIGHT = """graph(%x: f32[1, 2, 5]) {{ %c = constant f32[6] [1, 2, 3, 4, 5, 6]  %w = reshape %c {{shape=[1, 2, 3]}}
  %p = pad %x {{before=[0, 0, {low}], after=[0, 0, {high}]}}  %y = conv %p, %w {{stride=[1], dilation=[{dilation}]}} return %y }}"""


@pytest.mark.parametrize(("low", "high", "dilation"), [(1, 1, 1), (0, 3, 1), (2, 2, 2), (6, 0, 3)])
def test_padding_is_not_multiplied_and_weights_are_a_matrix(low: int, high: int, dilation: int) -> None:
    graph = parse_graph(CONSTANT_WEIGHT.format(low=low, high=high, dilation=dilation))
    after = run_pipeline(graph, ANY_COST)
    (product,) = (n for n in after.nodes if n.op.name == "matmul")
    assert product.shape == (1, 3, 5)
    assert product.operands[0].op.name == "constant"
    check_equivalent(graph, after)


def test_padding_wider_than_the_window_reaches_stays() -> None:
    graph = parse_graph(CONSTANT_WEIGHT.format(low=4, high=2, dilation=1))
    after = run_pipeline(graph, ANY_COST)
    (product,) = (n for n in after.nodes if n.op.name == "matmul")
    assert product.shape == (1, 3, 11)
    check_equivalent(graph, after)


@pytest.mark.parametrize(
    "conv",
    [
        "conv %x, %w {stride=[2], dilation=[1]}",  # computes every second result only
        "conv %x, %w {stride=[1], dilation=[1], groups=2}",  # sums of 4
        "conv %x, %v {stride=[1], dilation=[1]}",  # no overlaps
    ],
)
def test_other_convolutions_stay(conv: str) -> None:
    groups = 2 if "groups" in conv else 1
    text = f"graph(%x: f32[1, 8, 6], %w: f32[4, {8 // groups}, 3], %v: f32[4, 8, 1]) {{ %y = {conv} return %y }}"
    check_pass(ANY_COST, unchanged=text)


def kernels(text: str) -> list[set[str]]:
    """The ops of each kernel, in order."""
    graph = run_pipeline(parse_graph(text), "fuse")
    return [{m.op.name for m in n.attrs["body"].nodes} - {"input"} for n in graph.nodes if n.op.name == "fused"]


def test_fusion_leaves_the_product_apart() -> None:
    """Inside the sum, it would be a convolution again."""
    text = """graph(%x: f32[64, 100], %w: f32[27, 64]) { %p = matmul %w, %x  %r = reshape %p {shape=[1, 3, 9, 100]}
      %y = col2im %r {stride=[1], dilation=[1], start=[0], size=[108]} return %y }"""
    context = Context()
    run_pipeline(parse_graph(text), "fuse", context)
    assert any("each tap would load the pixels of its products again" in r.message for r in context.remarks)
    assert kernels(text) == [{"matmul"}, {"reshape", "col2im"}]


def test_products_that_do_not_overlap_join_their_sum() -> None:
    text = "graph(%x: f32[4, 8, 16], %w: f32[4, 16, 8]) { %p = matmul %x, %w  %y = sum %p {dims=[0]} return %y }"
    assert kernels(text) == [{"matmul", "sum"}]
