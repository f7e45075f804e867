"""Operators that stay calls into PyTorch: they need no fallback, and nothing of theirs is lost."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend_kit import FunctionModule, import_module, interpret_imported
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

import compiler
from compiler.errors import UnsupportedOpError
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


@pytest.mark.parametrize(("case", "text"), [("fourier", "c64[4, 5]"), ("complex arithmetic", '"complex:(1-2j)"')])
def test_complex_types_and_numbers_have_text(case: str, text: str) -> None:
    graph = import_module(FunctionModule(CALLS[case]), (x,)).graph
    assert text in print_graph(graph)
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


class Sorted(torch.nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(a - a.mode(1, keepdim=True).values)
        return spectrum.abs() + torch.special.airy_ai(a[:, :5])


def test_each_call_is_a_remark_and_a_line_of_the_report() -> None:
    with pytest.warns(UserWarning, match="airy"):
        compiled = compiler.compile(Sorted(), (x,), options={"cache": "", "fallback": "eager"})
    remarks = compiled.remarks.select("import", "missed")
    reasons = {r.message for r in remarks}
    assert reasons == {
        "aten.mode.default runs in PyTorch: sorting",
        "aten._fft_r2c.default runs in PyTorch: complex numbers",
        "aten.abs.default runs in PyTorch: complex numbers",
        "aten.special_airy_ai.default runs in PyTorch: has no conversion",
    }
    report = compiled.report(repeats=1)
    fourier = next(r for r in remarks if "fft" in r.message)
    assert fourier.loc is not None
    assert "torch.fft.rfft" in fourier.loc.code
    assert f"complex numbers (test_opaque_ops.py:{fourier.loc.line} spectrum =" in str(report)
    native = compiler.compile(torch.nn.ReLU(), (x,), options={"cache": ""}).report(repeats=1)
    assert "PyTorch:" not in str(native)


@pytest.mark.parametrize("compile_with", ["export", "dynamo"])
def test_strict_refuses_all_of_them(compile_with: str) -> None:
    options = {"cache": "", "fallback": "strict"}
    calls: dict[str, Callable[[], Any]] = {
        "export": lambda: compiler.compile(Sorted(), (x,), options=options),
        "dynamo": lambda: torch.compile(Sorted(), backend=tilewright, options=options)(x),
    }
    with pytest.raises((UnsupportedOpError, BackendCompilerFailed)) as caught:
        calls[compile_with]()
    text = str(caught.value)
    assert "4 operation(s) are not supported" in text
    for line in (
        "aten.mode.default: runs in PyTorch: sorting",
        "aten._fft_r2c.default: runs in",
        "aten.special_airy_ai.default: has no",
    ):
        assert line in text
    assert text.count("test_opaque_ops.py:") == 4
    compiler.compile(torch.nn.ReLU(), (x,), options=options)
    with pytest.raises(ValueError, match=r"fallback must be one of .* but is .strickt."):
        compiler.Options(fallback="strickt")


def test_strict_asks_for_results_in_use_alone() -> None:
    """Indices of 64-bit elements have no expansion, the sorted elements have one."""
    given, options = torch.randn(3, 20, dtype=torch.float64), {"cache": "", "fallback": "strict"}
    compiled = compiler.compile(lambda x: torch.sort(x, dim=1).values, (given,), options=options)
    torch.testing.assert_close(compiled(given), given.sort(1).values)
    with pytest.raises(UnsupportedOpError, match="sort"):
        compiler.compile(lambda x: torch.sort(x, dim=1).indices, (given,), options=options)


def test_calls_that_decide_sizes() -> None:
    imported = import_module(FunctionModule(lambda a: a.nonzero().sum()), (x,))
    (call,) = [n for n in imported.graph if n.op is ops.eager]
    assert str(call.result_type) == "i64[u0, 2]"
    torch.testing.assert_close(interpret_imported(imported, (x,)), x.nonzero().sum())
