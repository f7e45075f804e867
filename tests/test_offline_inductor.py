"""Inductor's kernels for a GPU that is not here."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import torch
from torch import nn

from benchmarks.offline_inductor import compile_with_inductor
from compiler.cost.machine import GPU
from tests.triton_process import NEEDS_TRITON

pytestmark = NEEDS_TRITON


def compiled_twice() -> list[tuple[int, int]]:
    """Count binaries and library calls of two models, one after the other in a process."""
    models = nn.ReLU(), nn.Linear(8, 8)
    programs = [compile_with_inductor(m, (torch.randn(4, 8),), GPU()) for m in models]
    return [(sum(map(bool, p.binaries)), p.library_calls) for p in programs]


def test_models_are_compiled_one_after_the_other(offline: ProcessPoolExecutor) -> None:
    (kernels, calls), (_, others) = offline.submit(compiled_twice).result()
    assert kernels > 0
    assert (calls, others) == (0, 1)
