"""Inductor's kernels for a GPU that is not here."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import torch
import torch.utils._triton
from torch import nn

from benchmarks.offline_inductor import compile_with_inductor
from compiler.cost.machine import GPU
from tests.triton_process import NEEDS_TRITON

pytestmark = NEEDS_TRITON


class Ones(nn.Module):
    """Adds a tensor that an operator makes on a device which is no named argument."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(8).to("cpu", torch.float32)


def compiled_in_turn() -> list[tuple[int, int]]:
    """Count binaries and library calls of three models, one after the other in a process that has looked for a device."""
    torch.utils._triton.has_triton()
    models = nn.ReLU(), nn.Linear(8, 8), Ones()
    programs = [compile_with_inductor(m, (torch.randn(4, 8),), GPU()) for m in models]
    return [(sum(map(bool, p.binaries)), p.library_calls) for p in programs]


def test_models_are_compiled_one_after_the_other(offline: ProcessPoolExecutor) -> None:
    (kernels, calls), (_, others), (added, _) = offline.submit(compiled_in_turn).result()
    assert kernels > 0
    assert added > 0
    assert (calls, others) == (0, 1)
