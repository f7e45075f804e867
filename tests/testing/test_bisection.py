"""bisect: the rewrite that breaks a program is named, and the program reduced around it.

The other planted faults are those of `python -m tests.tools.planted_faults`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.codegen.llvm.targets import host_target
from compiler.errors import PassError
from compiler.ir.text.ir_text import parse_ir, print_ir
from compiler.options import Options
from compiler.passes.graph.fold_scale import FoldScale
from compiler.passes.pipeline_text import parse_pipeline, print_pipeline
from compiler.testing import bisect
from compiler.testing.bisection import subject
from compiler.testing.bisection.search import apply_edits, first_bad, pipeline_edits
from compiler.testing.bisection.subject import Subject, subject_with
from compiler.testing.fuzz.reduce_tile import kernel_simplifications
from compiler.tools.cli import main as tilewright
from tests.tools.planted_faults import FAULTS, MAP, SOFTMAX, find, is_named

PLANTED = {f.name: f for f in FAULTS}
PLAIN = Options(cache="")


@pytest.mark.parametrize("last", [1, 2, 7, 100])
def test_the_first_bad_number_takes_a_logarithm_of_tries(last: int) -> None:
    tried: list[int] = []

    def is_bad(n: int) -> bool:
        tried.append(n)
        return n >= last

    assert first_bad(100, is_bad) == last
    assert len(tried) <= 7


def test_a_right_program_has_nothing_to_find() -> None:
    assert bisect(parse_ir(SOFTMAX), options=PLAIN) is None
    assert bisect(parse_ir(MAP), options=PLAIN) is None


@pytest.mark.parametrize("name", ["canonicalize", "fold-scale", "fuse", "update-in-place", "vectorize", "expand-math"])
def test_planted_faults_are_named_and_reduced(name: str) -> None:
    fault = PLANTED[name]
    found = find(fault)
    assert is_named(fault, found), str(found)
    assert found is not None
    assert 0 < found.number <= found.total
    assert found.compilations <= 12
    with fault.plant():
        again = parse_ir(found.reduced)
    assert isinstance(fault.ir, str)
    assert len(print_ir(again).splitlines()) <= len(print_ir(parse_ir(fault.ir)).splitlines())


def test_files_repeat_the_fault(tmp_path: Path) -> None:
    fault = PLANTED["fold-scale"]
    assert isinstance(fault.ir, str)
    with fault.plant():
        found = bisect(parse_ir(fault.ir), options=PLAIN, folder=tmp_path)
        assert found is not None
        with pytest.raises(PassError, match="changed the result"):
            runpy.run_path(found.script)["test_reduced"]()
        assert tilewright([*found.command.split()[1:]]) == 1
    runpy.run_path(found.script)["test_reduced"]()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(6, 6, bias=False), nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x) * self.scale)


def test_the_user_s_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, file = Scaled().eval(), tmp_path / "scaled.pt2"
    torch.export.save(torch.export.export(model, (torch.randn(3, 6),)), file)
    with PLANTED["fold-scale"].plant():
        assert tilewright(["bisect", str(file), "--json", "--no-reduce"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pass_name"] == "fold-scale"
    assert found["line"].endswith(f"{Path(__file__).name}:{Scaled.forward.__code__.co_firstlineno + 1}")


@pytest.mark.parametrize("limits", [{}, {"min": 8, "max": 64}, {"min": 8}])
def test_models_with_dynamic_sizes_are_bisected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limits: dict[str, int]
) -> None:
    file, sizes = tmp_path / "scaled.pt2", {"x": {0: torch.export.Dim("rows", **limits)}}
    torch.export.save(torch.export.export(Scaled().eval(), (torch.randn(9, 6),), dynamic_shapes=sizes), file)
    assert tilewright(["bisect", str(file)]) == 0
    assert "every result is right" in capsys.readouterr().out
    with PLANTED["fold-scale"].plant():
        assert tilewright(["bisect", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pass_name"] == "fold-scale"
    assert "test_bisection" in found["line"]
    with PLANTED["fold-scale"].plant():
        assert bisect(parse_ir(found["reduced"]), options=PLAIN, passes=found["passes"], reduce=False) is not None


def test_the_sizes_of_a_graph_stay_in_their_range() -> None:
    text = "graph(size n in 64..129 hint 64, %x: f32[n, 8], %v: f32[8]) { %a = mul %x, %v  return %a }"
    assert subject_with(parse_ir(text), (), host_target()).sizes == {"n": 64}
    given = [np.ones((70, 8), np.float32), np.ones(8, np.float32)]
    assert subject_with(parse_ir(text), (), host_target(), given).sizes == {"n": 70}


def test_a_crash_is_found_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Subject.native_kernel

    def crash(self: Subject, kernel: Any) -> Any:
        if "lanes" in print_ir(kernel):
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGSEGV)
        return compiled(self, kernel)

    monkeypatch.setattr(Subject, "native_kernel", crash)
    found = bisect(parse_ir(MAP), options=PLAIN, isolated=True, reduce=False)
    assert found is not None
    assert (found.pass_name, "SIGSEGV" in found.problem) == ("vectorize", True)


def slow_calls(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[str], float]) -> Any:
    """A measure that reads the scheduled IR instead of a clock."""
    monkeypatch.setattr(Subject, "executable", lambda self, program: lambda tensors: print_ir(program))
    return lambda calls: [seconds(call()) for call in calls]


def test_what_makes_a_program_slow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """graph(%x: f32[8, 8], %v: f32[8, 8]) {
      %a = matmul %x, %v  %b = exp %a  %c = matmul %b, %v  %d = neg %c  return %d }"""
    measure = slow_calls(monkeypatch, lambda ir: 2.0 if "-%acc" in ir else 1.0)  # as soon as `neg` is fused
    found = bisect(
        parse_ir(text),
        options=PLAIN,
        slower_than="default,-fuse,+fuse{enabled=false}@before:lower-async-copies",
        measure=measure,
        reduce=False,
    )
    assert found is not None
    assert (found.pass_name, found.message, found.node) == ("fuse", "fused into the kernel of neg", "c")
    assert found.problem == "2000.00 ms instead of 1000.00 ms"
    assert bisect(parse_ir(text), options=PLAIN, slower_than="default", measure=measure) is None


def test_a_missing_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "graph(%x: f32[8, 64]) { %y = exp %x  return %y }"
    measure = slow_calls(monkeypatch, lambda ir: 1.0 if "lanes" in ir else 2.0)
    given = {"options": PLAIN, "passes": "default,-vectorize,-prefetch", "slower_than": "default", "measure": measure}
    found = bisect(parse_ir(text), reduce=False, **given)
    assert found is not None
    assert (found.pass_name, found.stage) == ("vectorize", "without vectorize")


def test_edits_lead_from_one_pipeline_to_another() -> None:
    old, new = (parse_pipeline(p) for p in ("dce,cse,fold,fuse", "cse,canonicalize,fold,winograd,fuse{max-nodes=3}"))
    edits = list(pipeline_edits(old, new))
    assert print_pipeline(apply_edits(old, edits[:1])) == "cse,fold,fuse"
    assert print_pipeline(apply_edits(old, edits)) == print_pipeline(new)


def test_kernels_become_smaller() -> None:
    text = "kernel @k(in %x: f32[100], in %z: f32[3], out %y: f32[100]) { for %i in 0..100 { %a = %x[%i] store 1.0, %y[%i] } }"
    kernels = [print_ir(k) for k in kernel_simplifications(parse_ir(text))]  # type: ignore[arg-type]  # a kernel
    assert any("%a" not in k for k in kernels)
    assert any("0..50" in k and "f32[50]" in k for k in kernels)
    assert any("%z" not in k for k in kernels)


SMALL = "graph(%x: f32[4]) { %a = neg %x  %y = exp %a  return %y }"


def test_a_pass_that_fails_before_it_asks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FoldScale, "run", lambda self, graph, context: graph.outputs[9])
    found = bisect(parse_ir(SMALL), options=PLAIN)
    assert found is not None
    assert (found.pass_name, found.message, found.stage) == ("fold-scale", "", "the pass, without any rewrite")
    assert "IndexError" in str(found)


def test_stages_without_rewrites_are_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subject, "executable", lambda self, program: lambda tensors: [torch.zeros(4)])
    generated = bisect(parse_ir(SMALL), options=PLAIN)
    assert generated is not None
    assert (generated.stage, generated.pass_name) == ("code generation", "")
    lowered = subject.lower
    spoiled = lambda *a: parse_ir(print_ir(lowered(*a)).replace("exp(", "sin("))  # noqa: E731
    monkeypatch.setattr(subject, "lower", spoiled)
    found = bisect(parse_ir(SMALL), options=PLAIN)
    assert found is not None
    assert (found.stage, found.pass_name) == ("lowering", "")


def test_a_pass_that_crashes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: FoldScale, graph: Any, context: Any) -> Any:
        if context.may_apply(self, "goes wrong"):
            raise ZeroDivisionError
        return graph

    monkeypatch.setattr(FoldScale, "run", run)
    found = bisect(parse_ir(SMALL), options=PLAIN)
    assert found is not None
    assert (found.pass_name, found.message) == ("fold-scale", "goes wrong")
    assert "ZeroDivisionError" in found.problem
    assert replace(found, reduced="", passes="").as_dict()["number"] == found.number
