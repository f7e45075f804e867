"""Tests of Triton, an extra that may be missing, and processes for it: it reads the environment once, when it is imported."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context

import pytest
import torch

NEEDS_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is an extra: install tilewright[gpu]")


def triton_process(interpret: bool) -> ProcessPoolExecutor:
    """A process that has yet to import Triton, which then interprets kernels or compiles them."""
    return ProcessPoolExecutor(1, get_context("spawn"), choose, (interpret,))


def choose(interpret: bool) -> None:
    os.environ["TRITON_INTERPRET"] = str(int(interpret))
    torch.set_num_threads(1)
