"""Operators that stay calls into PyTorch: they need no fallback, and nothing of theirs is lost."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend_kit import FunctionModule, import_module, interpret_imported
from torch import Tensor

from compiler.frontend.opaque_ops import opaque_reason
from compiler.ir import ops
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.verify.graph import verify_graph
from compiler.torch_backend import tilewright

x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))

CALLS: dict[str, Callable[..., Any]] = {
    "fourier": lambda a: torch.fft.irfft(torch.fft.rfft(a * 2), n=8) + 1,
    "complex arithmetic": lambda a: (torch.complex(a, a + 1) * (1 - 2j)).abs(),
    "complex views": lambda a: torch.view_as_real(torch.view_as_complex(a.reshape(4, 4, 2)).t().conj().resolve_conj()),
    "complex result": lambda a: torch.polar(a.abs(), a)[1:],
    "median": lambda a: a.median(1),
    "kthvalue": lambda a: a.kthvalue(3, 1).values + a.mode(1).values,
    "eigenvalues": lambda a: torch.linalg.eigvalsh(a @ a.t()),
}


@pytest.mark.parametrize("case", CALLS)
def test_without_fallback(case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        imported = import_module(FunctionModule(CALLS[case]), (x,))
    verify_graph(imported.graph)
    torch.testing.assert_close(interpret_imported(imported, (x,)), CALLS[case](x))


def test_complex_types_have_text() -> None:
    graph = import_module(FunctionModule(CALLS["fourier"]), (x,)).graph
    assert "c64[4, 5]" in print_graph(graph)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)


def test_compiled_and_called_in_turns() -> None:
    program = CALLS["fourier"]
    torch.testing.assert_close(torch.compile(program, backend=tilewright)(x), program(x))


def test_an_effect_is_kept() -> None:
    """`solve` checks its factorisation by an operator that gives nothing, in the order of the program."""

    def program(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.solve(a, b + 1) * 2 + torch.linalg.solve(b, a)

    compiled = torch.compile(program, backend=tilewright, fullgraph=True)
    a, b = torch.eye(4) + x[:, :4] / 9, torch.eye(4) * 3
    torch.testing.assert_close(compiled(a, b), program(a, b))
    with pytest.raises(RuntimeError, match="singular"):
        compiled(a * 0, b)


def test_reasons() -> None:
    assert opaque_reason(torch.ops.aten.randperm.default) == "random"
    assert opaque_reason(torch.ops.aten.add.Tensor) == ""


def test_calls_that_decide_sizes() -> None:
    imported = import_module(FunctionModule(lambda a: a.nonzero().sum()), (x,))
    (call,) = [n for n in imported.graph if n.op is ops.eager]
    assert str(call.result_type) == "i64[u0, 2]"
    torch.testing.assert_close(interpret_imported(imported, (x,)), x.nonzero().sum())
