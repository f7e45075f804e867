"""Kernels that the user edited take the place of scheduled ones, if they compute the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import compiler
from compiler import PassError, TilewrightError
from compiler.ir.text.tile_printer import print_kernel


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 48), nn.Linear(48, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.exp(self.a(x)))


@pytest.fixture(scope="module")
def compiled() -> compiler.CompiledModule:
    torch.manual_seed(0)
    return compiler.compile(Model(), (torch.randn(6, 32),))


def compile_with(model: compiler.CompiledModule, files: dict[str, Path]) -> compiler.CompiledModule:
    options = {"schedules": {name: str(file) for name, file in files.items()}}
    return compiler.compile(model._program, model.example_inputs[0], options=options)


@pytest.mark.parametrize("stage", ["scheduled", "lowered"])
def test_a_kernel_with_another_schedule(compiled: compiler.CompiledModule, tmp_path: Path, stage: str) -> None:
    program = getattr(compiled.stages, stage)
    name = next(iter(program.kernels))
    file = tmp_path / "edited.ir"
    file.write_text(print_kernel(program.kernels[name]).replace("lanes 16", "lanes 8"))
    edited = compile_with(compiled, {name: file})
    text = print_kernel(edited.stages.scheduled.kernels[name])
    assert "lanes 16" not in text
    assert edited.remarks.select("schedules", "applied")
    x = torch.randn(6, 32)
    torch.testing.assert_close(edited(x), compiled(x), rtol=1e-4, atol=1e-5)


def test_other_kernels_are_refused(compiled: compiler.CompiledModule, tmp_path: Path) -> None:
    first, second = compiled.stages.scheduled.kernels.items()
    file = tmp_path / "k.ir"
    cases = {
        print_kernel(second[1]): f"called @{second[0]}",
        print_kernel(second[1]).replace(second[0], first[0]): "a parameter is",
        print_kernel(first[1]).replace("reduce add", "reduce max"): "elements differ",
    }
    for text, reason in cases.items():
        file.write_text(text)
        with pytest.raises(PassError, match=reason):
            compile_with(compiled, {first[0]: file})
    with pytest.raises(TilewrightError, match=f"no kernel @nothing; kernels are {first[0]}"):
        compile_with(compiled, {"nothing": file})
