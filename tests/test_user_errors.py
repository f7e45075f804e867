"""Errors of calls and options: what is wrong, in a line, and what to do."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import compiler
from compiler.errors import ArgumentError, OptionError, PassError, TargetError, TilewrightError
from compiler.ir.tile.kernel import Kernel, map_ranges
from compiler.options import as_options
from compiler.passes.base import PASSES, Context, TilePass
from compiler.tools.cli import main
from tests.python_server import PythonServer

SAVE = """import sys, torch
@torch.library.custom_op("elsewhere::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor: return x * 2
twice.register_fake(torch.empty_like)
class Twice(torch.nn.Module):
    def forward(self, x): return twice(x)
torch.export.save(torch.export.export(Twice(), (torch.randn(3),)), sys.argv[1])
"""


def test_unknown_options_and_targets() -> None:
    with pytest.raises(OptionError, match="there is no option 'taget'; did you mean target"):
        as_options({"taget": "host"})
    with pytest.raises(OptionError, match="check must be one of False, True, 'strict', but is 'always'"):
        as_options({"check": "always"})
    with pytest.raises(
        TargetError, match=r"did you mean aarch64\?\ncode for host, .* runs here; for .* it can be printed"
    ):
        compiler.compile(nn.ReLU(), (torch.randn(3),), options={"target": "aarch65"})


def test_an_unknown_keyword_is_named() -> None:
    compiled = compiler.compile(nn.ReLU(), (torch.randn(3),))
    with pytest.raises(ArgumentError, match="missing a required argument: 'input'; there is no argument 'y'"):
        compiled(y=torch.randn(3))


def test_a_program_with_an_operator_of_another_library(tmp_path: Path, python: PythonServer) -> None:
    path = tmp_path / "twice.pt2"
    python.run("-c", SAVE, str(path)).check_returncode()
    with pytest.raises(
        TilewrightError, match=r"calls elsewhere\.twice\.default, which is not registered; .*--load MODULE"
    ):
        compiler.compile(path)


@dataclass(frozen=True)
class UnevenTiles(TilePass):
    """Tile each loop by a size that divides none."""

    name = "test-uneven-tiles"
    size: int = 7

    def run(self, ir: Kernel, context: Context) -> Kernel:
        return ir.with_body(map_ranges(ir.body, lambda r, _: r.with_(tile=self.size)))


def test_a_partial_tile_names_kernel_loop_and_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PASSES, "test-uneven-tiles", UnevenTiles)
    options = {"cache": "", "target": "x86-64-v3", "tile_passes": "vectorize,test-uneven-tiles{size=6},parallelize"}
    with pytest.raises(
        PassError, match=r"(?s)@relu_0 .* tile 6 is partial; `peel` must run .* tiles it, here "
    ) as raised:
        compiler.compile(nn.ReLU(), (torch.randn(30, 45),), options=options)
    assert "here test-uneven-tiles{size=6}\n" in str(raised.value)
    text = Path(raised.value.reproducer).read_text()
    assert "-p 'vectorize,test-uneven-tiles{size=6},parallelize'" in text
    assert "kernel @relu_0(" in text
    command = shlex.split(str(raised.value).partition("to repeat: ")[2])
    assert command[5:] == ["--load", __name__, "--target", "x86-64-v3", "--emit"]
    assert main(command[1:]) == 1
    assert "tile 6 is partial" in " ".join(capsys.readouterr().err.split())


def test_dynamic_kernels_are_tuned_for_their_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.export.Dim("rows", min=1, max=400)
    monkeypatch.setattr("compiler.runtime.kernel_timer.TIME_BUDGET", 1e-3)
    options = {"effort": "tune", "cache": ""}
    compiled = compiler.compile(nn.Linear(64, 48), (torch.randn(20, 64),), dynamic_shapes=({0: rows},), options=options)
    assert compiled.remarks.select("tune")
