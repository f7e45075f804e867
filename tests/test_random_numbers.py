"""Random numbers are those that eager PyTorch draws after the same seed, through both entry points."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compiler
from compiler.torch_backend import tilewright
from tests.frontend.frontend_kit import FunctionModule
from tests.triton_process import NEEDS_TRITON

IMAGE = torch.randn(3, 8, 6, 4, generator=torch.Generator().manual_seed(0))


def dropout(x: Tensor) -> Tensor:
    return F.dropout(x, 0.3)


def several_draws(x: Tensor) -> Tensor:
    """The first is asked for last."""
    first, second, third = torch.rand(4), torch.randn(4), torch.bernoulli(torch.full((4,), 0.5))
    return x + (third - second) / (first + 1)


def attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)


torch.manual_seed(0)
LAYER = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)
NETWORK = nn.LSTM(4, 5, num_layers=3, dropout=0.4, bidirectional=True, batch_first=True)


def layer(x: Tensor) -> Tensor:
    y: Tensor = LAYER(x[0])
    return y


def network(x: Tensor) -> Tensor:
    y: Tensor = NETWORK(x[0])[0]
    return y


CASES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "dropout": (dropout, IMAGE),
    "halves": (dropout, IMAGE.half()),
    "channels last": (dropout, IMAGE.to(memory_format=torch.channels_last)),
    "transposed": (dropout, IMAGE[0, 0].t()),
    "every second": (dropout, IMAGE.mT[:, :, ::2]),
    "expanded": (dropout, IMAGE[0, :, :1].expand(8, 5, 4)),
    "like a transposed tensor": (lambda x: torch.randn_like(x) + x, IMAGE[0, 0].t()),
    "like a computed one": (lambda x: torch.rand_like((x + 1).mT), IMAGE),
    "like every second": (torch.rand_like, IMAGE.mT[:, :, ::2]),
    "like an expanded one": (torch.randn_like, IMAGE[0, 0, 0].expand(3, 4)),
    "written": (lambda x: (x + 1).normal_() * 2, IMAGE.to(memory_format=torch.channels_last)),
    "numbers of columns": (lambda x: torch.multinomial(x.abs(), 2).float(), IMAGE[0, 0].t()),
    "all dropped": (lambda x: F.dropout(x, 1.0), IMAGE),
    "channels": (lambda x: F.dropout2d(x, 0.3), IMAGE),
    "alpha dropout": (lambda x: F.alpha_dropout(x, 0.3, training=True), IMAGE),
    "several draws": (several_draws, IMAGE),
    "attention": (attention, IMAGE),
    "layer": (layer, IMAGE),
    "recurrent network": (network, IMAGE),
}


def test_sizes_that_vary_are_drawn_in_memory_order() -> None:
    torch._dynamo.reset()
    fast = torch.compile(torch.rand_like, backend=tilewright, dynamic=True, options={"fallback": "error"})
    for x in (IMAGE[0, 0].t(), IMAGE[0, 1:4].permute(2, 0, 1)[1]):
        torch.manual_seed(1)
        want = torch.rand_like(x)
        torch.manual_seed(1)
        torch.testing.assert_close(fast(x), want)


@torch.no_grad()
def check_draws(case: str, target: str) -> None:
    """Compare two calls after the same seed with eager PyTorch, and a third one, which must draw other numbers."""
    torch._dynamo.reset()
    program, x = CASES[case]
    options = {"target": target, "fallback": "error"}
    for fast in (
        compiler.compile(FunctionModule(program), (x,), options=options),
        torch.compile(program, backend=tilewright, fullgraph=True, options=options),
    ):
        found = []
        for run in (program, fast, fast):
            torch.manual_seed(1)
            found.append(run(x))
        torch.testing.assert_close(found[1], found[0])
        assert torch.equal(found[1], found[2])
        assert not torch.equal(fast(x), found[0]) or case == "all dropped"


@pytest.mark.parametrize("case", CASES)
def test_a_seed_gives_the_numbers_of_eager_pytorch(case: str) -> None:
    check_draws(case, "host")


@NEEDS_TRITON
@pytest.mark.parametrize("case", ["dropout", "halves", "channels last", "several draws", "attention"])
def test_programs_for_a_gpu_draw_them_too(interpreter: ProcessPoolExecutor, case: str) -> None:
    """Kernels are interpreted, and calls into PyTorch between them draw from the generator of the tensors' device."""
    interpreter.submit(check_draws, case, "sm90").result()
