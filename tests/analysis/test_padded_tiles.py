"""Images computed in whole tiles: their ends are left out where they are read, and no number changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import compiler
from compiler.analysis.padded_tiles import PaddedTiles, extend_to, slice_region
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, constant_node, input_node
from compiler.ir.interpret.graph import interpret
from compiler.ir.symbolic.index_expr import Dim, dynamic_size
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.types import TensorType, f32
from compiler.passes.base import Context
from compiler.passes.graph import winograd
from compiler.passes.graph.winograd import Winograd

H = dynamic_size("h", 4, 800, 500)


def image(channels: int = 64, side: Dim = H) -> Node:
    return input_node("x", TensorType(f32, (1, channels, side, side)))


def conv(x: Node) -> Node:
    """A convolution of `x` with zeros around it, as large as `x`."""
    wide = ops.pad(x, before=[0, 0, 1, 1], after=[0, 0, 1, 1])
    w = constant_node(np.ones((64, x.shape[1], 3, 3), np.float32))
    return ops.conv(wide, w, stride=[1, 1], dilation=[1, 1])


def rewritten(x: Node, *outputs: Node) -> str:
    return print_graph(Winograd(max_time_ratio=9.0).run(Graph((x,), outputs), Context()))


def test_what_follows_a_convolution_is_computed_as_far_as_it() -> None:
    """And cut at the end."""
    x = image()
    lines = rewritten(x, ops.relu(conv(x))).splitlines()
    assert lines[-5].startswith("  %relu_0: f32[1, 64, ((h + 3)//4)*4, ((h + 3)//4)*4] = relu %reshape_")
    assert "= slice %relu_0 {dim=2, size=h}" in lines[-4]
    assert "= slice %slice_0 {dim=3, size=h}" in lines[-3]


def test_what_is_padded_has_zeros_where_it_ends() -> None:
    """The next convolution reads whole tiles; nothing is cut between."""
    x = image()
    text = rewritten(x, conv(ops.relu(conv(x))))
    assert (
        "%bounds_mask_0: bool[1, 1, ((h + 3)//4)*4, ((h + 3)//4)*4] = bounds_mask {shape=[1, 1, ((h + 3)//4)*4, ((h + 3)//4)*4], ends=[1, 1, h, h]}"
        in text
    )
    assert "%where_0: f32[1, 64, ((h + 3)//4)*4, ((h + 3)//4)*4] = where %bounds_mask_0, %relu_0, 0.0" in text
    assert (
        "%pad_1: f32[1, 64, ((h + 3)//4)*4 + 2, ((h + 3)//4)*4 + 2] = pad %where_0 {before=[0, 0, 1, 1], after=[0, 0, 1, 1]}"
        in text
    )
    assert text.count("= slice") == 2


def test_a_residual_is_read_from_the_image_in_the_midst_of_zeros() -> None:
    """It reaches as far as the sum that it goes into."""
    x = image()
    block = ops.relu(x)
    text = rewritten(x, ops.add(conv(block), block))
    assert "= slice %pad_0 {dim=2, start=1, size=((h + 3)//4)*4}" in text
    assert "%add_0: f32[1, 64, ((h + 3)//4)*4, ((h + 3)//4)*4] = add %reshape_2, %slice_1" in text


def test_known_sizes_that_tiles_divide_stay() -> None:
    x = image(side=16)
    text = rewritten(x, ops.add(conv(x), x))
    assert "slice" not in text
    assert "where" not in text


def test_inputs_stay_as_they_are() -> None:
    x = image()
    new = Winograd(max_time_ratio=9.0).run(Graph((x,), (conv(x), ops.relu(x))), Context())
    assert new.inputs == (x,)
    assert new.outputs[1].operands == (x,)


def test_more_of_a_part_is_more_of_the_whole() -> None:
    x = image(1, 9)
    mid = slice_region(x, (0, 0, 2, 2), (1, 1, 3, 3))
    more = extend_to(mid, (1, 1, 5, 4))
    assert print_graph(Graph((x,), (more,))).count("= slice") == 2
    assert "pad" not in print_graph(Graph((x,), (more,)))
    assert extend_to(mid, mid.shape) is mid
    beyond = extend_to(mid, (1, 1, 8, 3))  # 2 + 8 elements of 9
    assert beyond.op is ops.pad
    assert beyond.attrs["after"] == (0, 0, 5, 0)


def test_other_nodes_than_elementwise_ones_end_where_they_did() -> None:
    x = image()
    over = PaddedTiles(Graph((x,), (x,)), {})
    cut = over.crop(x, (1, 64, H - 1, H - 1))
    total = ops.sum_(cut, dims=[1], keepdim=True)
    assert over.sink_crop(total) is total
    assert over.sink_crop(ops.relu(cut)).shape == cut.shape


def test_what_has_several_results_ends_where_it_did() -> None:
    x = image()
    largest = ops.topk(ops.relu(conv(x)), k=2, dim=1, largest=True)
    assert "= topk %slice_1" in rewritten(x, ops.tuple_get(largest, index=0))


@pytest.mark.parametrize("tiles", [(2, 4), (4, 2)])
@pytest.mark.parametrize("side", [H, H + 2, 7, 13, 14])
def test_convolutions_in_tiles_of_several_sizes_may_read_one_image_and_each_other(
    side: Dim, tiles: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever reads farther: 13 results take 14 rows in tiles of 2, and 16 in tiles of 4."""
    x, rng = input_node("x", TensorType(f32, (1, 2, side, side))), np.random.default_rng(0)

    def padded(image: Node) -> Node:
        return ops.pad(image, before=[0, 0, 1, 1], after=[0, 0, 1, 1])

    def tiled(image: Node, m: int) -> Node:
        w = constant_node(rng.standard_normal((m, image.shape[1], 3, 3), np.float32))
        return ops.conv(image, w, stride=[1, 1], dilation=[1, 1])

    block = ops.relu(x)
    convs = [tiled(image, m) for image in (padded(block), block) for m in tiles]
    convs.append(tiled(padded(ops.relu(convs[0])), tiles[1]))
    graph = Graph((x,), (*convs, ops.add(ops.sum_(convs[0], dims=[1], keepdim=True), block)))
    monkeypatch.setattr(winograd, "best_tile", lambda n, *_, **__: n.shape[1] if n in convs else 0)
    new = Winograd().run(graph, Context())
    for h in (0,) if isinstance(side, int) else (4, 5, 7, 8, 13):
        before, after = (g.specialize({"h": h}) for g in (graph, new))
        image = rng.standard_normal(before.inputs[0].shape)
        wanted, got = (interpret(g, [torch.tensor(image)], dtype=torch.float64) for g in (before, after))
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


class Halves(nn.Module):
    """What follows a convolution in tiles, in another type: residual, convolution and pooling."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1, dtype=dtype)
        self.pool = nn.MaxPool2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.relu(self.first(x)).to(self.dtype)
        b = torch.sigmoid(self.second(a)) + a
        return a, b, self.pool(b), b.mean((2, 3))


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_images_of_halves_are_close_to_float64(dtype: torch.dtype, is_open: bool) -> None:
    torch.manual_seed(0)
    model, exact = Halves(dtype).eval(), Halves(torch.float64).double().eval()
    exact.load_state_dict(model.state_dict())
    compiled = compiler.compile(
        model,
        (torch.randn(1, 3, 13, 18),),
        dynamic_shapes=({2: torch.export.Dim("h", min=4, max=800)},) if is_open else None,
        options={"graph_passes": "decompose,canonicalize,fold,cse,winograd{max-time-ratio=9.0},fuse"},
    )
    assert "constant_linear" in compiled.print_ir("fused")
    for height in (4, 13, 16) if is_open else (13,):
        x = torch.randn(1, 3, height, 18)
        with torch.no_grad():
            wanted = exact(x.double())
        for got, truth in zip(compiled(x), wanted, strict=True):
            assert got.dtype == dtype
            tolerance = 4 * torch.finfo(dtype).eps
            torch.testing.assert_close(got.double(), truth, rtol=tolerance, atol=tolerance)


class Residual(nn.Module):
    """Blocks at three resolutions, one after a pooling that pads, one read by others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.inner = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.down = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.valid = nn.Conv2d(16, 16, 3)
        self.pool = nn.MaxPool2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.relu(self.first(x))
        b = torch.relu(self.inner[0](a) + a)
        c = self.pool(b)
        d = torch.sigmoid(self.inner[1](c)) * c
        e = self.down(b) + d
        return self.valid(b), e, torch.cat([e, d], 1).mean((2, 3)), d / (1 + d.amax(1, keepdim=True))


def test_open_images_of_every_size_are_close_to_float64() -> None:
    """Whatever the last tiles hold: 1 to 5 rows and columns more than whole ones, and images smaller than one."""
    torch.manual_seed(0)
    model = Residual().eval()
    h, w = torch.export.Dim("h", min=4, max=800), torch.export.Dim("w", min=4, max=800)
    pipeline = "decompose,canonicalize,fold,cse,winograd{max-time-ratio=9.0},fuse"
    compiled = compiler.compile(
        model,
        (torch.randn(1, 3, 20, 24),),
        dynamic_shapes=({2: h, 3: w},),
        options={"graph_passes": pipeline},
    )
    assert "constant_linear" in compiled.print_ir("fused")
    for shape in ((4, 4), (4, 7), (5, 8), (6, 9), (13, 18), (16, 16), (21, 35)):
        x = torch.randn(1, 3, *shape)
        with torch.no_grad():
            wanted = model.double()(x.double())
            model.float()
        for got, exact in zip(compiled(x), wanted, strict=True):
            torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=2e-5)
    assert len(compiled.compiled_graph.specializations) == 1


@pytest.mark.parametrize("side", [7, 14])
def test_known_sizes_are_close_to_float64(side: int) -> None:
    torch.manual_seed(0)
    model, x = Residual().eval(), torch.randn(1, 3, side, side)
    pipeline = "decompose,canonicalize,fold,cse,winograd{max-time-ratio=9.0},eliminate-padding,fuse"
    compiled = compiler.compile(model, (x,), options={"graph_passes": pipeline, "verify": True})
    with torch.no_grad():
        wanted = model.double()(x.double())
    for got, exact in zip(compiled(x), wanted, strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=2e-5)
