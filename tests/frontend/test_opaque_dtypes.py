"""dtypes that kernels do not have: inputs, outputs, constants and casts, through calls into PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend_kit import FunctionModule
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils._dtype_abbrs import dtype_abbrs

import compiler
from compiler.errors import ArgumentError, TypeRuleError, UnsupportedOpError
from compiler.ir.torch_types import to_torch
from compiler.ir.types import DTYPES

OPAQUE = [to_torch(d) for d in DTYPES.values() if d.is_opaque]

opaque_dtype = pytest.mark.parametrize("dtype", OPAQUE, ids=str)


def codes(dtype: torch.dtype, *shape: int) -> Tensor:
    """Return random elements of `dtype`, among them large and, of a float, special ones."""
    bits = torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8)
    return bits.view(dtype)


def assert_same_bits(got: Any, want: Any) -> None:
    for g, w in zip(*(v if isinstance(v, (tuple, list)) else [v] for v in (got, want)), strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        assert torch.equal(g.contiguous().view(torch.uint8), w.contiguous().view(torch.uint8))


def check(function: Callable[..., Any], *args: Tensor) -> None:
    want = function(*args)
    assert_same_bits(compiler.compile(FunctionModule(function), args)(*args), want)
    torch._dynamo.reset()
    assert_same_bits(torch.compile(function, backend="tilewright", fullgraph=True)(*args), want)


@opaque_dtype
def test_inputs_outputs_and_constants(dtype: torch.dtype) -> None:
    constant = codes(dtype, 4, 8)
    check(lambda q: (q.view(torch.uint8) + 1, q.t().reshape(8, 4), constant, q), codes(dtype, 4, 8))


@pytest.mark.parametrize("dtype", [d for d in OPAQUE if d != torch.float4_e2m1fn_x2], ids=str)
def test_casts_between_kernels(dtype: torch.dtype) -> None:
    x, constant = torch.rand(4, 8) * 4 + 1, torch.rand(8).to(dtype)
    check(lambda a: (a * 2).to(dtype), x)
    real = torch.complex64 if dtype.is_complex else torch.float32
    check(lambda a, q: torch.view_as_real((q + constant.to(real)).abs() * (1 + 0j)) + a[0, 0], x, x.to(real))
    check(lambda q: torch.cat([q, q[:2]]).flip(0), x.to(dtype))


def test_conjugates_are_constants_by_value() -> None:
    z = torch.randn(4, 8, dtype=torch.complex64).conj()
    half = z.resolve_conj().to(torch.complex32).conj()
    check(lambda a: (a * z, half.clone()), torch.randn(4, 8, dtype=torch.complex64))


def test_dynamic_sizes_and_mutation() -> None:
    def reverse(q: Tensor) -> Tensor:
        q.copy_(q.flip(0))
        return q.to(torch.float32) * 2

    compiled = torch.compile(reverse, backend="tilewright", dynamic=True, fullgraph=True)
    for n in (3, 5):
        q = codes(torch.uint16, n, 4)
        got, want = q.clone(), q.clone()
        torch.testing.assert_close(compiled(got), reverse(want), rtol=0, atol=0)
        assert_same_bits(got, want)


def test_numbers_and_sizes() -> None:
    bits = codes(torch.uint16, 1)
    bits[0] = 40000
    scale = torch.tensor([0.5]).to(torch.float8_e8m0fnu)
    check(lambda n, s: torch.zeros(n[0].item(), dtype=torch.int8)[1:] + n.to(torch.int8) * s[0].item(), bits, scale)


def test_a_dtype_without_kernels_in_pytorch_is_refused_by_name() -> None:
    q = torch.zeros(4, dtype=torch.uint4)
    with pytest.raises(TypeRuleError, match=r"args_0: torch\.uint4 is not supported; use a dtype of whole bytes"):
        compiler.compile(FunctionModule(lambda q: q.view(torch.uint8)), (q,))


@pytest.fixture
def printable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch print graphs with 4-bit integers, as it does where its log is captured; it has no name for them."""
    monkeypatch.setitem(dtype_abbrs, torch.uint4, "u4")


class Packed(nn.Module):
    """Hold integers of 4 bits, in a module of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("packed", torch.empty(4, dtype=torch.uint4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.packed.view(torch.uint8)


def keyword(x: Tensor, **weights: Tensor) -> Tensor:
    return x + weights["q"].view(torch.uint8)


NAMED: dict[str, tuple[Callable[..., Any], dict[str, Tensor], str]] = {
    "buffer": (nn.Sequential(nn.Identity(), Packed()), {}, "1.packed"),
    "argument": (keyword, {"q": torch.empty(4, dtype=torch.uint4)}, "weights.q"),
}


@pytest.mark.usefixtures("printable")
@pytest.mark.parametrize("case", NAMED)
@pytest.mark.parametrize("freezing", [False, True])
def test_torch_compile_names_a_tensor_of_such_a_dtype_as_the_user_does(case: str, freezing: bool) -> None:
    function, weights, name = NAMED[case]
    compiled = torch.compile(function, backend="tilewright", options={"freezing": freezing})
    with (
        pytest.raises(
            BackendCompilerFailed, match=rf"TypeRuleError: {name}: torch\.uint4 is not supported; use a dtype"
        ),
        torch.no_grad(),
    ):
        compiled(torch.randn(4), **weights)


def cast(x: Tensor) -> Tensor:
    return x.to(torch.uint4).view(torch.uint8) + 1


def viewed(x: Tensor) -> Tensor:
    return x.to(torch.uint8).view(torch.uint4).clone().view(torch.uint8)


def allocated(x: Tensor) -> Tensor:
    return x + torch.empty(4, dtype=torch.uint4).view(torch.uint8)


def compile_ahead(function: Callable[..., Any], x: Tensor) -> None:
    compiler.compile(function, (x,))


def compile_at_call(function: Callable[..., Any], x: Tensor) -> None:
    torch._dynamo.reset()
    torch.compile(function, backend="tilewright")(x)


@pytest.mark.usefixtures("printable")
@pytest.mark.parametrize("function", [cast, viewed, allocated])
@pytest.mark.parametrize("entry", [compile_ahead, compile_at_call])
def test_the_line_that_makes_a_tensor_of_such_a_dtype_is_reported_once(function: Any, entry: Any) -> None:
    with pytest.raises((UnsupportedOpError, BackendCompilerFailed), match=r"1 operation\(s\)") as caught:
        entry(function, torch.randn(4))
    message, line = str(caught.value), function.__code__.co_firstlineno + 1
    assert message.count("torch.uint4 is not supported; use a dtype of whole bytes, as in x.view(torch.uint8)") == 1
    assert f"at {__file__}:{line}: return x" in message
    assert "fallback" not in message


def test_sparse_tensors_are_refused_by_name() -> None:
    x, sparse = torch.randn(4, 4), torch.eye(4).to_sparse()
    with pytest.raises(
        ArgumentError, match=r"is a sparse_coo tensor, which compiler\.compile does not take; use a dense tensor"
    ):
        compiler.compile(FunctionModule(torch.sparse.mm), (sparse, x))
    with pytest.raises(UnsupportedOpError, match=r"_to_sparse.*has no conversion; and a sparse_coo tensor"):
        compiler.compile(FunctionModule(lambda a: a.to_sparse() @ a), (x,), options=compiler.Options(fallback="eager"))


def test_first_calls_conjugate() -> None:
    """AOTAutograd makes them in a dispatch mode, under which PyTorch's `pinv` is wrong."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, dtype=torch.complex64)
    torch._dynamo.reset()
    got = torch.compile(torch.linalg.pinv, backend="tilewright")(x)
    torch.testing.assert_close(got, torch.linalg.pinv(x), rtol=1e-5, atol=1e-6)
