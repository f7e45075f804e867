"""split-reductions: sums in groups that share a scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import compiler
from compiler.target import MatrixShape
from compiler.testing.checks import check_pass
from tests.codegen.native import runnable_targets

PAIRS = (MatrixShape(1, 8, 2, "i16", "i16", "i32"),)

CODES = "%q = constant i8[3, 2, 4] [[[1, -2, 3, 4], [5, 6, -128, 8]], [[1, 1, 1, 1], [2, 2, 2, 2]], [[0, 1, 2, 3], [4, 5, 6, 127]]]"

WEIGHT = f"""{CODES}  %s = constant f32[3, 2, 1] [[[0.5], [2]], [[1], [4]], [[8], [0.25]]]
          %f = cast %q {{dtype=f32}}  %g = mul %f, %s"""

INSIDE = WEIGHT.replace(
    "[3, 2, 1] [[[0.5], [2]], [[1], [4]], [[8], [0.25]]]", "[1, 2, 4] [[[1, 2, 3, 4], [5, 6, 7, 8]]]"
)

MATRIX = "%r = reshape %g {shape=[3, 8]}  %w = permute %r {dims=[1, 0]}"

ROWS = "%i = cast %x {dtype=f32}  %z = sub %i, 3.0  %a = mul %z, %t"


def test_the_groups_of_a_weight() -> None:
    check_pass(
        "split-reductions",
        before=f"""graph(%x: u8[5, 8], %t: f32[5, 1]) {{ {ROWS}  {WEIGHT}  {MATRIX}
          %y = matmul %a, %w  return %y }}""",
        after=f"""graph(%x: u8[5, 8], %t: f32[5, 1]) {{
          %i = cast %x {{dtype=f32}}  %c = constant i32[] 3  %cf = cast %c {{dtype=f32}}  %z = sub %i, %cf
          %m = reshape %z {{shape=[5, 2, 4]}}  %k = permute %m {{dims=[1, 0, 2]}}
          {WEIGHT}  %w = permute %g {{dims=[1, 2, 0]}}
          %p = matmul %k, %w  %u = sum %p {{dims=[0]}}  %y = mul %u, %t  return %y }}""",
        remark="adds in 2 groups of 4",
        matrix_shapes=PAIRS,
        special=False,
    )


def test_groups_of_reduced_floats_are_added_before_rounding() -> None:
    half = WEIGHT.replace("dtype=f32", "dtype=f16").replace(
        "%g = mul %f, %s", "%h = cast %s {dtype=f16}  %g = mul %f, %h"
    )
    check_pass(
        "split-reductions",
        before=f"graph(%x: f16[1, 8]) {{ {half}  {MATRIX}  %y = matmul %x, %w  return %y }}",
        after=f"""graph(%x: f16[1, 8]) {{
          %m = reshape %x {{shape=[1, 2, 4]}}  %k = permute %m {{dims=[1, 0, 2]}}
          {half}  %w = permute %g {{dims=[1, 2, 0]}}  %e = cast %w {{dtype=f32}}
          %p = matmul %k, %e {{dtype=f32}}  %u = sum %p {{dims=[0]}}  %y = cast %u {{dtype=f16}}  return %y }}""",
        special=False,
    )


@pytest.mark.parametrize(("batch", "rows"), [(2, 5), (1, 5), (1, 1), (2, 1)])
def test_a_batch_and_zero_points_of_groups(batch: int, rows: int) -> None:
    zeros = "%n = constant i32[3, 2, 1] [[[1], [2]], [[3], [-4]], [[5], [6]]]"
    weight = f"""{CODES}  {zeros}  %s = constant f32[3, 1, 1] [[[0.5]], [[2]], [[1]]]
          %qi = cast %q {{dtype=i32}}  %d = sub %qi, %n  %f = cast %d {{dtype=f32}}  %g = mul %f, %s"""
    check_pass(
        "split-reductions",
        before=f"""graph(%x: i8[{batch}, {rows}, 8]) {{ %a = cast %x {{dtype=f32}}  {weight}  {MATRIX}
          %y = matmul %a, %w  return %y }}""",
        after=f"""graph(%x: i8[{batch}, {rows}, 8]) {{ %a = cast %x {{dtype=f32}}
          %m = reshape %a {{shape=[{batch}, {rows}, 2, 4]}}  %k = permute %m {{dims=[0, 2, 1, 3]}}
          {weight}  %w = permute %g {{dims=[1, 2, 0]}}
          %p = matmul %k, %w  %y = sum %p {{dims=[1]}}  return %y }}""",
        matrix_shapes=PAIRS,
        special=False,
    )


@pytest.mark.parametrize(
    ("rows", "weight", "shapes"),
    [
        (ROWS, f"{WEIGHT}  {MATRIX}", ()),
        (ROWS, f"{WEIGHT}  {MATRIX}", (MatrixShape(1, 8, 8, "u8", "i8", "i32"),)),
        ("%i = cast %x {dtype=f32}  %e = exp %i  %a = mul %e, %t", f"{WEIGHT}  {MATRIX}", PAIRS),
        (ROWS, f"{WEIGHT.replace('[3, 2, 1] [[[0.5], [2]], [[1], [4]], [[8], [0.25]]]', '[] 2')}  {MATRIX}", PAIRS),
        (ROWS, f"{INSIDE}  {MATRIX}", PAIRS),
        (ROWS, f"{WEIGHT}  %o = permute %g {{dims=[1, 0, 2]}}  {MATRIX.replace('%g', '%o')}", PAIRS),
    ],
    ids=[
        "no dots",
        "a part of a dot",
        "activations of floats",
        "one scale",
        "scales inside groups",
        "groups that are no rows",
    ],
)
def test_what_stays(rows: str, weight: str, shapes: tuple[MatrixShape, ...]) -> None:
    check_pass(
        "split-reductions",
        unchanged=f"graph(%x: u8[5, 8], %t: f32[5, 1]) {{ {rows}  {weight}  %y = matmul %a, %w  return %y }}",
        matrix_shapes=shapes,
    )


# numbers: with powers of two as scales, sums of f32 are exact


class Grouped(torch.nn.Module):
    """A linear layer of quantized rows, with weights whose scales and zero points belong to groups."""

    def __init__(self, codes: Tensor, zeros: Tensor, scales: Tensor) -> None:
        super().__init__()
        self.register_buffer("codes", codes)
        self.register_buffer("zeros", zeros)
        self.register_buffer("scales", scales)

    def forward(self, x: Tensor, zero: Tensor, scale: Tensor) -> Tensor:
        weight = (self.codes.to(scale.dtype) - self.zeros.to(scale.dtype)) * self.scales.to(scale.dtype)
        rows = (x.to(scale.dtype) - zero.to(scale.dtype)) * scale
        return torch.nn.functional.linear(rows, weight.flatten(1))


@settings(deadline=None, max_examples=5)
@given(
    rows=st.integers(1, 9),
    columns=st.integers(2, 40),
    groups=st.integers(2, 5),
    size=st.sampled_from([32, 64, 128]),
    x_dtype=st.sampled_from([torch.int8, torch.uint8]),
    target=st.sampled_from([*runnable_targets(), "host"]),
    seed=st.integers(0, 1000),
)
def test_every_target_adds_the_same_integers(
    rows: int, columns: int, groups: int, size: int, x_dtype: torch.dtype, target: str, seed: int
) -> None:
    torch.manual_seed(seed)
    low = torch.iinfo(x_dtype).min
    x = torch.randint(low, low + 256, (rows, groups * size)).to(x_dtype)
    zero = torch.randint(low, low + 256, (rows, 1)).to(x_dtype)
    codes = torch.randint(-8, 8, (columns, groups, size)).to(torch.int8)
    zeros = torch.randint(-8, 8, (columns, groups, 1)).to(torch.int8)
    scales = 2.0 ** torch.randint(-2, 1, (columns, groups, 1))
    scale = 2.0 ** torch.randint(-3, 1, (rows, 1))
    layer = Grouped(codes, zeros, scales)
    compiled = compiler.compile(layer, (x, zero, scale), options={"target": target})
    assert [r.message for r in compiled.remarks.select("integer-contraction")] == ["runs in integers"]
    exact = layer(x, zero, scale.double())
    np.testing.assert_array_equal(compiled(x, zero, scale).numpy(), exact.numpy().astype(np.float32))
