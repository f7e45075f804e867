"""What `compiler.compile` is given: models of every kind, arguments and files, each compiled or refused in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

import compiler
from compiler.errors import TilewrightError

x = torch.linspace(-2, 3, 12).reshape(3, 4)
layer = nn.Linear(4, 5)


class Scale(nn.Module):
    def forward(self, x: Tensor, factor: Any = 2.0) -> Tensor:
        return x / factor

    def shifted(self, x: Tensor) -> Tensor:
        return self(x) + 1


@dataclass
class Call:
    """A callable object without a name and without code of its own."""

    scale: float

    def __call__(self, x: Tensor) -> Tensor:
        return layer(x) * self.scale


def double(x: Tensor, factor: int = 2) -> Tensor:
    return layer(x) * factor


MODELS: dict[str, Callable[..., Any]] = {
    "function": double,
    "lambda": lambda x: (x, layer(x).sin()),
    "function written in C": torch.sin,
    "method of a tensor": Tensor.exp,
    "partial": partial(nn.functional.layer_norm, normalized_shape=(4,)),
    "partial of a function written in C": partial(torch.add, alpha=2, other=x),
    "bound method of a module": Scale().shifted,
    "callable object": Call(3.0),
    "function under torch.func": torch.vmap(lambda row: row.softmax(0)),
    "function under torch.compile": torch.compile(double, backend="eager"),
    "module under torch.compile": torch.compile(Scale(), backend="eager"),
}


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_models_that_are_no_modules(kind: str) -> None:
    compiled = compiler.compile(MODELS[kind], (x,))
    torch.testing.assert_close(compiled(x + 1), MODELS[kind](x + 1))


def test_a_function_keeps_its_name_its_signature_and_its_lines() -> None:
    compiled = compiler.compile(double, (x,), {"factor": 3})
    assert compiled.compiled_graph.graph.name == "double"
    torch.testing.assert_close(compiled(factor=3, x=x), double(x, 3))
    with pytest.raises(TilewrightError, match="argument factor is specialized to 3, but is 2"):
        compiled(x)
    nodes = compiler.compile(torch.no_grad()(double), (x,)).compiled_graph.graph.nodes
    assert {(n.loc.file, n.loc.line) for n in nodes if n.loc} == {(__file__, double.__code__.co_firstlineno + 1)}
    with pytest.raises(TilewrightError, match=rf"cannot trace lambda at {__file__}:\d+: .*len"):
        compiler.compile(lambda x: len(None) + x, (x,))  # type: ignore[arg-type]  # wrong on purpose


def fake_layer() -> nn.Module:
    with FakeTensorMode():
        return nn.Linear(4, 4)


counter = torch.zeros(4)
compiled_scale = compiler.compile(Scale(), (x,))
dynamic_scale = compiler.compile(Scale(), (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
program = torch.export.export(Scale(), (x,))
scripted = torch.jit.script(nn.Linear(4, 4))
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no arguments": (lambda: compiler.compile(double), "for example arguments: compile(model, (x, ...))"),
    "class": (lambda: compiler.compile(Scale, (x,)), "Scale is a class; compile an instance: compile(Scale(...), "),
    "list": (lambda: compiler.compile([layer], (x,)), "cannot compile a list; pass a module, a function, "),  # type: ignore[arg-type]  # wrong on purpose
    "state dict": (lambda: compiler.compile(layer.state_dict(), (x,)), "cannot compile a OrderedDict; pass"),  # type: ignore[arg-type]  # wrong on purpose
    "compiled module": (lambda: compiler.compile(compiled_scale, (x,)), "is compiled already; pass the model"),
    "module without forward": (lambda: compiler.compile(nn.ModuleList([layer]), (x,)), 'missing the required "forward"'),
    "TorchScript": (lambda: compiler.compile(scripted, (x,)), "the model is TorchScript, which has no Python code"),
    "TorchScript inside": (lambda: compiler.compile(nn.Sequential(scripted), (x,)), "submodule 0 is TorchScript"),
    "compiled module inside": (lambda: compiler.compile(lambda x: compiled_scale(x) + 1, (x,)), f"at {__file__}:"),
    "meta weights": (lambda: compiler.compile(nn.Linear(4, 4, device="meta"), (x.to("meta"),)), "weight is a meta tensor, which has no"),
    "fake weights": (lambda: compiler.compile(fake_layer(), (x,)), "weight is a fake tensor, which has no elements"),
    "written tensor of a closure": (lambda: compiler.compile(lambda x: x + counter.add_(1), (x,)), "register it as buffer"),
    "weights in a file": (lambda: compiler.compile("saved"), "but what torch.save or torch.jit.save wrote: load it"),
    "file without a program": (lambda: compiler.compile(__file__), "holds no exported program: it is no .pt2 file"),
    "a tensor as arguments": (lambda: compiler.compile(double, x), "args must be a tuple, as in compile(model, (x,))"),  # type: ignore[arg-type]  # wrong on purpose
    "a dict as arguments": (lambda: compiler.compile(double, {"x": x}), "args must be a tuple, as in"),  # type: ignore[arg-type]  # wrong on purpose
    "a tensor as keywords": (lambda: compiler.compile(double, (), x), "kwargs must be a dict, as in"),  # type: ignore[arg-type]  # wrong on purpose
    "too few arguments": (lambda: compiler.compile(double, ()), "missing a required argument: 'x'"),
    "an array": (lambda: compiler.compile(double, (x.numpy(),)), "Unsupported input type <class 'numpy.ndarray'>"),
    "a dataclass": (lambda: compiler.compile(lambda c: x * c.scale, (Call(2.0),)), "use torch.export.register_dataclass"),
    "a string as options": (lambda: compiler.compile(double, (x,), options="tune"), "must be compiler.Options or a dict"),  # type: ignore[arg-type]  # wrong on purpose
    "dynamic sizes of a program": (lambda: compiler.compile(program, dynamic_shapes={}), "has its dynamic sizes already"),
    "another shape than a program's": (lambda: compiler.compile(program, (x[:2],)), "must be f32[3, 4], but has the shape [2, 4]"),
    "call with an array": (lambda: compiled_scale(x.numpy()), "must be a dense tensor of type f32[3, 4], not a ndarray"),
    "dynamic call with an array": (lambda: dynamic_scale(x.numpy()), "4], not a ndarray"),
    "call with True for 1": (lambda: compiler.compile(Scale(), (x, 1))(x, True), "specialized to 1, but is True"),
    "call with 2 for 2.0": (lambda: compiled_scale(x, 2), "omit argument factor: the program was compiled without it"),
    "call with -0.0 for 0.0": (lambda: compiler.compile(Scale(), (x, 0.0))(x, -0.0), "specialized to 0.0, but is -0.0"),
    "call with a tensor for None": (lambda: compiler.compile(Scale.forward, (None, x, 2))(x, x, 2), "to None, but is a Tensor"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*requires gradient", "ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_says_why(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(layer.state_dict(), "saved")
    call, says = REFUSED[kind]
    with pytest.raises(TilewrightError, match=re.escape(says)):
        call()


@pytest.mark.parametrize("value", [float("nan"), 0.0, 1, True])
def test_python_numbers_are_compared_exactly(value: Any) -> None:
    compiled = compiler.compile(Scale(), (x, value))
    torch.testing.assert_close(compiled(x, value), x / value, equal_nan=True)


def test_paths_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.pt2"):
        compiler.compile(tmp_path / "missing.pt2")
