"""Comparisons: ways to compile one model beside PyTorch, their errors and their work."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import compiler
from compiler import Options
from compiler.report.measure import NumericalError, Workload, eager_workload, float64_reference, numerical_error
from compiler.report.render import render_plain
from compiler.runtime.timing import Timing
from compiler.tools.comparison import Comparison, ComparisonRow
from tests.test_api import Gate, Norm


def test_fused_against_unfused() -> None:
    torch.manual_seed(0)
    comparison = compiler.compare(Norm(), (torch.randn(4, 16),), seconds=0.01)
    assert [r.name for r in comparison.rows] == ["PyTorch", "unfused", "fused"]
    assert comparison["fused"].workload.kernels < comparison["unfused"].workload.kernels
    assert comparison["fused"].workload.bytes < comparison["unfused"].workload.bytes
    for row in comparison.rows:
        assert 0 < row.error.relative < 1e-6
    assert "fused" in str(comparison)


def test_comparing_pipelines_and_options() -> None:
    short = Options(graph_passes="decompose,fuse{enabled=false}")
    comparison = compiler.compare(Gate(), (torch.randn(8),), ways=("decompose,fuse", short), seconds=0.01)
    assert [r.workload.kernels for r in comparison.rows] == [2, 1, 2]


def test_ways_that_differ_in_any_option_have_rows_of_their_own() -> None:
    ways = [{"tile_passes": f"expand-math,{p}"} for p in ("vectorize", "parallelize", "vectorize")]
    rows = compiler.compare(Gate(), (torch.randn(8),), ways=ways, seconds=0.01).rows
    names = ("vectorize", "parallelize", "vectorize (2)")
    assert [r.name for r in rows[1:]] == [f"tile_passes=expand-math,{name}" for name in names]
    named = {"plain": "fused", "bf16": {"matmul_precision": "bf16"}, "old": Options(target="x86-64")}
    comparison = compiler.compare(Gate(), (torch.randn(8),), ways=named, seconds=0.01)
    assert [r.name for r in comparison.rows] == ["PyTorch", *named]
    for row in comparison.rows:
        assert 0 < row.timing.minimum <= row.seconds
        assert len(row.timing.seconds) >= 5
    page = comparison._repr_html_()
    assert page.count("<tr>") == 5
    assert "bf16" in page


def test_reference_is_float64_and_changes_nothing() -> None:
    class Running(nn.BatchNorm1d):
        pass

    model, x = Running(3), torch.randn(8, 3)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    (truth,) = float64_reference(torch.export.export(model, (x,)), (x,))
    assert truth.dtype == torch.float64
    assert torch.allclose(
        truth, (x.double() - x.double().mean(0)) / (x.double().var(0, unbiased=False) + 1e-5).sqrt(), atol=1e-12
    )
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_error_of_known_differences() -> None:
    truth = torch.tensor([1.0, 4.0], dtype=torch.float64)
    found = numerical_error([torch.tensor([1.0 + 2**-23, 4.0])], [truth])
    assert found.relative == pytest.approx(2**-23 / 4)
    assert found.ulps == pytest.approx(0.5)
    assert numerical_error([torch.tensor([float("nan"), 4.0])], [truth]).relative == float("inf")
    assert numerical_error([torch.tensor([1.0])], [truth]).relative == float("inf")


def test_work_of_eager_mode() -> None:
    x, w, table, at = torch.randn(4, 8), torch.randn(8, 16), torch.randn(100, 8), torch.tensor([3, 5])
    assert eager_workload(lambda: x @ w) == Workload(1, 2 * 4 * 8 * 16, 4 * (32 + 128 + 64))
    assert eager_workload(lambda: x.T.reshape(2, 16) + 1) == Workload(2, 64, 4 * 32 * 4)  # a copy and a sum
    assert eager_workload(lambda: x.view(32)[None]).kernels == 0
    assert eager_workload(lambda: table[at]).bytes == 2 * (2 * 8 * 4) + 2 * 8


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    def row(name: str, seconds: float) -> ComparisonRow:
        work = Workload(429, 3_608_100_000, 292_500_000)
        return ComparisonRow(name, {"error": NumericalError(6.3e-7, 36)}, work, Timing((seconds,) * 3), 0.91)

    text = render_plain(Comparison("Model", (row("PyTorch", 0.0271), row("unfused", 0.0119))).table(), 80)
    assert "…" not in text
    assert "27.100" in text
    assert "6.3e-07" in text
