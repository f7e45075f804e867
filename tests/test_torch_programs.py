"""What lies behind a function that `torch.compile` compiled: programs, modes, logs, ranges of the profiler."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler import torch_backend
from compiler.torch_backend import tilewright
from tests.python_server import PythonServer


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


def broken(x: Tensor) -> Tensor:
    y = (x @ x).relu()
    torch._dynamo.graph_break()
    return y.sum(0)


def compiled(program: Any, **settings: Any) -> Any:
    return torch.compile(program, backend=tilewright, options={"cache": ""}, **settings)


def test_forward_and_backward_of_a_module() -> None:
    fast = compiled(Model())
    assert not compiler.compiled_programs(fast)
    fast(torch.randn(4, 8)).sum().backward()
    forward, backward = compiler.compiled_programs(fast)
    assert (forward.kind, backward.kind) == ("forward", "backward")
    assert forward.compile_id == "0/0"
    profile = forward.profile(repeats=2)
    assert {k.origin.place.module for k in profile.kernels} == {"linear"}
    assert "linear" in str(forward.report(repeats=1))
    assert forward.remarks.select("fuse")
    assert "matmul" in backward.print_ir()


def test_every_graph_of_a_function_with_breaks_and_dynamic_sizes() -> None:
    fast, other = compiled(broken, dynamic=True), compiled(lambda x: x + 1)
    fast(torch.randn(5, 5))
    fast(torch.randn(9, 9))
    other(torch.randn(3))
    first, second = compiler.compiled_programs(fast)
    assert len(compiler.compiled_programs(other)) == 1
    assert [list(t.shape) for t in first.example_tensors()] == [[9, 9]]
    assert "matmul" in first.print_ir()
    assert second.profile(repeats=1).kernels
    assert torch._dynamo.explain(broken)(torch.randn(5, 5)).graph_break_count == 1


def test_a_module_compiled_in_place_and_one_that_is_not() -> None:
    model = Model()
    with pytest.raises(compiler.ArgumentError, match=r"pass what torch.compile returned"):
        compiler.compiled_programs(model)
    model.compile(backend=tilewright, options={"cache": ""})
    model(torch.randn(2, 8))
    assert len(compiler.compiled_programs(model)) == 1


def test_programs_of_a_dead_function_are_freed() -> None:
    backend: Any = type("Backend", (), {})()
    run = lambda: None  # noqa: E731
    torch_backend.record_program(backend, run, "program")  # type: ignore[arg-type]
    assert list(backend._tilewright_programs.values()) == ["program"]
    del run
    assert not backend._tilewright_programs


@pytest.mark.parametrize(
    ("mode", "effort"), [("default", "default"), ("reduce-overhead", "default"), ("max-autotune", "tune")]
)
def test_modes(monkeypatch: pytest.MonkeyPatch, mode: str, effort: str) -> None:
    seen: list[str] = []
    compile_graph = torch_backend.compile_graph
    monkeypatch.setattr(
        torch_backend,
        "compile_graph",
        lambda g, o, *rest: (seen.append(o.effort), compile_graph(g, o.with_(effort="default"), *rest))[1],
    )
    torch.compile(lambda x: x.sin(), backend=tilewright, mode=mode)(torch.randn(4))
    assert seen == [effort]


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"mode must be one of default, .* but is quick"):
        torch.compile(lambda x: x.sin(), backend=tilewright, mode="quick")(torch.randn(4))


def test_profiler_ranges_name_kernels_and_lines() -> None:
    fast, x = compiled(broken), torch.randn(5, 5)
    expected = fast(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.testing.assert_close(fast(x), expected)
    names = [e.name for e in profiler.events() if e.name.startswith("tilewright::")]
    assert names.count("tilewright::compiled") == 2
    assert any("matmul relu" in n and "test_torch_programs.py" in n for n in names)
    assert not any(e.name.startswith("tilewright::") for e in _events_of_call_without(fast, x))


def _events_of_call_without(fast: Any, x: Tensor) -> list[Any]:
    """Return the events of a profile that begins after a call has ended."""
    fast(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        x + 1
    return list(profiler.events())


def test_torch_logs_show_remarks() -> None:
    """The setting is read when torch is imported, before there is a backend."""
    code = (
        "import torch; torch.compile(lambda x: x.sin() + 1, backend='tilewright', options={'cache': ''})(torch.ones(4))"
    )
    root = Path(__file__).parent.parent
    settings = {**os.environ, "TORCH_LOGS": "+tilewright", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root, env=settings
    )
    assert "compiled compiled: 1 kernels" in done.stderr
    assert "fused into the kernel of add" in done.stderr


def test_logs_are_short_unless_asked_for_more(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tilewright"):
        compiled(lambda x: x.sin() + 1)(torch.ones(4))
    (message,) = [r.getMessage() for r in caplog.records if r.name == "tilewright"]
    assert message.startswith("compiled compiled: 1 kernels")


def test_the_distribution_can_be_imported_by_its_name(python: PythonServer) -> None:
    code = "import tilewright, compiler; assert tilewright is compiler"
    python.run("-c", code, folder=Path(__file__).parent.parent).check_returncode()
