"""Gradients that have operators of their own, against PyTorch's in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import aot_function
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from compiler.frontend.calling_convention import GraphOutput
from compiler.frontend.decompositions import autograd_decompositions
from compiler.frontend.dynamo import FunctionalGraph, import_functional
from compiler.ir.interpret.graph import interpret


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "transposed convolution": (lambda a, w, b: F.conv_transpose2d(a, w, b, (2, 3), 1, (1, 2), 2, 1), (x(2, 4, 5, 4), x(4, 3, 3, 2), x(6))),
    "transposed, dilated": (lambda a, w: F.conv_transpose1d(a, w, None, 2, 1, 2, 1, 3), (x(2, 3, 6), x(3, 2, 3))),
    "one padding for all": (lambda a, w: F.conv3d(a, w, padding="valid"), (x(2, 3, 4, 5, 4), x(4, 3, 2, 3, 2))),
    "average pooling": (lambda a: F.avg_pool2d(a, 3, 2, 1), (x(2, 3, 7, 8),)),
    "average pooling, unbatched": (lambda a: F.avg_pool2d(a, 3, 2), (x(3, 7, 8),)),
    "average pooling, rounded up": (lambda a: F.avg_pool2d(a, (3, 2), 2, 1, ceil_mode=True), (x(2, 3, 8, 7),)),
    "average pooling, pad left out": (lambda a: F.avg_pool3d(a, 3, 2, 1, True, False), (x(1, 2, 6, 5, 7),)),
    "average pooling, divisor": (lambda a: F.avg_pool2d(a, 3, 2, ceil_mode=True, divisor_override=5), (x(2, 3, 8, 8),)),
    "adaptive, even": (lambda a: F.adaptive_avg_pool2d(a, (2, 4)), (x(2, 3, 6, 8),)),
    "adaptive, uneven": (lambda a: F.adaptive_avg_pool3d(a, (3, 2, 4)), (x(1, 2, 7, 5, 6),)),
    "no slope": (torch.sgn, (x(3, 4),)),
    "replicated edges": (lambda a: F.pad(a, (1, 2, 3, 0), "replicate"), (x(1, 2, 4, 5),)),
    "replicated edges, cut": (lambda a: F.pad(a, (-1, 2), "replicate"), (x(1, 2, 5),)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_gradient(case: str) -> None:
    function, arguments = CASES[case]

    def gradients(*args: Tensor) -> list[Tensor]:
        y = function(*args)
        weights = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
        return list(torch.autograd.grad(y, args, weights))

    traced = _traced(gradients, arguments)
    wide = tuple(a.double().requires_grad_() for a in arguments)
    torch.testing.assert_close(traced, gradients(*wide), rtol=1e-9, atol=1e-9)


def _traced(gradients: Callable[..., list[Tensor]], arguments: tuple[Tensor, ...]) -> list[Tensor]:
    """The gradients as the importer has them, interpreted in float64."""
    seen: list[FunctionalGraph] = []

    def compiler(module: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        with _disable_current_modes():
            seen.append(import_functional(module))
        return module

    with torch.no_grad():
        function = aot_function(_enabled(gradients), fw_compiler=compiler, decompositions=autograd_decompositions())
        function(*(a.clone().requires_grad_() for a in arguments))
    (imported,) = seen
    outputs = interpret(imported.graph, [f.feed(arguments) for f in imported.input_sources], dtype=torch.float64)
    return [r.view(outputs[r.index]) for r in imported.results if isinstance(r, GraphOutput)]


def _enabled(gradients: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    def run_enabled(*args: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            return gradients(*args)

    return run_enabled
