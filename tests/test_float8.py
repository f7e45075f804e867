"""Floats of 8 bits from end to end: stored in one byte, computed in f32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler import Options
from compiler.codegen.triton.emit import emit_triton
from compiler.frontend.export import import_module
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.torch_types import to_torch
from compiler.ir.types import DTYPES
from tests.frontend.frontend_kit import FunctionModule

FLOAT8 = [to_torch(d) for d in DTYPES.values() if d.is_float and d.bits == 8]

float8 = pytest.mark.parametrize("dtype", FLOAT8, ids=str)


class Quantized(nn.Module):
    """A linear layer with weights of 8 bits and one scale for each column."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, scale_first: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        w, self.scale_first = torch.randn(rows, columns), scale_first
        scale = w.abs().amax(0) / 400
        self.register_buffer("w", (w / scale).to(dtype))
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        w = self.w.to(x.dtype)
        return x @ (w * self.scale.to(x.dtype)) if self.scale_first else x @ w * self.scale.to(x.dtype)


@float8
@pytest.mark.parametrize(("activation", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)], ids=str)
@pytest.mark.parametrize("scale_first", [False, True])
@pytest.mark.parametrize("rows", [1, 9])
def test_quantized_weights(
    rows: int, scale_first: bool, activation: torch.dtype, tolerance: float, dtype: torch.dtype
) -> None:
    layer, x = Quantized(260, 331, dtype, scale_first), torch.randn(rows, 260, dtype=activation)
    truth = x.double() @ (layer.w.double() * layer.scale.double())
    got = compiler.compile(layer, (x,))(x).double()
    assert (got - truth).abs().max() < tolerance * truth.abs().max()


@float8
def test_weights_stay_bytes_and_are_widened_where_they_are_multiplied(dtype: torch.dtype) -> None:
    layer, x = Quantized(260, 331, dtype), torch.randn(8, 260)
    compiled = compiler.compile(layer, (x,))
    arrays = compiled.executable.constants.values()
    assert sorted(a.itemsize for a in arrays) == [1, 4]
    assert max(a.nbytes for a in arrays) < 1.1 * 260 * 331
    program = compiled.stages.scheduled
    (kernel,) = program.kernels.values()
    weights = next(p for p in kernel.params if p.type.dtype.bits == 8)
    assert weights.role == "const"
    assert weights.type.layout is not None  # packed
    assert {p.type.dtype.bits for p in kernel.params} == {8, 32}


COPIES: dict[str, Callable[[Tensor], Any]] = {
    "transpose": lambda q: q.t().reshape(4, 12).contiguous(),
    "slice": lambda q: q[1:, ::2].clone(),
    "concatenate": lambda q: torch.cat([q, q[:2]]),
    "select": lambda q: torch.where(q.float() > 0, q, q.flip(0)),
    "gather": lambda q: q[torch.tensor([2, 0])],
    "pad": lambda q: nn.functional.pad(q, (1, 2)),
    "bits": lambda q: q.view(torch.uint8),
    "from bits": lambda q: (q.view(torch.uint8) & 0x7F).view(q.dtype),
    "widen": lambda q: (q.float(), q.double(), q.half(), q.bfloat16(), q.float().nan_to_num().to(torch.int32)),
    "compare": lambda q: (q == q.flip(0), torch.isnan(q)),
    "reduce": lambda q: (q.float().amax(1), q.float().nan_to_num().amin()),
    "fill": lambda q: torch.full((3,), 1.5, dtype=q.dtype),
    "round": lambda q: (q.float() * 3.3).to(q.dtype),
    "round half": lambda q: q.half().mul(2).to(q.dtype),
}


@float8
@pytest.mark.parametrize("name", COPIES)
def test_copies_and_conversions_have_the_bits_of_eager(name: str, dtype: torch.dtype) -> None:
    values = torch.linspace(-3, 3, 48) ** 5
    values[5:9] = torch.tensor([0.0, -0.0, float("nan"), 1e-3])
    q = values.reshape(6, 8).to(dtype)
    got, want = compiler.compile(FunctionModule(COPIES[name]), (q,))(q), COPIES[name](q)
    for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        assert g.dtype == w.dtype
        torch.testing.assert_close(g.double(), w.double(), rtol=0, atol=0, equal_nan=True)


@float8
def test_torch_compile(dtype: torch.dtype) -> None:
    layer, x = Quantized(32, 48, dtype), torch.randn(4, 32)
    torch.testing.assert_close(torch.compile(layer, backend="tilewright")(x), layer(x))


@float8
def test_constants_survive_as_text(dtype: torch.dtype) -> None:
    codes = torch.tensor([0x00, 0x80, 0x01, 0x38, 0x7E, 0x7F, 0xFE, 0x3C], dtype=torch.uint8).view(dtype)
    graph = import_module(FunctionModule(lambda x: x + codes.float()), (torch.zeros(8),)).graph
    again = parse_graph(print_graph(graph, full=True))
    assert [c.attrs["value"].array.tolist() for c in again.constants] == [codes.view(torch.uint8).tolist()]


def test_operators_without_a_conversion_run_in_pytorch() -> None:
    a, b = (torch.randn(16, 16).to(torch.float8_e4m3fn) for _ in range(2))

    def scaled(a: Tensor, b: Tensor) -> Tensor:
        one = torch.ones(())
        return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, scale_result=one, out_dtype=torch.float32) * 2

    with pytest.warns(UserWarning, match="run in PyTorch"):
        compiled = compiler.compile(FunctionModule(scaled), (a, b), options=Options(fallback="eager"))
    torch.testing.assert_close(compiled(a, b), scaled(a, b))


@pytest.mark.parametrize("scale", [(torch.tensor(1.5), torch.tensor([0.25])), (torch.rand(16, 1), torch.rand(1, 48))])
@pytest.mark.parametrize("other", FLOAT8, ids=str)
def test_scaled_products(other: torch.dtype, scale: tuple[Tensor, Tensor]) -> None:
    a, b, bias = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(48, 32).to(other).t(), torch.randn(48)

    def scaled(a: Tensor, b: Tensor) -> Tensor:
        return torch._scaled_mm(a, b, *scale, out_dtype=torch.bfloat16, bias=bias.bfloat16())

    truth = a.double() @ b.double() * scale[0] * scale[1] + bias.bfloat16()
    got = compiler.compile(FunctionModule(scaled), (a, b))(a, b)
    assert got.dtype == torch.bfloat16
    assert (got - truth).abs().max() < 2**-8 * truth.abs().max()


# Triton


@pytest.mark.parametrize(("name", "triton"), [("f8e4m3fn", "tl.float8e4nv"), ("f8e5m2", "tl.float8e5")])
def test_triton_source(name: str, triton: str) -> None:
    text = f"""kernel @k(in %x: {name}[64], out %y: f32[64], out %z: {name}[64]) {{
      parallel %i in 0..64 tile 16 {{
        store cast<f32>(%x[%i]) * 2.0, %y[%i]
        store cast<{name}>(%y[%i]), %z[%i]
      }}
    }}"""
    source = emit_triton(parse_kernel(text))
    assert "x_block.to(tl.float32) * 2.0" in source
    assert f"_block_1.to({triton})" in source
    assert f"'x': '*{triton.removeprefix('tl.').replace('float', 'fp')}'" in source
