"""Tensors without strides and packed sequences: refused by name where `torch.export` does not take them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from frontend_kit import FunctionModule
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import compiler
from compiler.errors import ArgumentError, ExportError
from compiler.torch_backend import tilewright

OPTIONS = {"cache": "", "fallback": "eager"}
matrix = torch.eye(4) * 2
LAYOUTS: dict[str, Tensor] = {
    "sparse_coo": matrix.to_sparse(),
    "sparse_csr": matrix.to_sparse_csr(),
    "jagged": torch.nested.nested_tensor([matrix, matrix[:2]], layout=torch.jagged),
    "nested": torch.nested.nested_tensor([matrix, matrix[:2]]),
}


class Product(torch.nn.Module):
    def forward(self, dense: Tensor, weights: Sequence[Tensor]) -> Tensor:
        return weights[0] @ dense + 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_argument_without_strides_is_named(layout: str) -> None:
    with pytest.raises(ArgumentError, match=f"argument weights is a {layout} tensor, .* or use torch.compile"):
        compiler.compile(Product(), (matrix, [LAYOUTS[layout]]), options=OPTIONS)
    compiled = compiler.compile(Product(), (matrix, [matrix]), options=OPTIONS)
    with pytest.raises(ArgumentError, match=rf"input 1 .*f32\[4, 4\].* {layout} tensor"):
        compiled(matrix, [LAYOUTS[layout]])
    assert torch.equal(compiled(matrix, [matrix]), matrix @ matrix + 1)


def test_a_buffer_without_strides_is_named() -> None:
    module = FunctionModule(lambda x: x + 1)
    module.register_buffer("mask", LAYOUTS["sparse_coo"])
    with pytest.raises(ArgumentError, match="buffer mask is a sparse_coo tensor"):
        compiler.compile(module, (matrix,), options=OPTIONS)


class Packed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


def test_a_packed_sequence() -> None:
    model, args = Packed().eval(), (torch.randn(3, 6, 4), torch.tensor([6, 2, 4]))
    with pytest.raises(ArgumentError, match=r"argument input of LSTM layer at .*test_module_export.py:\d+ is a packed"):
        compiler.compile(model, args, options=OPTIONS)
    torch.testing.assert_close(torch.compile(model, backend=tilewright)(*args), model(*args))
    assert not model.layer._forward_pre_hooks


def test_one_tensor_as_several_arguments_stands_for_several_values() -> None:
    layer = torch.nn.Linear(4, 4)
    model = FunctionModule(lambda a, b, c: layer(a) - 2 * b + 4 * c["c"])
    model.layer = layer
    weight = layer.weight.detach()
    compiled = compiler.compile(model, (matrix, matrix, {"c": layer.weight}), options=OPTIONS)
    args = (torch.randn(4, 4), torch.randn(4, 4), {"c": torch.randn(4, 4)})
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), model(*args))
        torch.testing.assert_close(compiled(matrix, matrix, {"c": weight}), model(matrix, matrix, {"c": weight}))


class DataDependentBranch(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x


class JaggedInside(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.nested.as_nested_tensor([x, x[:2]], layout=torch.jagged)
        return torch.nested.to_padded_tensor(rows * 2, 0.0)


class SampleGradients(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(torch.func.grad(lambda row: row.tanh().sum()))(x)


@pytest.mark.parametrize("model", [DataDependentBranch(), JaggedInside(), SampleGradients()])
def test_what_export_cannot_trace_is_refused_with_the_line_and_a_remedy(model: torch.nn.Module) -> None:
    name, file = type(model).__name__, __file__
    with pytest.raises(ExportError, match=rf"cannot trace {name} at {file}:\d+: .*x(.|\n)*use torch.compile") as caught:
        compiler.compile(model, (matrix,), options=OPTIONS)
    assert caught.value.__cause__ is not None
    torch.testing.assert_close(torch.compile(model, backend=tilewright)(matrix), model(matrix))


def test_an_error_inside_a_library_names_its_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "library_of_layers.py").write_text("def rows(mask):\n    return mask.shape[0]\n")
    monkeypatch.syspath_prepend(str(package))
    rows = importlib.import_module("library_of_layers").rows
    line = rf"AttributeError: .*'shape'\n  in {package}/library_of_layers.py:2: return mask.shape\[0\]\n"
    with pytest.raises(ExportError, match=rf"at {__file__}:\d+: (.|\n)*{line}"):
        compiler.compile(FunctionModule(lambda x: x + rows(None)), (matrix,), options=OPTIONS)


def test_export_says_which_size_is_not_dynamic() -> None:
    model = FunctionModule(lambda x: x + torch.ones(4))
    with pytest.raises(ExportError, match="rows"):
        compiler.compile(model, (torch.ones(4),), dynamic_shapes=(({0: torch.export.Dim("rows")},),), options=OPTIONS)


JAGGED: dict[str, Callable[[Tensor, torch.nn.Module], Any]] = {
    "elementwise": lambda x, layer: (x * 2).sin(),
    "linear and softmax": lambda x, layer: layer(x).softmax(-1),
    "sum of the rows": lambda x, layer: x.sum(1),
    "padded": lambda x, layer: torch.nested.to_padded_tensor(x * 2, 0.0),
}


@pytest.mark.filterwarnings("ignore:.*run in PyTorch inside")
@pytest.mark.parametrize("case", JAGGED)
def test_jagged_tensors(case: str) -> None:
    layer = torch.nn.Linear(4, 3).requires_grad_(False)
    compiled = torch.compile(
        JAGGED[case], backend=tilewright, options={"cache": "", "fallback": "eager"}, fullgraph=True
    )
    for lengths in ((2, 3), (5, 1, 4)):
        x = torch.nested.nested_tensor([torch.randn(n, 4) for n in lengths], layout=torch.jagged)
        y, expected = (f(x, layer) for f in (compiled, JAGGED[case]))
        torch.testing.assert_close(y.values() if y.is_nested else y, expected.values() if y.is_nested else expected)


def test_gradients_of_jagged_tensors() -> None:
    function = JAGGED["elementwise"]
    x = torch.nested.nested_tensor([torch.randn(n, 4) for n in (2, 3)], layout=torch.jagged, requires_grad=True)
    compiled = torch.compile(function, backend=tilewright, options={"cache": "", "fallback": "error"}, fullgraph=True)
    gradients = [
        torch.autograd.grad(f(x, torch.nn.Identity()).values().sum(), x)[0].values() for f in (compiled, function)
    ]
    torch.testing.assert_close(*gradients)
