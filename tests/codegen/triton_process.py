"""Processes for Triton: it reads the environment once, when it is imported."""

from __future__ import annotations

import os

import torch


def choose(interpret: str) -> None:
    """Decide how Triton runs in this process."""
    os.environ["TRITON_INTERPRET"] = interpret
    torch.set_num_threads(1)
