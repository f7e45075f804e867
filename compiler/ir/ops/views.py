"""Views: index maps whose result elements are elements of the operand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import GuardedRead, IndexMap, Position
from compiler.ir.ops.rules import check_dims, check_positive_attrs, window_count
from compiler.ir.symbolic.index_expr import Dim, floordiv, mod, product
from compiler.ir.types import TensorType, broadcast_index, broadcast_shapes


def _reshape_type(s: Signature) -> TensorType:
    shape = s.attrs["shape"]
    old, new = s.types[0].numel, product(shape)
    if isinstance(old, int) and isinstance(new, int) and old != new:
        raise s.error(f"{old} elements cannot have shape {list(shape)}")
    return TensorType(s.types[0].dtype, shape)


def _reassociation_groups(source: Sequence[Dim], target: Sequence[Dim]) -> list[tuple[range, range]]:
    """Split two shapes into the shortest runs of dimensions with equal numbers of elements; no dimension is 1."""
    ends: dict[Dim, int] = {}
    total: Dim = 1
    for k, d in enumerate(source):
        total = total * d
        ends[total] = k + 1
    groups: list[tuple[range, range]] = []
    total, at, start = 1, 0, 0
    for k, d in enumerate(target):
        total = total * d
        last = k + 1 == len(target)
        end = len(source) if last else ends.get(total)
        if end is not None and end > at:
            groups.append((range(at, end), range(start, k + 1)))
            at, start = end, k + 1
    return groups


def linearize_index(index: Sequence[Dim], shape: Sequence[Dim]) -> Dim:
    """Return the row-major number of element `index`."""
    total: Dim = 0
    for i, size in zip(index, shape, strict=True):
        total = total * size + i
    return total


def delinearize_index(number: Dim, shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return the index of element `number` in row-major order."""
    index: list[Dim] = []
    for k in range(len(shape)):
        inner = product(shape[k + 1 :])
        quotient = number if inner == 1 else floordiv(number, inner)
        index.append(quotient if k == 0 else mod(quotient, shape[k]))
    return tuple(index)


@lru_cache(maxsize=65536)
def reshape_index(index: Position, source: tuple[Dim, ...], target: tuple[Dim, ...]) -> Position:
    """Return the index in shape `target` of element `index` of shape `source`, both in row-major order."""
    if 0 in source:
        return (0,) * len(target)
    old, new = ([k for k, d in enumerate(shape) if d != 1] for shape in (source, target))  # dimensions other than 1
    sizes, indices = [source[k] for k in old], [index[k] for k in old]
    result: list[Dim] = [0] * len(target)
    for run, new_run in _reassociation_groups(sizes, [target[k] for k in new]):
        number = linearize_index([indices[k] for k in run], [sizes[k] for k in run])
        for k, i in zip(new_run, delinearize_index(number, [target[new[n]] for n in new_run]), strict=True):
            result[new[k]] = i
    return tuple(result)


reshape = declare_op(
    "reshape", "x: any",
    IndexMap(
        reads=lambda n, i: (GuardedRead(0, reshape_index(i, n.shape, n.operands[0].shape)),),
        inverse=lambda n, j: reshape_index(j, n.operands[0].shape, n.shape),
    ),
    type_rule=_reshape_type, attrs={"shape": REQUIRED},
    reference=lambda x, shape: x.reshape(shape),
    samples=[
        sample_input("f32[4, 6]", shape=[2, 12]), sample_input("f32[4, 6]", shape=[24]), sample_input("i64[2, 3, 4]", shape=[6, 4]),
        sample_input("f32[2, 3, 4]", shape=[2, 1, 12, 1]), sample_input("bool[1, 1]", shape=[]), sample_input("f32[]", shape=[1, 1]),
        sample_input("f32[0, 3]", shape=[5, 0]), sample_input("f32[6, 4]", shape=[4, 6]), sample_input("f32[2, 6, 5]", shape=[2, 3, 2, 5]),
    ],
)  # fmt: skip


def as_shape(x: Node, shape: tuple[Dim, ...]) -> Node:
    """Return `x` reshaped to `shape`, or `x` itself if it has that shape."""
    return x if x.shape == shape else reshape(x, shape=shape)


def _permute_type(s: Signature) -> TensorType:
    dims, x = s.attrs["dims"], s.types[0]
    if sorted(dims) != list(range(x.rank)):
        raise s.error(f"{list(dims)} is not a permutation of the dimensions 0..{x.rank - 1}")
    return TensorType(x.dtype, tuple(x.shape[d] for d in dims))


permute = declare_op(
    "permute", "x: any",
    IndexMap(
        reads=lambda n, i: (GuardedRead(0, tuple(i[n.attrs["dims"].index(d)] for d in range(len(i)))),),
        inverse=lambda n, j: tuple(j[d] for d in n.attrs["dims"]),
    ),
    type_rule=_permute_type, attrs={"dims": REQUIRED},
    reference=lambda x, dims: x.permute(dims),
    samples=[
        sample_input("f32[4, 5]", dims=[1, 0]), sample_input("i64[2, 3, 4]", dims=[2, 0, 1]), sample_input("f32[2, 3, 4, 5]", dims=[0, 2, 1, 3]),
        sample_input("f32[0, 3]", dims=[1, 0]), sample_input("bool[]", dims=[]),
    ],
)  # fmt: skip


def _expand_type(s: Signature) -> TensorType:
    x, shape = s.types[0], s.attrs["shape"]
    try:
        is_expandable = broadcast_shapes(x.shape, shape) == tuple(shape)
    except ValueError:
        is_expandable = False
    if not is_expandable:
        raise s.error(f"shape {list(x.shape)} does not broadcast to {list(shape)}")
    return TensorType(x.dtype, shape)


expand = declare_op(
    "expand", "x: any",
    IndexMap(reads=lambda n, i: (GuardedRead(0, broadcast_index(n.operands[0].shape, i)),)),
    type_rule=_expand_type, attrs={"shape": REQUIRED},
    reference=lambda x, shape: x.expand(shape),
    samples=[
        sample_input("f32[4, 1]", shape=[4, 5]), sample_input("i64[]", shape=[2, 3]), sample_input("bool[3]", shape=[2, 3]), sample_input("f32[1]", shape=[0]),
        sample_input("f32[]", shape=[]),
    ],
)  # fmt: skip


def _slice_type(s: Signature) -> TensorType:
    x, dim, start, size, step = s.types[0], *(s.attrs[a] for a in ("dim", "start", "size", "step"))
    check_dims(s, [dim])
    extent = x.shape[dim]
    if all(isinstance(d, int) for d in (start, size, extent)) and size > 0:
        last = start + (size - 1) * step
        if not (0 <= start < extent and 0 <= last < extent):
            raise s.error(f"elements {start}..{last} of dimension {dim} are not all inside its extent of {extent}")
    return TensorType(x.dtype, (*x.shape[:dim], size, *x.shape[dim + 1 :]))


def _slice_source(n: Node, i: Position) -> Position:
    d = n.attrs["dim"]
    return (*i[:d], n.attrs["start"] + i[d] * n.attrs["step"], *i[d + 1 :])


def _slice_target(n: Node, j: Position) -> Position | None:
    d, step = n.attrs["dim"], n.attrs["step"]
    return (*j[:d], (j[d] - n.attrs["start"]) * step, *j[d + 1 :]) if abs(step) == 1 else None


def _slice_reference(x: torch.Tensor, dim: int, start: int, size: int, step: int) -> torch.Tensor:
    return x.index_select(dim, start + step * torch.arange(size))


slice_ = declare_op(
    "slice", "x: any", IndexMap(reads=lambda n, i: (GuardedRead(0, _slice_source(n, i)),), inverse=_slice_target),
    type_rule=_slice_type, attrs={"dim": REQUIRED, "start": 0, "size": REQUIRED, "step": 1},
    reference=_slice_reference,
    samples=[
        sample_input("f32[4, 5]", dim=1, start=1, size=3), sample_input("f32[9]", dim=0, start=0, size=5, step=2), sample_input("i64[3, 4]", dim=0, size=0),
        sample_input("bool[3, 4]", dim=0, start=2, size=1), sample_input("f32[7]", dim=0, start=6, size=7, step=-1),
    ],
)  # fmt: skip


def _flip_source(n: Node, i: Position) -> Position:
    return tuple(n.shape[k] - 1 - d if k in n.attrs["dims"] else d for k, d in enumerate(i))


def _flip_type(s: Signature) -> TensorType:
    check_dims(s, s.attrs["dims"])
    return TensorType(s.types[0].dtype, s.types[0].shape)


flip = declare_op(
    "flip", "x: any", IndexMap(reads=lambda n, i: (GuardedRead(0, _flip_source(n, i)),), inverse=_flip_source),
    type_rule=_flip_type, attrs={"dims": REQUIRED}, reference=lambda x, dims: x.flip(dims),
    samples=[sample_input("f32[4, 5]", dims=[0]), sample_input("i64[4, 5]", dims=[0, 1]), sample_input("f32[0]", dims=[0]), sample_input("bool[]", dims=[])],
)  # fmt: skip


def _unfold_type(s: Signature) -> TensorType:
    x, (dim, size, step, dilation) = s.types[0], (s.attrs[a] for a in ("dim", "size", "step", "dilation"))
    check_dims(s, [dim])
    check_positive_attrs(s)
    count = window_count(s, x.shape[dim], size, step, dilation)
    return TensorType(x.dtype, (*x.shape[:dim], count, *x.shape[dim + 1 :], size))


def _unfold_source(n: Node, i: Position) -> Position:
    d = n.attrs["dim"]
    return (*i[:d], i[d] * n.attrs["step"] + i[-1] * n.attrs["dilation"], *i[d + 1 : -1])


def _unfold_reference(x: torch.Tensor, dim: int, size: int, step: int, dilation: int) -> torch.Tensor:
    return x.unfold(dim, dilation * (size - 1) + 1, step)[..., ::dilation]


unfold = declare_op(
    "unfold", "x: any", IndexMap(reads=lambda n, i: (GuardedRead(0, _unfold_source(n, i)),)),
    type_rule=_unfold_type, attrs={"dim": REQUIRED, "size": REQUIRED, "step": 1, "dilation": 1}, reference=_unfold_reference,
    samples=[
        sample_input("f32[9]", dim=0, size=3, step=2), sample_input("f32[4, 8, 2]", dim=1, size=3), sample_input("i64[9]", dim=0, size=2, dilation=3),
        sample_input("f32[0, 5]", dim=1, size=2),
    ],
)  # fmt: skip
"""Windows of `size` elements along `dim`; the last dimension of the result is the position inside the window."""


def _as_strided_type(s: Signature) -> TensorType:
    x, shape, strides, offset = s.types[0], *(s.attrs[a] for a in ("shape", "strides", "offset"))
    if x.rank != 1 or len(shape) != len(strides):
        raise s.error("takes a vector, and one stride per dimension of the result")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    inside = not isinstance(last, int) or not isinstance(x.shape[0], int) or 0 in shape or last < x.shape[0]
    if not inside or any(isinstance(v, int) and v < 0 for v in (offset, *strides)):
        raise s.error(f"elements {offset}..{last} are not all inside its extent of {x.shape[0]}")
    return TensorType(x.dtype, tuple(shape))


def _as_strided_source(n: Node, i: Position) -> Position:
    steps = (k * stride for k, stride in zip(i, n.attrs["strides"], strict=True))
    return (sum(steps, n.attrs["offset"]),)


as_strided = declare_op(
    "as_strided", "x: any", IndexMap(reads=lambda n, i: (GuardedRead(0, _as_strided_source(n, i)),)),
    type_rule=_as_strided_type, attrs={"shape": REQUIRED, "strides": REQUIRED, "offset": 0},
    reference=lambda x, shape, strides, offset: x.clone(memory_format=torch.contiguous_format).as_strided(shape, strides, offset),
    samples=[
        sample_input("f32[9]", shape=[3, 4], strides=[2, 1], offset=1), sample_input("i64[6]", shape=[2, 3], strides=[1, 2]),
        sample_input("f32[4]", shape=[0, 3], strides=[1, 1]), sample_input("bool[4]", shape=[], strides=[], offset=2), sample_input("f32[3]", shape=[2, 3], strides=[0, 1]),
    ],
)  # fmt: skip
"""Result[i] = x[offset + sum of i[d] * strides[d]], in elements; results may overlap (`torch.as_strided`)."""


def transpose(x: Node, a: int, b: int) -> Node:
    """Exchange dimensions `a` and `b`; negative ones count from the end."""
    order = list(range(x.type.rank))
    order[a], order[b] = order[b], order[a]
    return permute(x, dims=order)


def unsqueeze(x: Node, dim: int) -> Node:
    """Insert a dimension of size 1 before dimension `dim`; a negative one counts from the end of the result."""
    at = dim + x.type.rank + 1 if dim < 0 else dim
    return reshape(x, shape=(*x.shape[:at], 1, *x.shape[at:]))


def select(x: Node, dim: int, index: Dim) -> Node:
    """Return element `index` along `dim`, without that dimension."""
    one = slice_(x, dim=dim, start=index, size=1)
    return reshape(one, shape=(*x.shape[:dim], *x.shape[dim + 1 :]))
