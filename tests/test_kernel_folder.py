"""A program for a GPU as a folder of Triton kernels, which runs without the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import compiler
from compiler.errors import TargetError
from compiler.tools.cli import main
from tests.triton_process import NEEDS_TRITON

pytestmark = NEEDS_TRITON

RUN = """
import torch, run
torch.save(run.run(*run.TENSORS["inputs"]), "results.pt")
assert "compiler" not in __import__("sys").modules
"""


class Most(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mode(1).values


@pytest.mark.parametrize(("target", "code"), [("sm90", {".ptx", ".cubin"}), ("gfx942", {".amdgcn", ".hsaco"})])
def test_the_folder_runs_without_the_compiler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, code: set[str]
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 8), nn.Softmax(1)).eval(), torch.randn(5, 12)
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=({0: Dim("n")},)), tmp_path / "model.pt2")
    folder = tmp_path / "folder"
    assert main(["compile", str(tmp_path / "model.pt2"), "--target", target, "-o", str(folder)]) == 0
    assert "registers" in capsys.readouterr().out
    kinds = {p.suffix for p in (folder / "kernels").iterdir()}
    assert kinds == {".py", *code}
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment.pop("PYTHONPATH", None)
    subprocess.run([sys.executable, "-c", RUN], cwd=folder, env=environment, check=True)
    (y,) = torch.load(folder / "results.pt")
    torch.testing.assert_close(y, model.double()(x.double()).float(), rtol=1e-5, atol=1e-6)


def test_programs_that_kernels_alone_do_not_make_are_refused(tmp_path: Path) -> None:
    options = {"target": "sm90", "fallback": "eager"}
    with pytest.raises(TargetError, match="eager_0 run in PyTorch"):
        compiler.compile(Most(), (torch.randn(3, 4),), options=options).save_kernels(tmp_path)
    with pytest.raises(TargetError, match="only a program for a GPU"):
        compiler.compile(nn.ReLU(), (torch.randn(3, 4),)).save_kernels(tmp_path)


def test_the_report_of_a_target_that_is_not_here() -> None:
    """Kernels are compiled and priced, but nothing is measured."""
    compiled = compiler.compile(nn.Softmax(1), (torch.randn(64, 512),), options={"target": "sm90"})
    report = compiled.report()
    (kernel,) = report.gpu_kernels
    assert report.profile is None
    assert kernel.resources is not None
    assert kernel.resources.registers > 0
    assert 0 < kernel.occupancy <= 1
    assert kernel.predicted >= kernel.roofline > 0
    heads = (column.header for column in report.gpu_table().columns)
    assert {"registers", "spills, bytes", "shared, KiB", "occupancy", "predicted", "roofline"} <= {*heads}
    assert "occupancy" in str(report)
    assert "occupancy" in report._repr_html_()
