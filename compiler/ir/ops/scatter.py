"""Scatters: values combined into elements at positions that other operands hold."""

from __future__ import annotations

from typing import Any

import torch

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import GuardedRead, Lookup, Position, Scatter, ScatterWrites
from compiler.ir.ops.gather import index_position, index_reference, index_type
from compiler.ir.ops.rules import check_dims, same_type
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.types import TensorType, broadcast_index, broadcast_shapes

TORCH_REDUCE_NAMES = {"set": "set", "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
"""Names of PyTorch for attribute `reduce`, the operation that combines a written value with the element."""


def _combine(n: Node) -> str:
    return str(n.attrs["reduce"])


def _check_reduce(s: Signature) -> None:
    allowed = [r for r in TORCH_REDUCE_NAMES if r not in ("add", "mul") or s.types[0].dtype.kind != "bool"]
    if s.attrs["reduce"] not in allowed:
        raise s.error(f"reduce must be one of {', '.join(allowed)}, got {s.attrs['reduce']}")


def _scatter_type(s: Signature) -> TensorType:
    (x, indices, values), dim = s.types, s.attrs["dim"]
    check_dims(s, [dim])
    _check_reduce(s)
    if not x.rank == indices.rank == values.rank:
        raise s.error("indices and values must have the rank of x")
    for k, (n, m, v) in enumerate(zip(x.shape, indices.shape, values.shape, strict=True)):
        if isinstance(m, int) and ((k != dim and isinstance(n, int) and m > n) or (isinstance(v, int) and m > v)):
            raise s.error(f"{m} indices in dimension {k} exceed the extent of x or of the values")
    return same_type(s)


def _scatter_writes(n: Node) -> ScatterWrites:
    (x, indices, _), dim = n.operands, n.attrs["dim"]

    def position(u: Position) -> tuple[Dim | Lookup, ...]:
        return (*u[:dim], Lookup(1, u, x.shape[dim]), *u[dim + 1 :])

    return ScatterWrites(indices.shape, position, lambda u: GuardedRead(2, u))


def _scatter_reference(x: Any, indices: Any, values: Any, dim: int, reduce: str) -> Any:
    indices = indices.to(torch.int64)
    if reduce == "set":
        return torch.scatter(x, dim, indices, values)
    if x.dtype == torch.bool:
        return _scatter_reference(x.int(), indices, values.int(), dim, reduce).bool()
    return torch.scatter_reduce(x, dim, indices, values, TORCH_REDUCE_NAMES[reduce])


scatter = declare_op(
    "scatter", "x: any, indices!: integer, values: any", Scatter(_combine, _scatter_writes), type_rule=_scatter_type,
    attrs={"dim": REQUIRED, "reduce": "set"}, reference=_scatter_reference,
    samples=[
        sample_input("f32[4, 9]", "i64[4, 3]", "f32[4, 3]", dim=1, low=0, high=9, reduce="add"),
        sample_input("f32[9, 4]", "i64[2, 4]", "f32[2, 4]", dim=0, low=0, high=9, reduce="max"),
        sample_input("i64[9, 4]", "i32[5, 3]", "i64[6, 4]", dim=0, low=0, high=9, reduce="mul"), sample_input("f32[8, 1]", "i64[1, 1]", "f32[1, 1]", dim=0, low=0, high=8),
        sample_input("bf16[2, 8]", "i64[2, 3]", "bf16[2, 3]", dim=1, low=0, high=8, reduce="add"), sample_input("bool[8]", "i64[5]", "bool[5]", dim=0, low=0, high=8, reduce="min"),
        sample_input("f32[2, 8, 20]", "i64[2, 6, 20]", "f32[2, 6, 20]", dim=1, low=0, high=8, reduce="add"), sample_input("f32[3]", "i64[0]", "f32[0]", dim=0, reduce="add"),
    ],
)  # fmt: skip
"""`x` with `values` combined into the elements that `indices` select along `dim`; indices lie in 0..extent-1."""


def _written_type(s: Signature) -> TensorType:
    """Return the type of `x[indices]`, the elements that are written."""
    return index_type(s, first=2)


def _put_type(s: Signature) -> TensorType:
    _check_reduce(s)
    written, values = _written_type(s).shape, s.types[1].shape
    try:
        if broadcast_shapes(written, values) != written:
            raise s.error(f"values of shape {list(values)} do not broadcast to {list(written)}")
    except ValueError as error:
        raise s.error(str(error)) from None
    return same_type(s)


def _put_writes(n: Node) -> ScatterWrites:
    written = _written_type(Signature(n.op.name, tuple(o.type for o in n.operands), n.attrs)).shape
    return ScatterWrites(
        written,
        lambda u: index_position(n, u, first=2),
        lambda u: GuardedRead(1, broadcast_index(n.operands[1].shape, u)),
    )


def _put_reference(x: Any, values: Any, *indices: Any, dims: Any, reduce: str) -> Any:
    """Reference by a scatter into the flattened tensor, at the indexed element numbers."""
    numbers = index_reference(torch.arange(x.numel()).reshape(x.shape), *indices, dims=dims)
    flat = values.expand(numbers.shape).reshape(-1)
    return _scatter_reference(x.reshape(-1), numbers.reshape(-1), flat, 0, reduce).reshape(x.shape)


index_put = declare_op(
    "index_put", "x: any, values: any, first!: integer, rest*!: integer", Scatter(_combine, _put_writes), type_rule=_put_type,
    attrs={"dims": REQUIRED, "reduce": "set"}, reference=_put_reference,
    samples=[
        sample_input("f32[9, 4]", "f32[3, 4]", "i64[3]", dims=[0], reduce="add", low=-8, high=8), sample_input("f32[9, 9]", "f32[]", "i64[1]", "i64[1]", dims=[0, 1], low=0, high=8),
        sample_input("f32[2, 9, 3, 9]", "f32[4, 2, 3]", "i64[4]", "i32[4]", dims=[1, 3], low=0, high=8, reduce="add"),
        sample_input("i64[9, 3]", "i64[3]", "i64[2, 3]", dims=[0], low=0, high=8, reduce="min"), sample_input("f16[8, 9]", "f16[2, 9]", "i64[2]", dims=[0], low=0, high=8, reduce="add"),
    ],
)  # fmt: skip
"""`x` with `values` combined into the elements `x[indices]`; negative indices count from the end."""
