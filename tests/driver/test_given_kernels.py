"""Kernels and schedules that the user edited take the place of what passes made, if they compute the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import compiler
from compiler import PassError, TilewrightError
from compiler.codegen.backend import GRAPH_PASSES
from compiler.errors import TargetError
from compiler.ir.text.tile_printer import print_kernel, print_program
from compiler.ir.tile.kernel import Kernel, Reduce, map_ranges
from compiler.passes.schedule.directives import Unroll


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


def test_printed_schedules_make_the_same_kernels(compiled: compiler.CompiledModule, tmp_path: Path) -> None:
    file = tmp_path / "schedules.txt"
    file.write_text(compiled.print_ir("schedules"))
    again = compile_with(compiled, dict.fromkeys(compiled.stages.scheduled.kernels, file))
    assert again.stages.scheduled.kernels == compiled.stages.scheduled.kernels
    assert again.print_ir("schedules") == compiled.print_ir("schedules")
    assert len(again.remarks.select("schedules", "applied")) == len(compiled.stages.scheduled.kernels)
    x = torch.randn(6, 32)
    assert torch.equal(again(x), compiled(x))


def test_an_edited_schedule(compiled: compiler.CompiledModule) -> None:
    name = next(iter(compiled.stages.scheduled.kernels))
    text = f"schedule @{name} {{\n  vectorize %i1 by 8\n  tile %i0 by 3\n  unroll %r0 by 2\n  serial\n}}"
    edited = compiler.compile(compiled._program, compiled.example_inputs[0], options={"schedules": {name: text}})
    kernel = print_kernel(edited.stages.scheduled.kernels[name])
    assert all(part in kernel for part in ("tile 3 ", "lanes 8", "unroll 2"))
    assert "parallel" not in kernel
    assert text in edited.print_ir("schedules").replace("\n  expand-math", "")
    x = torch.randn(6, 32)
    torch.testing.assert_close(edited(x), compiled(x), rtol=1e-4, atol=1e-5)


def test_a_schedule_may_leave_out_dot_products() -> None:
    """Such a kernel takes elements one by one that the passes' own takes in pairs."""
    model, x = nn.Linear(64, 48).bfloat16(), torch.randn(8, 64).bfloat16()
    scheduled = compiler.compile(model, (x,)).stages.scheduled
    if "bf16x2" not in print_program(scheduled):
        pytest.skip("NOT RUN: this machine does not multiply pairs of bf16")
    (name,) = scheduled.kernels
    given = compiler.compile(model, (x,), options={"schedules": {name: f"schedule @{name} {{\n}}"}})
    assert "bf16x2" not in print_program(given.stages.scheduled)
    assert torch.allclose(given(x), model(x), rtol=0.02, atol=0.02)


def test_a_kernel_that_writes_inside_another_buffer() -> None:
    """The comparison lays its result out by itself."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv1d(nn.functional.pad(torch.exp(x), (1, 1)), weights)

    weights, x = torch.ones(32, 32, 3), torch.randn(1, 32, 128)
    given = {"exp_0": "schedule @exp_0 {\n}"}
    passes = f"{GRAPH_PASSES},-eliminate-padding"  # some machines would check the edges
    compiled = compiler.compile(Function(model), (x,), options={"schedules": given, "graph_passes": passes})
    assert "+1:1}" in print_kernel(compiled.stages.scheduled.kernels["exp_0"])
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def test_illegal_schedules_are_refused(compiled: compiler.CompiledModule) -> None:
    first, second = compiled.stages.scheduled.kernels
    cases = {
        f"schedule @{first} {{\n  tile %q by 4\n}}": "there is no loop %q; loops are %i0, %i1, %r0",
        f"schedule @{second} {{\n}}": f"this is a schedule of @{second}, not of @{first}",
    }
    for text, reason in cases.items():
        with pytest.raises(PassError, match=reason):
            compiler.compile(compiled._program, compiled.example_inputs[0], options={"schedules": {first: text}})


def test_schedules_for_another_machine_are_refused(compiled: compiler.CompiledModule) -> None:
    options = {"target": "aarch64", "schedules": {"k": "schedule @k {\n}"}}
    with pytest.raises(TargetError, match="kernels for aarch64 are not checked against the originals"):
        compiler.compile(compiled._program, compiled.example_inputs[0], options=options)


def test_a_schedule_that_changes_results_is_refused(
    compiled: compiler.CompiledModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a directive wrong, the comparison on random inputs would find it."""
    name = next(iter(compiled.stages.scheduled.kernels))
    monkeypatch.setattr(Unroll, "apply", lambda self, ir, context: halved(ir))
    text = f"schedule @{name} {{\n  unroll %r0 by 2\n}}"
    with pytest.raises(PassError, match=f"what is given is no schedule of @{name}: .* elements differ"):
        compiler.compile(compiled._program, compiled.example_inputs[0], options={"schedules": {name: text}})


def halved(kernel: Kernel) -> Kernel:
    """The kernel with reductions over the first half of their range."""
    return kernel.with_body(map_ranges(kernel.body, lambda r, s: r.with_(hi=r.hi // 2) if isinstance(s, Reduce) else r))


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
