"""Constant linear maps along one dimension, such as the transforms of a Winograd convolution."""

from __future__ import annotations

import torch

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import ConstantLinear
from compiler.ir.ops.rules import check_dims
from compiler.ir.torch_types import from_torch, to_torch
from compiler.ir.types import TensorType

Matrix = tuple[tuple[float, ...], ...]


def _constant_linear_type(s: Signature) -> TensorType:
    (x,), dim, matrix = s.types, s.attrs["dim"], s.attrs["matrix"]
    check_dims(s, [dim])
    if len({len(row) for row in matrix}) != 1 or x.shape[dim] != len(matrix[0]):
        raise s.error(f"the matrix must have {x.shape[dim]} columns, the extent of dimension {dim}")
    return TensorType(x.dtype, (*x.shape[:dim], len(matrix), *x.shape[dim + 1 :]))


def _constant_linear_reference(x: torch.Tensor, dim: int, matrix: Matrix) -> torch.Tensor:
    wide = x.to(to_torch(from_torch(x.dtype).compute))
    rows = []
    for row in matrix:
        terms = [m * wide.select(dim, k) for k, m in enumerate(row) if m != 0]
        rows.append(sum(terms[1:], terms[0]) if terms else torch.zeros_like(wide.sum(dim)))
    return torch.stack(rows, dim).to(x.dtype)


def _dim_and_matrix(n: Node) -> tuple[int, Matrix]:
    return n.attrs["dim"], n.attrs["matrix"]


constant_linear = declare_op(
    "constant_linear", "x: float", ConstantLinear(_dim_and_matrix), type_rule=_constant_linear_type, attrs={"dim": REQUIRED, "matrix": REQUIRED}, reference=_constant_linear_reference,
    samples=[
        sample_input("f32[3, 2]", dim=1, matrix=[[1.0, -1.0], [0.5, 2.0], [0.0, 1.0]]), sample_input("f64[2, 3]", dim=0, matrix=[[0.0, -2.0]]),
        sample_input("bf16[2, 5]", dim=0, matrix=[[1.0, 1.0], [1.0, -1.0]]), sample_input("f32[2, 0]", dim=0, matrix=[[0.0, 0.0]]),
    ],
)  # fmt: skip
"""`matrix` times every line of `x` along `dim`: result[p] = sum over k of matrix[p][k] * x[k].

Zero coefficients are skipped, so that infinite or NaN x[k] have no effect there."""
