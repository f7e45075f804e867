"""Pages that several tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from compiler.api import explore
from tests.report.explore.pages import Net


@pytest.fixture(scope="session")
def compared_ways(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model compiled for this machine, with a kernel for each op, and for a GPU."""
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("page") / "page.html"
    ways = {"unfused": "unfused", "gpu": {"target": "sm90"}}
    return explore(Net().eval(), file, (torch.randn(8, 32),), against=ways, repeats=2)
