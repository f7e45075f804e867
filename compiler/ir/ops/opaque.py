"""Ops without a structure yet: they run in PyTorch between kernels."""

from __future__ import annotations

from typing import Any

import torch

from compiler.ir.graph import Node
from compiler.ir.op import REQUIRED, Signature, elementwise_type, op, sample
from compiler.ir.ops.control import item
from compiler.ir.ops.rules import check_dims, same_type, unary
from compiler.ir.structure import Opaque
from compiler.ir.types import TensorType, i64


def _sort_type(s: Signature) -> tuple[TensorType, TensorType]:
    check_dims(s, [s.attrs["dim"]] if s.types[0].rank else [])
    return same_type(s), TensorType(i64, s.types[0].shape)


def _topk_type(s: Signature) -> tuple[TensorType, TensorType]:
    x, dim, k = s.types[0], s.attrs["dim"], s.attrs["k"]
    check_dims(s, [dim] if x.rank else [])
    if x.rank and isinstance(x.shape[dim], int) and isinstance(k, int) and k > x.shape[dim]:
        raise s.fail(f"dimension {dim} has only {x.shape[dim]} elements")
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :]) if x.rank else ()
    return TensorType(x.dtype, shape), TensorType(i64, shape)


def _scan_type(s: Signature) -> TensorType:
    check_dims(s, [s.attrs["dim"]] if s.types[0].rank else [])
    return same_type(s)


sort = op(
    "sort", "x: any", Opaque("sorting"), type=_sort_type, attrs={"dim": REQUIRED, "descending": False, "stable": False},
    reference=lambda x, dim, descending, stable: tuple(torch.sort(x, dim=dim, descending=descending, stable=stable)),
    samples=[sample("f32[4, 9]", dim=1), sample("i64[5, 2]", dim=0, descending=True, stable=True), sample("f32[]", dim=0)],
)  # fmt: skip
topk = op(
    "topk", "x: any", Opaque("sorting"), type=_topk_type, attrs={"k": REQUIRED, "dim": REQUIRED, "largest": True, "sorted": True},
    reference=lambda x, k, dim, largest, sorted: tuple(torch.topk(x, k, dim, largest, sorted)),
    samples=[sample("f32[4, 9]", k=3, dim=1), sample("f32[9, 2]", k=2, dim=0, largest=False)],
)  # fmt: skip
cumsum = op("cumsum", "x: number", Opaque("a scan"), type=_scan_type, attrs={"dim": REQUIRED},
            reference=lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype),
            samples=[sample("f32[4, 5]", dim=1), sample("i64[4, 5]", dim=0), sample("f32[0]", dim=0)])  # fmt: skip
cumprod = op("cumprod", "x: number", Opaque("a scan"), type=_scan_type, attrs={"dim": REQUIRED},
             reference=lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype), samples=[sample("f32[4, 5]", dim=1)])  # fmt: skip
integer_power = op("integer_power", "x: integer, y: integer", Opaque("integer powers wrap in a way no primitive has"),
                   type=elementwise_type(), reference=torch.pow, samples=[sample("i64[5]", "i64[5]", low=0, high=5)])  # fmt: skip
erfc = op("erfc", "x: float", Opaque("1 - erf(x) would cancel"), type=same_type, reference=torch.erfc, samples=unary())


def _scatter_reference(x: Any, indices: Any, values: Any, dim: int, reduce: str) -> Any:
    if reduce == "none":
        return torch.scatter(x, dim, indices, values)
    return torch.scatter_reduce(
        x, dim, indices, values, {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[reduce]
    )


scatter = op(
    "scatter", "x: any, indices!: integer, values: any", Opaque("writes where the data says"), type=same_type,
    attrs={"dim": REQUIRED, "reduce": "none"}, reference=_scatter_reference,
    samples=[
        sample("f32[4, 9]", "i64[4, 3]", "f32[4, 3]", dim=1, low=0, high=9, reduce="add"),
        sample("f32[9, 4]", "i64[2, 4]", "f32[2, 4]", dim=0, low=0, high=9, reduce="max"),
    ],
)  # fmt: skip
"""`x` with `values` combined into the places `indices` name along `dim`; "none" replaces."""


def _put_reference(x: Any, values: Any, *indices: Any, dims: Any, accumulate: bool) -> Any:
    key: list[Any] = [None] * x.ndim
    for d, each in zip(dims, indices, strict=True):
        key[d] = each
    return torch.ops.aten.index_put.default(x, key, values, accumulate)


index_put = op(
    "index_put", "x: any, values: any, first!: any, rest*!: any", Opaque("writes where the data says"), type=same_type,
    attrs={"dims": REQUIRED, "accumulate": False}, reference=_put_reference,
    samples=[sample("f32[9, 4]", "f32[3, 4]", "i64[3]", dims=[0], accumulate=True, low=0, high=9)],
)  # fmt: skip


def results(node: Node) -> tuple[Node, ...]:
    """Every result of a node with several."""
    assert isinstance(node.result, tuple)
    return tuple(item(node, index=k) for k in range(len(node.result)))
