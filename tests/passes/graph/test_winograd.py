"""winograd: exact in rational numbers, close to float64 in f32, and only where it pays and is allowed."""

from __future__ import annotations

from base64 import b64encode
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import compiler
from compiler.codegen.backend import GRAPH_PASSES
from compiler.cost.machine import Machine
from compiler.ir import ops
from compiler.ir.graph.constant import LazyConstant
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, constant_node, input_node
from compiler.ir.symbolic.index_expr import Dim, dynamic_size
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.types import TensorType, bf16, f32
from compiler.passes.base import Context
from compiler.passes.graph.winograd import (
    ERROR_GROWTH,
    INTERPOLATION_POINTS,
    Winograd,
    as_floats,
    best_tile,
    toom_cook_matrices,
    transformed_weights,
)
from compiler.passes.manager import run_pipeline
from compiler.target import MatrixShape
from compiler.testing.checks import check_pass


def conv(
    shape: tuple[int, ...], outputs: int, window: tuple[int, int] = (3, 3), stride: int = 1, groups: int = 1
) -> Node:
    x = input_node("x", TensorType(f32, shape))
    w = constant_node(np.ones((outputs, shape[1] // groups, *window), np.float32))
    return ops.conv(x, w, stride=[stride, stride], dilation=[1, 1], groups=groups)


@pytest.mark.parametrize("m", INTERPOLATION_POINTS)
def test_the_transforms_are_exact(m: int) -> None:
    """y = A^T ((G g) * (B^T d)) for numbers without rounding."""
    outer, kernel, image = toom_cook_matrices(m, 3)
    d, g = [Fraction(n * n - 7) for n in range(m + 2)], [Fraction(3), Fraction(-5, 2), Fraction(1, 7)]

    def times(matrix: tuple[tuple[Fraction, ...], ...], x: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, x, strict=True)), Fraction(0)) for row in matrix]

    products = [a * b for a, b in zip(times(kernel, g), times(image, d), strict=True)]
    assert times(outer, products) == [sum((d[i + k] * g[k] for k in range(3)), Fraction(0)) for i in range(m)]


@pytest.mark.parametrize("side", [16, 10, 13, 3])
def test_convolutions_in_tiles_are_close_to_float64(side: int) -> None:
    """And no farther than the bound on which the choice rests."""
    torch.manual_seed(0)
    check_tiles(nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()), torch.randn(1, 64, side, side))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_weights_of_images_that_are_widened(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = nn.Conv2d(64, 64, 3, padding=1, bias=False).eval().to(dtype), torch.randn(1, 64, 12, 12).to(dtype)
    pipeline = "decompose,canonicalize,fold,widen-operands,winograd{max-time-ratio=9.0},fuse"
    options = {"graph_passes": pipeline, "verify": True, "target": "x86-64-v3"}
    compiled = compiler.compile(model, (x,), options=options)
    assert "constant_linear" in compiled.print_ir("fused")
    with torch.no_grad():
        wanted = model.double()(x.double())
    ulp = torch.finfo(dtype).eps
    assert (compiled(x) - wanted).abs().max() <= 1.01 * ulp * wanted.abs().max()


def check_tiles(model: nn.Module, x: torch.Tensor) -> None:
    wanted = model.eval().double()(x.double())
    model.float()
    errors = {}
    for name, passes in (("tiles", "winograd{max-time-ratio=9.0}"), ("direct", "winograd{max-error=0.0}")):
        pipeline = f"decompose,canonicalize,fold,cse,{passes},fuse"
        compiled = compiler.compile(model, (x,), options={"graph_passes": pipeline, "verify": True})
        assert ("constant_linear" in compiled.print_ir("fused")) == (name == "tiles")
        errors[name] = ((compiled(x) - wanted).abs().max() / wanted.abs().max()).item()
    assert errors["tiles"] <= max(ERROR_GROWTH.values()) * max(errors["direct"], 2**-23)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv3d(24, 40, 3, padding=1),
        nn.Conv3d(24, 40, (1, 3, 3), padding=(0, 1, 1)),
        nn.Conv3d(24, 40, (1, 3, 3), stride=(2, 1, 1)),
        nn.Conv3d(24, 40, (2, 3, 3), stride=(2, 1, 1), padding=1),
        nn.Conv3d(24, 40, 3, dilation=(2, 1, 1), padding=(2, 1, 1)),
    ],
    ids=["3 x 3 x 3", "1 x 3 x 3", "strided frames", "2 x 3 x 3, strided", "dilated frames"],
)
def test_films_in_tiles_are_close_to_float64(layer: nn.Conv3d) -> None:
    """Whichever frames a window sees; heights and widths need not be whole tiles."""
    torch.manual_seed(0)
    layer.reset_parameters()
    check_tiles(layer, torch.randn(2, 24, 5, 9, 14))


def test_each_frame_is_transformed_once() -> None:
    """And stands beside those that are seen with it."""
    x, w = input_node("x", TensorType(f32, (2, 8, 6, 10, 10))), constant_node(np.ones((4, 8, 3, 3, 3), np.float32))
    n = ops.conv(x, w, stride=[1, 1, 1], dilation=[1, 1, 1])
    lines = print_graph(Winograd(max_time_ratio=99.0).run(Graph((x,), (n,)), Context())).splitlines()
    assert [line.split(" {")[0].strip() for line in lines[1:10]] == [
        "%unfold_0: f32[2, 8, 6, 2, 10, 6] = unfold %x",
        "%unfold_1: f32[2, 8, 6, 2, 2, 6, 6] = unfold %unfold_0",
        "%constant_linear_0: f32[2, 8, 6, 2, 2, 6, 6] = constant_linear %unfold_1",
        "%constant_linear_1: f32[2, 8, 6, 2, 2, 6, 6] = constant_linear %constant_linear_0",
        "%unfold_2: f32[2, 8, 4, 2, 2, 6, 6, 3] = unfold %constant_linear_1",
        "%permute_0: f32[2, 4, 2, 2, 6, 6, 3, 8] = permute %unfold_2",
        "%reshape_0: f32[32, 36, 1, 24] = reshape %permute_0",
        "%constant_0 = constant f32[36, 24, 4] @constant_0",
        "%matmul_0: f32[32, 36, 1, 4] = matmul %reshape_0, %constant_0",
    ]


def test_it_is_chosen_where_it_takes_less_time() -> None:
    context = Context()
    assert best_tile(conv((1, 64, 58, 58), 64), context, 16.0, 0.8) == 4
    assert best_tile(conv((1, 256, 16, 16), 256), context, 16.0, 0.8) == 2  # fewer weights for 14 x 14 results
    assert best_tile(conv((8, 256, 16, 16), 256), context, 16.0, 0.8) == 4  # which more images use
    assert best_tile(conv((1, 64, 59, 59), 64), context, 16.0, 0.8) == 4
    assert best_tile(conv((1, 256, 58, 58), 256), context, 4.0, 0.8) == 2
    assert best_tile(conv((1, 64, 58, 58), 64), context, 1.0, 0.8) == 0
    assert best_tile(conv((1, 4, 58, 58), 4), context, 16.0, 0.8) == 0
    assert (
        best_tile(conv((1, 512, 9, 9), 512), context, 16.0, 0.8) == 0
    )  # the transformed weights are too many for 49 results
    assert best_tile(conv((1, 64, 3, 3), 64), context, 16.0, 0.8) == 0  # most of the tile would be left out


@pytest.mark.parametrize(("outputs", "tile"), [(256, 4), (64, 0)])
def test_images_of_bf16_compare_with_two_products_at_once(outputs: int, tile: int) -> None:
    """An image is transformed once for all outputs: few of them leave less to save than in f32."""
    n = conv((1, 512, 66, 66), outputs)
    x, w = (input_node("x", TensorType(bf16, n.operands[0].shape)), n.operands[1])
    weights = constant_node(bf16.encode(w.attrs["value"].array).astype(np.uint16), dtype=bf16)
    narrow = ops.conv(x, weights, stride=[1, 1], dilation=[1, 1], dtype=f32)
    context = Context(matrix_shapes=(MatrixShape(1, 16, 2, "bf16", "bf16", "f32"),))
    assert best_tile(narrow, context, 16.0, 0.8) == tile
    assert best_tile(n, context, 16.0, 0.8) == 4
    text = print_graph(Winograd().run(Graph((x,), (narrow,)), context))
    assert ("cast %x {dtype=f32}" in text) == bool(tile)


def test_tiles_of_bf16_are_as_close_to_float64_as_sums_of_f32() -> None:
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Conv2d(32, 32, 3), nn.Conv2d(32, 32, 3)).bfloat16().eval(),
        torch.randn(1, 32, 15, 17).bfloat16(),
    )
    with torch.no_grad():
        first = nn.functional.conv2d(x.double(), model[0].weight.double(), model[0].bias.double()).bfloat16()
        wanted = nn.functional.conv2d(first.double(), model[1].weight.double(), model[1].bias.double())
        options = {"graph_passes": GRAPH_PASSES.replace("winograd", "winograd{max-time-ratio=99.0}")}
        result = compiler.compile(model, (x,), options=options)(x)
    assert (result - wanted).abs().max() <= 0.01 * wanted.abs().max()


def test_open_images_take_what_never_takes_much_more() -> None:
    """Than the best way at the likely size and at half of it."""
    s = dynamic_size("s", 16, 800, 500)
    context = Context()

    def chosen(channels: int, side: Dim) -> int:
        x = input_node("x", TensorType(f32, (1, channels, side + 2, side + 2)))
        w = constant_node(np.ones((channels, channels, 3, 3), np.float32))
        return best_tile(ops.conv(x, w, stride=[1, 1], dilation=[1, 1]), context, 16.0, 0.8)

    assert chosen(64, s) == 4
    assert chosen(256, s // 16) == 4  # for 15 rows 2 would be a little better
    assert chosen(512, s // 32) == 0  # 4 would be best for 15 rows, and the worst for 7


def images(*nodes: Node) -> list[str]:
    """What becomes of the images that `nodes` read, as their types."""
    graph = Graph((nodes[0].operands[0].operands or nodes[0].operands)[:1], nodes)
    return [str(n.type) for n in Winograd(max_time_ratio=99.0).run(graph, Context()).nodes if n.op is ops.pad]


def test_the_last_tiles_reach_beyond_the_images() -> None:
    """Their padding grows with them, and is shared."""
    x, w = input_node("x", TensorType(f32, (1, 4, 13, 13))), constant_node(np.ones((8, 4, 3, 3), np.float32))
    wide = ops.pad(x, before=[0, 0, 1, 1], after=[0, 0, 1, 1])
    attrs = {"stride": [1, 1], "dilation": [1, 1]}
    one, other = ops.conv(wide, w, **attrs), ops.conv(wide, constant_node(np.zeros((8, 4, 3, 3), np.float32)), **attrs)
    assert images(one) == ["f32[1, 4, 16, 16]"]
    assert images(one, other) == ["f32[1, 4, 16, 16]"]
    assert images(one, wide) == ["f32[1, 4, 16, 16]"]
    assert images(conv((1, 4, 15, 15), 8)) == ["f32[1, 4, 16, 16]"]
    assert images(conv((1, 4, 16, 16), 8)) == []


def test_an_image_that_several_read_is_transformed_once() -> None:
    """By whichever passes stand behind this one."""
    x, w = input_node("x", TensorType(f32, (1, 64, 58, 58))), np.ones((64, 64, 3, 3), np.float32)
    both = [ops.conv(x, constant_node(w + k), stride=[1, 1], dilation=[1, 1]) for k in range(2)]
    lines = print_graph(
        run_pipeline(Graph((x,), tuple(both)), GRAPH_PASSES.removesuffix(",fuse,defer-rounding"))
    ).splitlines()
    read = [line.split("=")[1].split("{")[0].strip() for line in lines if "= unfold" in line or "= matmul" in line]
    assert read == ["unfold %x", "unfold %unfold_0", "matmul %reshape_0, %constant_0", "matmul %reshape_0, %constant_1"]


def test_what_stands_behind_a_part_of_an_image_takes_no_part() -> None:
    """An infinite element would spread over the last tiles, which need not end where the part does."""
    torch.manual_seed(0)
    layer = nn.Conv2d(64, 64, 3, bias=False).eval()

    class Part(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return layer(x[:, :, 1:60, :59])

    x = torch.full((1, 64, 63, 62), float("inf"))
    x[:, :, 1:60, :59] = torch.randn(1, 64, 59, 59)
    compiled = compiler.compile(Part(), (x,))
    assert "constant_linear" in compiled.print_ir("fused")
    wanted = torch.conv2d(x[:, :, 1:60, :59].double(), layer.weight.double())
    torch.testing.assert_close(compiled(x).double(), wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    "n",
    [
        conv((1, 64, 60, 60), 64, window=(5, 5)),
        conv((1, 64, 57, 57), 64, stride=2),
        conv((1, 64, 58, 58), 64, groups=2),
    ],
    ids=["5 x 5", "strided", "grouped"],
)
def test_other_convolutions_stay(n: Node) -> None:
    graph = Graph((n.operands[0],), (n,))
    assert (
        Winograd(max_time_ratio=99.0).run(graph, Context()) is graph
        or Winograd(max_time_ratio=99.0).run(graph, Context()).outputs[0].op is ops.conv
    )


def test_the_user_may_forbid_it() -> None:
    model, x = nn.Conv2d(64, 64, 3, padding=1).eval(), torch.randn(1, 64, 56, 56)
    assert "constant_linear" in compiler.compile(model, (x,)).print_ir("fused")
    assert "constant_linear" not in compiler.compile(model, (x,), options={"winograd": False}).print_ir("fused")


def test_transformed_weights_are_made_when_asked_for() -> None:
    """Each time anew: nobody holds them until they are packed; blocks need not divide outputs and channels."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((70, 133, 3, 3)).astype(np.float32)
    _, kernel, _ = toom_cook_matrices(4, 3)
    data = transformed_weights(constant_node(w), kernel).attrs["value"]
    g = np.array(as_floats(kernel))
    wanted = np.einsum("pi,qj,ocij->pqco", g, g, w.astype(np.float64)).reshape(36, 133, 70)
    assert data.shape == (36, 133, 70)
    np.testing.assert_allclose(data.array, wanted, rtol=2**-23)
    assert data.array is not data.array


def test_computed_constants_are_not_taken_for_each_other() -> None:
    """They have no place in memory by which to tell them apart."""
    ones, twos = (
        constant_node(LazyConstant(f32, (64, 64), lambda start, stop, n=n: np.full((64, stop - start), n, np.float32)))
        for n in (1, 2)
    )
    graph = run_pipeline(Graph((), (ops.exp(ones), ops.exp(twos))), "cse")
    assert len(graph.constants) == 2


# IR before and after


IMAGE_TRANSFORM = "[[-1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, -1.0, 1.0, 0.0], [0.0, -1.0, 0.0, 1.0]]"
OUTPUT_TRANSFORM = "[[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, -1.0, 1.0]]"


def tiled(x: str, y: str, n: str, c: int = 1, weights: str = "") -> str:
    """Graph IR of %`y` = conv %`x` in n x n tiles of 2 x 2 results, with `c` channels and outputs."""
    return f"""
      %{y}0 = unfold %{x} {{dim=2, size=4, step=2}}  %{y}1 = unfold %{y}0 {{dim=3, size=4, step=2}}
      %{y}2 = constant_linear %{y}1 {{dim=4, matrix={IMAGE_TRANSFORM}}}
      %{y}3 = constant_linear %{y}2 {{dim=5, matrix={IMAGE_TRANSFORM}}}
      %{y}4 = permute %{y}3 {{dims=[0, 2, 3, 4, 5, 1]}}
      %{y}5 = reshape %{y}4 {{shape=[({n})*({n}), 16, 1, {c}]}}
      {products(f"{y}5", y, n, c, weights)}"""


def products(x: str, y: str, n: str, c: int = 1, weights: str = "") -> str:
    """Graph IR of the second half of `tiled`: products with transformed weights, and the output transform."""
    return f"""
      %{y}w = constant f32[16, {c}, {c}] {weights or TRANSFORMED_ONES}  %{y}6 = matmul %{x}, %{y}w
      %{y}7 = reshape %{y}6 {{shape=[1, {n}, {n}, 4, 4, {c}]}}  %{y}8 = permute %{y}7 {{dims=[0, 5, 1, 2, 3, 4]}}
      %{y}9 = constant_linear %{y}8 {{dim=4, matrix={OUTPUT_TRANSFORM}}}
      %{y}10 = constant_linear %{y}9 {{dim=5, matrix={OUTPUT_TRANSFORM}}}
      %{y}11 = permute %{y}10 {{dims=[0, 1, 2, 4, 3, 5]}}
      %{y} = reshape %{y}11 {{shape=[1, {c}, ({n})*2, ({n})*2]}}"""


ONES = "constant f32[1, 1, 3, 3] [[[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]]"
TRANSFORMED_ONES = str([[[a * b]] for a in (-1.0, 1.5, 0.5, 1.0) for b in (-1.0, 1.5, 0.5, 1.0)])
"""G g G^T for a window of ones: G maps (1, 1, 1) to (-1, 3/2, 1/2, 1)."""

ALWAYS = "winograd{max-error=4.0, max-time-ratio=99.0}"
"""Tiles of 2 x 2 for every supported convolution: those of 4 x 4 have larger errors."""

UNIT = "{stride=[1, 1], dilation=[1, 1]}"


def test_transforms_image_weights_and_result() -> None:
    check_pass(
        ALWAYS,
        before=f"graph(%x: f32[1, 1, 6, 6]) {{ %w = {ONES}  %y = conv %x, %w {UNIT}  return %y }}",
        after=f"graph(%x: f32[1, 1, 6, 6]) {{ {tiled('x', 'y', '2')} return %y }}",
        remark="tiles of 2 x 2: 16 products instead of 36",
        special=False,  # infinities spread over their tile
    )


def test_extends_image_to_whole_tiles_and_crops_result() -> None:
    check_pass(
        ALWAYS,
        before=f"graph(%x: f32[1, 1, 5, 6]) {{ %w = {ONES}  %y = conv %x, %w {UNIT}  return %y }}",
        after=f"""graph(%x: f32[1, 1, 5, 6]) {{ %p = pad %x {{before=[0, 0, 0, 0], after=[0, 0, 1, 0]}}
          {tiled("p", "y", "2")} %s = slice %y {{dim=2, size=3}}  return %s }}""",
        special=False,
    )


def test_crops_after_elementwise_users_at_dynamic_sizes() -> None:
    n = "(h + 2)//2"
    check_pass(
        ALWAYS,
        before=f"""graph(size h in 4..800 hint 500, %x: f32[1, 1, h, h]) {{ %w = {ONES}
          %p = pad %x {{before=[0, 0, 1, 1], after=[0, 0, 2, 2]}}  %y = conv %p, %w {UNIT}  %r = relu %y  return %r }}""",
        after=f"""graph(size h in 4..800 hint 500, %x: f32[1, 1, h, h]) {{
          %p = pad %x {{before=[0, 0, 1, 1], after=[0, 0, ({n})*2 - h + 1, ({n})*2 - h + 1]}}  {tiled("p", "y", n)}
          %r = relu %y  %s = slice %r {{dim=2, size=h + 1}}  %t = slice %s {{dim=3, size=h + 1}}  return %t }}""",
        special=False,
    )


def test_users_of_one_image_share_its_transform() -> None:
    check_pass(
        f"{ALWAYS},cse",
        before=f"""graph(%x: f32[1, 1, 6, 6]) {{ %w = {ONES}
          %y = conv %x, %w {UNIT}  %z = conv %x, %w {UNIT}  return %y, %z }}""",
        after=f"""graph(%x: f32[1, 1, 6, 6]) {{
          {tiled("x", "y", "2")} {products("y5", "z", "2")} return %y, %z }}""",
        special=False,
    )


REFUSED = {
    "strided": (ALWAYS, f"%w = {ONES}  %y = conv %x, %w {{stride=[2, 1], dilation=[1, 1]}}"),
    "dilated": (ALWAYS, f"%w = {ONES}  %y = conv %x, %w {{stride=[1, 1], dilation=[2, 1]}}"),
    "1 x 9": (ALWAYS, f"%w = {ONES}  %v = reshape %w {{shape=[1, 1, 1, 9]}}  %y = conv %x, %v {UNIT}"),
    "computed weights": (ALWAYS, f"%w = {ONES}  %v = relu %w  %y = conv %x, %v {UNIT}"),
    "implicit padding": (
        ALWAYS,
        f"%w = {ONES}  %y = conv %x, %w {{stride=[1, 1], dilation=[1, 1], before=[1, 1], after=[1, 1]}}",
    ),
    "no error allowed": ("winograd{max-error=0.0, max-time-ratio=99.0}", f"%w = {ONES}  %y = conv %x, %w {UNIT}"),
    "slower": ("winograd", f"%w = {ONES}  %y = conv %x, %w {UNIT}"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_leaves_convolution(case: str) -> None:
    pipeline, body = REFUSED[case]
    check_pass(pipeline, unchanged=f"graph(%x: f32[1, 1, 9, 9]) {{ {body}  return %y }}", special=False)


def resources(**shapes: tuple[int, ...]) -> str:
    """Resources section with constants of ones."""
    data = {name: b64encode(np.ones(shape, np.float32).tobytes()).decode() for name, shape in shapes.items()}
    return "resources {" + " ".join(f'@{name} = "{text}"' for name, text in data.items()) + "}"


def layer(size: str = "6", declarations: str = "") -> str:
    """Graph IR of a convolution with 16 channels and outputs, which is 4 x 4 unless the image has another `size`."""
    return f"""graph({declarations} %x: f32[1, 16, {size}, {size}]) {{ %w = constant f32[16, 16, 3, 3] @w
      %y = conv %x, %w {UNIT}  return %y }} {resources(w=(16, 16, 3, 3))}"""


BALANCED = "winograd{max-error=4.0, max-time-ratio=1.0}"


def test_machine_with_short_vectors_saves_multiplications() -> None:
    """Products take four times as long there, while the bytes of the larger weights take the same time."""
    check_pass(BALANCED, unchanged=layer(), machine=Machine(vector_bits=512, l3_bytes_per_cycle=20), special=False)
    check_pass(
        BALANCED,
        before=layer(),
        after=f"""graph(%x: f32[1, 16, 6, 6]) {{ {tiled("x", "y", "2", 16, "@constant_0")} return %y }}
          {resources(constant_0=(16, 16, 16))}""",
        machine=Machine(vector_bits=128, l3_bytes_per_cycle=20),
        special=False,
    )


def test_requests_variant_for_small_images() -> None:
    """Loading the larger weights pays for large images only."""
    context = Context(Machine(fma_per_cycle=16, l3_bytes_per_cycle=1, l2=1 << 30))
    text = layer("s", "size s in 3..800 hint 500,")
    (y,) = run_pipeline(parse_graph(text), BALANCED, context).outputs
    assert y.op is ops.slice_
    assert [r.message for r in context.remarks.select("winograd", "note")] == ["small images use no tiles"]
    assert context.wants_small_variant
