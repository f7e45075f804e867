"""Ops without a structure: they run in PyTorch between kernels."""

from __future__ import annotations

import torch

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Opaque
from compiler.ir.ops.graph_ops import tuple_get
from compiler.ir.ops.rules import check_dims, same_type
from compiler.ir.types import TensorType, i64


def _sort_type(s: Signature) -> tuple[TensorType, TensorType]:
    check_dims(s, [s.attrs["dim"]] if s.types[0].rank else [])
    return same_type(s), TensorType(i64, s.types[0].shape)


def _topk_type(s: Signature) -> tuple[TensorType, TensorType]:
    x, dim, k = s.types[0], s.attrs["dim"], s.attrs["k"]
    check_dims(s, [dim] if x.rank else [])
    if x.rank and isinstance(x.shape[dim], int) and isinstance(k, int) and k > x.shape[dim]:
        raise s.error(f"dimension {dim} has only {x.shape[dim]} elements")
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :]) if x.rank else ()
    return TensorType(x.dtype, shape), TensorType(i64, shape)


sort = declare_op(
    "sort", "x: ordered", Opaque("sorting"), type_rule=_sort_type, attrs={"dim": REQUIRED, "descending": False, "stable": False},
    reference=torch.ops.aten.sort.stable,
    samples=[sample_input("f32[4, 9]", dim=1), sample_input("i64[5, 2]", dim=0, descending=True, stable=True), sample_input("f32[]", dim=0)],
)  # fmt: skip
topk = declare_op(
    "topk", "x: ordered", Opaque("sorting"), type_rule=_topk_type, attrs={"k": REQUIRED, "dim": REQUIRED, "largest": True, "sorted": True},
    reference=torch.ops.aten.topk.default,
    samples=[sample_input("f32[4, 9]", k=3, dim=1), sample_input("f32[9, 2]", k=2, dim=0, largest=False)],
)  # fmt: skip


def result_nodes(node: Node) -> tuple[Node, ...]:
    """Return one node for each result of `node`: itself if it has only one."""
    if not isinstance(node.result_type, tuple):
        return (node,)
    return tuple(tuple_get(node, index=k) for k in range(len(node.result_type)))
