"""Models whose pages tests look at, and the data in a page."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A residual block whose lines are in this file."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + torch.relu(self.linear(y))


class Net(nn.Module):
    """Two blocks and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(32) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return torch.softmax(x * 2.0, dim=-1)


def page_data(file: Path) -> dict[str, Any]:
    """Return the data that a saved page holds."""
    encoded = re.search(r'id="data">([^<]*)</script>', file.read_text(encoding="utf-8"))
    assert encoded is not None
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(encoded[1])))["page"]
    return data


def apply_delta(old: Sequence[str], delta: Iterable[Sequence[Any]]) -> list[str]:
    """Return the new text of a delta."""
    new, position = list[str](), 0
    for start, removed, added in delta:
        new += [*old[position:start], *added]
        position = start + removed
    return [*new, *old[position:]]


def final_text(steps: dict[str, Any]) -> str:
    """Return the text after all steps."""
    text = steps["text"]
    for step in steps["steps"]:
        text = apply_delta(text, step["delta"])
    return "\n".join(text)
