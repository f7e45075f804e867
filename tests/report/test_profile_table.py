"""Profiles: the call beside its steps, as table, JSON, trace and HTML."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import compiler
from compiler.ir.graph.graph import Graph
from compiler.report import notebook
from compiler.report.profile import Profile
from compiler.report.trace import trace_events
from compiler.runtime.timing import Timing


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mode(torch.relu(self.linear(x)))[0]


@pytest.fixture(scope="module")
def model() -> compiler.CompiledModule:
    return compiler.compile(Model(), (torch.randn(32, 64),))


@pytest.fixture(scope="module")
def profile(model: compiler.CompiledModule) -> Profile:
    return model.profile(repeats=4)


def test_the_whole_call_stands_beside_its_steps(profile: Profile) -> None:
    assert len(profile.call.seconds) == 4
    assert 0 < profile.call.minimum <= profile.call.median
    assert "a call takes" in str(profile)
    for k in profile.kernels:
        assert len(k.timing.seconds) == 4
        assert k.timing.minimum <= k.seconds


def test_predictions_and_roofline_are_of_kernels(profile: Profile) -> None:
    kernel = next(k for k in profile.kernels if k.flops)
    assert 0 < kernel.roofline < kernel.predicted * 10
    assert kernel.percent_of_roofline == pytest.approx(100 * kernel.roofline / kernel.seconds)
    assert all(not k.predicted for k in profile.kernels if not k.flops)


def test_json_has_everything(profile: Profile) -> None:
    fields = json.loads(json.dumps(profile.as_dict()))
    assert fields["call"]["median"] == profile.call.median
    kernel = next(k for k in fields["kernels"] if k["flops"])
    assert {"median", "minimum", "spread", "predicted", "roofline", "ops"} <= set(kernel)
    assert kernel["where"]["module"] == "linear"


def test_the_trace_has_a_track_for_each_thread(profile: Profile) -> None:
    events = json.loads(json.dumps(trace_events(profile)))["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    steps = [e for e in events if e["ph"] == "X" and e["cat"] == "step"]
    assert names[0] == "caller"
    assert {e["tid"] for e in events} == set(names)
    assert [e["name"] for e in steps] == [p.name for p, _ in profile.steps]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(steps))


def test_noise_is_said_everywhere(profile: Profile) -> None:
    noisy = Profile(profile.steps, Timing((1.0, 2.0, 9.0, 9.0)), profile.timelines)
    assert "noisy" in str(noisy)
    assert "noisy" in noisy._repr_html_()
    assert "noisy" in noisy.as_dict()["warning"]
    assert "noisy" not in str(Profile(profile.steps, Timing((1.0, 1.0)), profile.timelines))


def test_notebooks_show_tables(model: compiler.CompiledModule, profile: Profile) -> None:
    assert profile._repr_html_().count("<tr>") == 1 + len(profile.kernels)
    assert model._repr_html_().startswith("<table>")
    assert model.report(repeats=1)._repr_html_().startswith("<p>a call takes")


def test_notebooks_show_ir(model: compiler.CompiledModule, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[type, Any] = {}
    formatters = {"text/html": SimpleNamespace(for_type=shown.__setitem__)}
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters=formatters))
    monkeypatch.setitem(notebook.sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    notebook.register_formatters()
    assert '<i class="v">%x</i>' in shown[Graph](model.compiled_graph.graph)
    assert len(shown) == 3
