"""Gathers: elements read at positions that other operands hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Gather, Lookup, Position
from compiler.ir.ops.rules import check_dims
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.types import TensorType, broadcast_index, broadcast_shapes

IN_BOUNDS = {"in_bounds": False}
"""Attribute of gathers: True promises that all indices lie in 0..extent-1, so that they are not checked."""


def _take_type(s: Signature) -> TensorType:
    x, indices, dim = s.types[0], s.types[1], s.attrs["dim"]
    check_dims(s, [dim])
    return TensorType(x.dtype, (*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :]))


def _take_position(n: Node, i: Position) -> tuple[Dim | Lookup, ...]:
    (x, indices), dim = n.operands, n.attrs["dim"]
    end = dim + indices.type.rank
    return (*i[:dim], Lookup(1, i[dim:end], x.shape[dim], in_bounds=n.attrs["in_bounds"]), *i[end:])


def _take_reference(x: torch.Tensor, indices: torch.Tensor, dim: int, in_bounds: bool) -> torch.Tensor:
    picked = x.index_select(dim, indices.reshape(-1).to(torch.int64))
    return picked.reshape((*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :]))


take = declare_op(
    "take", "x: any, indices!: integer", Gather(_take_position), type_rule=_take_type, attrs={"dim": 0, **IN_BOUNDS}, reference=_take_reference,
    samples=[
        sample_input("f32[9, 4]", "i64[2, 3]", low=0, high=9), sample_input("f32[3, 7, 2]", "i32[4]", dim=1, low=0, high=7),
        sample_input("bool[5]", "i64[]", low=0, high=5), sample_input("i64[5, 2]", "i64[0]", low=0, high=5), sample_input("bf16[6, 3]", "i64[4]", low=0, high=6),
    ],
)  # fmt: skip
"""Slices of `x` along `dim`, one per index; an embedding if `dim` is 0.  Indices lie in 0..extent-1."""


def _gather_type(s: Signature) -> TensorType:
    x, indices, dim = s.types[0], s.types[1], s.attrs["dim"]
    check_dims(s, [dim])
    if x.rank != indices.rank:
        raise s.error("indices must have the rank of x")
    sizes = zip(x.shape, indices.shape, strict=True)
    if any(k != dim and isinstance(a, int) and isinstance(b, int) and b > a for k, (a, b) in enumerate(sizes)):
        raise s.error(f"indices are larger than x in a dimension other than {dim}")
    return TensorType(x.dtype, indices.shape)


def _gather_position(n: Node, i: Position) -> tuple[Dim | Lookup, ...]:
    dim = n.attrs["dim"]
    return (*i[:dim], Lookup(1, i, n.operands[0].shape[dim], in_bounds=n.attrs["in_bounds"]), *i[dim + 1 :])


gather = declare_op(
    "gather", "x: any, indices!: integer", Gather(_gather_position), type_rule=_gather_type, attrs={"dim": REQUIRED, **IN_BOUNDS},
    reference=lambda x, indices, dim, in_bounds: torch.gather(x, dim, indices.to(torch.int64)),
    samples=[
        sample_input("f32[4, 9]", "i64[4, 3]", dim=1, low=0, high=9), sample_input("f32[7, 4]", "i64[5, 2]", dim=0, low=0, high=7),
        sample_input("i64[3, 4]", "i64[0, 4]", dim=0, low=0, high=3), sample_input("bool[6]", "i64[2]", dim=0, low=0, high=6),
    ],
)  # fmt: skip
"""Result[i] = x[..., indices[i], ...], with the looked-up index in dimension `dim` (`torch.gather`)."""


def _are_adjacent(dims: Sequence[int]) -> bool:
    return list(dims) == list(range(dims[0], dims[0] + len(dims)))


def _index_shape_and_dim(indices: Sequence[TensorType], dims: Sequence[int]) -> tuple[tuple[Dim, ...], int]:
    """Return the broadcast shape of the indices, and the first dimension of the result that it takes."""
    return broadcast_shapes(*(t.shape for t in indices)), dims[0] if _are_adjacent(dims) else 0


def index_type(s: Signature, first: int = 1) -> TensorType:
    """Return the type of `x[indices]`, where the indices are the operands from number `first` on."""
    x, dims = s.types[0], s.attrs["dims"]
    check_dims(s, dims)
    if len(dims) != len(s.types) - first or list(dims) != sorted(dims):
        raise s.error("needs one increasing dimension per operand of indices")
    try:
        index_shape, at = _index_shape_and_dim(s.types[first:], dims)
    except ValueError as error:
        raise s.error(str(error)) from None
    others = [d for k, d in enumerate(x.shape) if k not in dims]
    return TensorType(x.dtype, (*others[:at], *index_shape, *others[at:]))


def index_position(n: Node, i: Position, first: int = 1) -> tuple[Dim | Lookup, ...]:
    """Return the position in operand 0 of element `i` of `x[indices]`."""
    dims, x, in_bounds = n.attrs["dims"], n.operands[0], n.attrs.get("in_bounds", False)
    index_shape, at = _index_shape_and_dim([o.type for o in n.operands[first:]], dims)
    inner = i[at : at + len(index_shape)]
    others = iter((*i[:at], *i[at + len(index_shape) :]))
    lookups = {
        d: Lookup(
            k, broadcast_index(n.operands[k].shape, inner), x.shape[d], wrap_negative=not in_bounds, in_bounds=in_bounds
        )
        for k, d in enumerate(dims, start=first)
    }
    return tuple(lookups[k] if k in lookups else next(others) for k in range(x.type.rank))


def index_reference(x: torch.Tensor, *indices: torch.Tensor, dims: Any, in_bounds: bool = False) -> torch.Tensor:
    """Reference by `aten.index`: Python's brackets would take an index of rank 0 as an integer, which indexes differently."""
    by_dim = dict(zip(dims, indices, strict=True))
    key = [by_dim[d].to(torch.int64) if d in by_dim else None for d in range(x.ndim)]
    return torch.ops.aten.index.Tensor(x, key)  # type: ignore[no-any-return]


index = declare_op(
    "index", "x: any, first!: integer, rest*!: integer", Gather(index_position), type_rule=index_type, attrs={"dims": REQUIRED, **IN_BOUNDS},
    reference=index_reference,
    samples=[
        sample_input("f32[9, 9]", "i64[3]", "i64[3]", dims=[0, 1], low=-8, high=8), sample_input("f32[4, 9, 2]", "i64[3, 1]", dims=[1], low=-8, high=8),
        sample_input("bool[9, 9]", "i64[2, 1]", "i64[1, 3]", dims=[0, 1], low=0, high=9),
        sample_input("f32[9, 2, 9]", "i64[3]", "i64[3]", dims=[0, 2], low=0, high=9), sample_input("f32[2, 9, 8]", "i64[]", "i32[5]", dims=[1, 2], low=0, high=8),
        sample_input("f32[9, 3, 8]", "i64[]", "i32[5]", dims=[0, 2], low=0, high=8),
    ],
)  # fmt: skip
"""NumPy's advanced indexing by integers in dimensions `dims`; negative indices count from the end."""
