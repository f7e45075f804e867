"""Images of open height and width: padding, pooling and resizing, in one compilation for every size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import compiler
from compiler.ir.tile.kernel import loads
from tests.frontend.frontend_kit import FunctionModule

FEW = {"cache": ""}
SIDES = {2: Dim.AUTO, 3: Dim.AUTO}


def test_images_of_open_height_and_width_are_padded_in_place() -> None:
    """What a convolution pads is written into the middle of the padded image: only its border is left to fill."""
    model = nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8)).eval()
    sides = {2: Dim("h", min=2, max=64), 3: Dim("w", min=2, max=64)}
    compiled = compiler.compile(model, (torch.randn(1, 4, 9, 7),), dynamic_shapes=(sides,))
    for shape in ((2, 2), (9, 7), (16, 33)):
        x = torch.randn(1, 4, *shape)
        torch.testing.assert_close(compiled(x), model(x))
    (made,) = compiled.compiled_graph.specializations
    (pad,) = (k for name, k in made.default_variant.stages.lowered.kernels.items() if name.startswith("pad"))
    assert not list(loads(pad.body))


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.MaxPool2d(2, 3, 1, ceil_mode=True),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True),
        nn.AdaptiveAvgPool2d((3, 2)),
        nn.AdaptiveMaxPool2d(1),
        nn.AdaptiveMaxPool2d((4, 3)),
    ],
    ids=str,
)
def test_pooling_of_open_images(pool: nn.Module) -> None:
    """Rounded up, where the last window may begin in the padding, and to a number of results."""
    compiled = compiler.compile(
        pool, (torch.randn(1, 2, 9, 12),), dynamic_shapes=({2: Dim.AUTO, 3: Dim.AUTO},), options=FEW
    )
    for side in range(4, 12):
        x = torch.randn(1, 2, side, side + 3)
        torch.testing.assert_close(compiled(x), pool(x.double()).float())
    assert len(compiled.compiled_graph.specializations) == 1


def test_places_of_maxima_in_open_images() -> None:
    """They are numbers in the flattened image, so that they follow its width."""
    pool, dims = nn.MaxPool2d(3, 2, 1, return_indices=True), {2: Dim.AUTO, 3: Dim.AUTO}
    compiled = compiler.compile(pool, (torch.randn(1, 2, 9, 12),), dynamic_shapes=(dims,), options=FEW)
    for side in (4, 7, 12):
        x = torch.randn(1, 2, side, side + 3)
        torch.testing.assert_close(compiled(x), pool(x))


def test_adaptive_maxima_of_open_images_and_their_places() -> None:
    pool = nn.AdaptiveMaxPool2d((4, 3), return_indices=True)
    compiled = compiler.compile(pool, (torch.randn(1, 2, 9, 12),), dynamic_shapes=(SIDES,), options=FEW)
    for side in (2, 4, 7, 12):
        x = torch.randn(1, 2, side, side + 3)
        torch.testing.assert_close(compiled(x), pool(x))


def test_averages_as_many_as_another_image_has() -> None:
    pool = FunctionModule(lambda x, y: F.adaptive_avg_pool2d(x, y.shape[2:]))
    given = (torch.randn(1, 2, 9, 12), torch.randn(1, 2, 4, 5))
    compiled = compiler.compile(pool, given, dynamic_shapes=((SIDES, SIDES),), options=FEW)
    for small in ((2, 3), (4, 4), (7, 9)):
        x, y = torch.randn(1, 2, 8, 11), torch.randn(1, 2, *small)
        torch.testing.assert_close(compiled(x, y), pool(x, y))


RESIZED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nearest": lambda x: F.interpolate(x, (8, 9)),
    "nearest, by 1.7": lambda x: F.interpolate(x, scale_factor=1.7),
    "nearest, by 1.7, step from sizes": lambda x: F.interpolate(x, scale_factor=1.7, recompute_scale_factor=True),
    "nearest exact": lambda x: F.interpolate(x, (8, 9), mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, (8, 9), mode="bilinear"),
    "bilinear, by 0.6": lambda x: F.interpolate(x, scale_factor=0.6, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x, (8, 1), mode="bilinear", align_corners=True),
    "bilinear, corners, by 3": lambda x: F.interpolate(x, scale_factor=3, mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, (8, 9), mode="bicubic"),
    "bicubic, by 2": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "halved": lambda x: F.interpolate(x, (x.shape[2] // 2, x.shape[3] // 2), mode="bilinear"),
}


@pytest.mark.parametrize("way", ["export", "torch.compile"])
@pytest.mark.parametrize("case", RESIZED)
def test_resizing_of_open_images(case: str, way: str) -> None:
    """PyTorch computes places and weights in float32 itself, so that it is the measure."""
    resize = RESIZED[case]
    if way == "export":
        compiled = compiler.compile(
            FunctionModule(resize), (torch.randn(1, 2, 9, 12),), dynamic_shapes=((SIDES,),), options=FEW
        )
    else:
        torch._dynamo.reset()
        compiled = torch.compile(resize, backend="tilewright", dynamic=True, options=FEW)
    for side in (4, 5, 8, 10):
        x = torch.randn(1, 2, side, side + 3)
        torch.testing.assert_close(compiled(x), resize(x), rtol=1e-5, atol=1e-5)
    if way == "export":
        assert len(compiled.compiled_graph.specializations) == 1


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_resizing_to_the_size_of_another_image(mode: str) -> None:
    """As the upper path of a network of skip connections does."""
    resize = FunctionModule(lambda x, y: F.interpolate(x, y.shape[2:], mode=mode) + y)
    given = (torch.randn(1, 2, 5, 6), torch.randn(1, 2, 11, 13))
    compiled = compiler.compile(resize, given, dynamic_shapes=((SIDES, SIDES),), options=FEW)
    for side in (3, 4, 8):
        x, y = torch.randn(1, 2, side, side + 3), torch.randn(1, 2, 2 * side + 1, side + 1)
        torch.testing.assert_close(compiled(x, y), resize(x, y), rtol=1e-5, atol=1e-5)


CUT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "constant": lambda x: F.pad(x, (-1, 2, 1, -2)),
    "reflect": lambda x: F.pad(x, (-1, 2, 1, -1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (-1, 2, 1, -2), mode="replicate"),
    "circular": lambda x: F.pad(x, (-1, 2, 1, -1), mode="circular"),
    "diagonal": lambda x: torch.diagonal(x, 1, 2, 3),
    "diagonal below": lambda x: torch.diagonal(x, -2, 3, 2),
}


@pytest.mark.parametrize("case", CUT)
def test_cutting_open_images(case: str) -> None:
    cut = CUT[case]
    compiled = compiler.compile(
        FunctionModule(cut), (torch.randn(1, 2, 9, 12),), dynamic_shapes=((SIDES,),), options=FEW
    )
    for shape in ((5, 8), (9, 7), (6, 6)):
        x = torch.randn(1, 2, *shape)
        torch.testing.assert_close(compiled(x), cut(x), rtol=0, atol=0)


TRAINED: dict[str, Callable[[], nn.Module]] = {
    "convolution, by 2": lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1),
    "convolution, by 3": lambda: nn.Conv2d(2, 4, (2, 5), stride=3),
    "transposed convolution": lambda: nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1),
    "maxima": lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "averages": lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True),
    "averages of what is inside": lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "averages of uneven windows": lambda: nn.AdaptiveAvgPool2d((3, 2)),
    "edges repeated": lambda: nn.ReplicationPad2d((1, 2, 0, 3)),
    "edges reflected": lambda: nn.ReflectionPad2d((1, 2, 0, 3)),
    "between": lambda: nn.Upsample(scale_factor=1.7, mode="bilinear"),
}


@pytest.mark.parametrize("case", TRAINED)
def test_gradients_of_open_images(case: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = TRAINED[case]()
    compiled = torch.compile(layer, backend="tilewright", dynamic=True, options=FEW)
    for shape in ((9, 12), (8, 11), (7, 16)):
        x = torch.randn(2, 2, *shape, requires_grad=True)
        found, truth = (gradients(f, x) for f in (compiled, layer))
        torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-5)


def gradients(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What `f` gives, and the gradient of a weighted sum of it."""
    y = f(x)
    weights = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
    return y.detach(), *torch.autograd.grad(y, [x], weights)
