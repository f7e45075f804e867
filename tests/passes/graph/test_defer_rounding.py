"""defer-rounding: the values of a kernel are rounded to narrow floats where they are stored."""

from __future__ import annotations

import pytest
import torch

import compiler
from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.targets import host_target
from compiler.ir.text.graph_parser import parse_graph
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass


def kernel(*lines: str, inputs: str = "%x: bf16[4, 8], %w: bf16[8, 6], %c: bf16[6]", result: str = "%z") -> str:
    """A program of one kernel with these nodes."""
    given = inputs.replace("%", "%given_")
    names = ", ".join(part.split(":")[0] for part in given.split(", %"))
    operands = ", ".join(name if name.startswith("%") else f"%{name}" for name in names.split(", "))
    return f"graph({given}) {{ %f = fused {operands} {{body=graph({inputs}) {{ {'  '.join(lines)}  return {result} }}}}  return %f }}"


def test_an_epilogue_reads_the_sum_before_it_is_rounded() -> None:
    check_pass(
        "defer-rounding",
        before=kernel("%y = matmul %x, %w  %b = add %y, %c  %t = tanh %b  %z = mul %t, %t"),
        after=kernel(
            "%y = matmul %x, %w {dtype=f32}  %v = cast %c {dtype=f32}  %b = add %y, %v  %t = tanh %b  %m = mul %t, %t",
            "%z = cast %m {dtype=bf16}",
        ),
        remark="3 values not rounded",
    )


def test_a_cast_of_the_program_moves_behind_clamps_alone() -> None:
    """The mean and scale of a batch norm are f32; its result is rounded, by the program, in front of a ReLU6."""
    inputs = "%x: f32[4, 8], %c: f32[8]"
    clamps = "%a = cast 0.0 {dtype=f32}  %m = maximum %s, %a  %b = cast 6.0 {dtype=f32}  %n = minimum %m, %b"
    clamps = clamps.replace("cast 0.0", "cast %zero").replace("cast 6.0", "cast %six")
    constants = "%zero = constant bf16[] 0.0  %six = constant bf16[] 6.0"
    check_pass(
        "defer-rounding",
        before=kernel(
            constants,
            "%s = add %x, %c  %r = cast %s {dtype=bf16}  %m = maximum %r, %zero  %z = minimum %m, %six",
            inputs=inputs,
        ),
        after=kernel(constants, "%s = add %x, %c", clamps, "%z = cast %n {dtype=bf16}", inputs=inputs),
    )
    check_pass(
        "defer-rounding",
        before=kernel("%s = add %x, %c  %r = cast %s {dtype=bf16}  %z = relu %r", inputs=inputs),
        after=kernel("%s = add %x, %c  %m = relu %s  %z = cast %m {dtype=bf16}", inputs=inputs),
    )
    check_pass(
        "defer-rounding",
        unchanged=kernel("%s = add %x, %c  %r = cast %s {dtype=bf16}  %z = cast %r {dtype=f32}", inputs=inputs),
    )


def test_a_view_of_a_value_reads_it_unrounded() -> None:
    check_pass(
        "defer-rounding",
        before=kernel("%y = matmul %x, %w  %t = permute %y {dims=[1, 0]}  %z = exp %t"),
        after=kernel(
            "%y = matmul %x, %w {dtype=f32}  %t = permute %y {dims=[1, 0]}  %e = exp %t  %z = cast %e {dtype=bf16}"
        ),
    )


def test_what_is_stored_is_read_again() -> None:
    check_pass(
        "defer-rounding",
        unchanged=kernel("%y = matmul %x, %w  %z = exp %y", result="%y, %z").replace(
            "return %f", "%g = tuple_get %f {index=0}  %h = tuple_get %f {index=1}  return %g, %h"
        ),
    )


@pytest.mark.parametrize(
    "lines",
    [
        "%z = matmul %x, %w",
        "%y = matmul %x, %w  %z = floor %y",
        "%y = matmul %x, %w  %d = div %y, %c  %z = round %d",
        "%d = mul %x, %x  %z = cast %d {dtype=f32}",
        "%y = matmul %x, %w  %z = gt %y, %c",
        "%y = exp %x  %z = matmul %y, %w",
        "%y = exp %x  %z = sum %y {dims=[1]}",
    ],
    ids=[
        "nothing follows",
        "steps",
        "what steps depend on",
        "a cast of the program",
        "a comparison",
        "a product",
        "a sum",
    ],
)
def test_values_that_stay_rounded(lines: str) -> None:
    check_pass("defer-rounding", unchanged=kernel(lines))


@pytest.mark.skipif(
    not host_target().has_feature("avx512bf16"),
    reason="needs a CPU that multiplies bf16: elsewhere sums of widened operands are rounded as the cast behind them says",
)
def test_one_rounding_of_a_layer() -> None:
    """Results are those of exact arithmetic, rounded once; PyTorch rounds the sum, its activation and the product."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(32, 48, bias=False).bfloat16().eval()

    class Gated(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.linear(x, layer.weight)
            return torch.sigmoid(y) * y

    x = torch.randn(16, 32).bfloat16()
    with torch.no_grad():
        y = torch.nn.functional.linear(x.double(), layer.weight.double())
        expected = (torch.sigmoid(y) * y).bfloat16()
        result = compiler.compile(Gated(), (x,))(x)
        assert (result != expected).float().mean() < 0.01
        assert (Gated()(x) != expected).float().mean() > 0.1


def test_a_kernel_stays_within_what_the_target_can_express() -> None:
    """With an unrounded `where`, operands of the convolution lie in a local buffer, of which a GPU reads no windows."""
    text = kernel(
        "%mask = bounds_mask {shape=[1, 1, 12, 1], ends=[1, 1, 11, 1]}  %r = cast %x {dtype=bf16}  %a = cast %r {dtype=f8e5m2}",
        "%b = cast %a {dtype=bf16}  %s = where %mask, %b, 0.0  %p = pad %s {before=[0, 0, 2, 2], after=[0, 0, 2, 2]}",
        "%v = slice %p {dim=2, size=15}  %y = conv %v, %w {stride=[1, 1], dilation=[1, 1]}",
        "%u = cast %y {dtype=f32}  %c3 = reshape %c {shape=[4, 1, 1]}  %m = mul %u, %c3  %z = cast %m {dtype=bf16}",
        inputs="%x: f32[2, 3, 12, 10], %w: bf16[4, 3, 4, 4], %c: f32[4]",
    )
    graph, gpu = parse_graph(text), Context.for_target(target_by_name("sm90"))
    assert run_pipeline(graph, "defer-rounding", gpu) is graph
    assert "is held in registers" in str(gpu.remarks)
    assert run_pipeline(graph, "defer-rounding", Context()) is not graph
