"""Conversions of views, and of operators that concatenate, split, pad and rearrange tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from compiler.frontend.conversions.index_tensors import clamp_positions, fold_if_static, positions, slice_positions
from compiler.frontend.promotion import SymbolicScalar, as_node, common_dtype
from compiler.frontend.registry import ConversionError, converts
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_expr import Dim, ceildiv, floordiv, maximum, minimum, product
from compiler.ir.types import boolean, i64


def canonicalize_dim(dim: int, rank: int) -> int:
    """Return `dim` counted from the front; a tensor of rank 0 counts as having one dimension."""
    return dim % max(rank, 1)


def canonicalize_dims(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return `dims` counted from the front and sorted; all dimensions if it is None or empty."""
    if dims is None or (not isinstance(dims, int) and not len(dims)):
        return tuple(range(rank))
    given = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted(canonicalize_dim(d, rank) for d in given)) if rank else ()


@converts(
    "aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.view_copy.default", "aten._reshape_alias.default",
    "aten._reshape_copy.default",
)  # fmt: skip
def view(x: Node, shape: Sequence[Dim], *strides: Any) -> Node:
    if -1 in shape:
        others = product(d for d in shape if d != -1)
        shape = [floordiv(x.type.numel, others) if d == -1 else d for d in shape]
    return x if tuple(shape) == x.shape else ops.reshape(x, shape=shape)


@converts("aten.permute.default", "aten.permute_copy.default")
def permute(x: Node, dims: Sequence[int]) -> Node:
    return ops.permute(x, dims=[canonicalize_dim(d, x.type.rank) for d in dims])


@converts("aten.transpose.int", "aten.transpose_copy.int", "aten.swapaxes.default")
def transpose(x: Node, a: int, b: int) -> Node:
    return ops.transpose(x, a, b) if x.type.rank else x


@converts("aten.t.default", "aten.mT.default", "aten.adjoint.default", "aten.t_copy.default")
def t(x: Node) -> Node:
    return ops.transpose(x, -1, -2) if x.type.rank > 1 else x


@converts("aten.movedim.int", "aten.movedim.intlist")
def movedim(x: Node, source: int | Sequence[int], target: int | Sequence[int]) -> Node:
    rank = x.type.rank
    moved = [canonicalize_dim(d, rank) for d in ((source,) if isinstance(source, int) else source)]
    targets = [canonicalize_dim(d, rank) for d in ((target,) if isinstance(target, int) else target)]
    order = [d for d in range(rank) if d not in moved]
    for position, d in sorted(zip(targets, moved, strict=True)):
        order.insert(position, d)
    return ops.permute(x, dims=order)


converts("aten.unsqueeze.default", "aten.unsqueeze_copy.default")(ops.unsqueeze)


@converts("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze_copy.default")
def squeeze(x: Node, dims: int | Sequence[int] | None = None) -> Node:
    named = range(x.type.rank) if dims is None else canonicalize_dims(dims, x.type.rank) if dims != () else ()
    shape = tuple(d for k, d in enumerate(x.shape) if not (k in named and d == 1))
    return ops.as_shape(x, shape)


@converts("aten.flatten.using_ints")
def flatten(x: Node, start_dim: int = 0, end_dim: int = -1) -> Node:
    a, b = canonicalize_dim(start_dim, x.type.rank), canonicalize_dim(end_dim, x.type.rank)
    return view(x, (*x.shape[:a], product(x.shape[a : b + 1]), *x.shape[b + 1 :]))


@converts("aten.unflatten.int")
def unflatten(x: Node, dim: int, sizes: Sequence[Dim]) -> Node:
    d = canonicalize_dim(dim, x.type.rank)
    if -1 in sizes:
        inferred = floordiv(x.shape[d], product(s for s in sizes if s != -1))
        sizes = [inferred if s == -1 else s for s in sizes]
    return view(x, (*x.shape[:d], *sizes, *x.shape[d + 1 :]))


@converts("aten.expand.default", "aten.expand_copy.default", "aten.broadcast_to.default")
def expand(x: Node, shape: Sequence[Dim], implicit: bool = False) -> Node:
    padded = (1,) * (len(shape) - x.type.rank) + x.shape
    full = tuple(old if new == -1 else new for old, new in zip(padded, shape, strict=True))
    return x if full == x.shape else ops.expand(x, shape=full)


@converts("aten.expand_as.default", "aten.view_as.default")
def expand_or_view_as(x: Node, other: Node) -> Node:
    return expand(x, other.shape) if x.type.numel != other.type.numel else view(x, other.shape)


def clip_slice_bound(position: Dim | None, extent: Dim, default: Dim) -> Dim:
    """Return a slice bound counted from the front, clipped to 0..extent as in Python."""
    if position is None:
        return default
    if isinstance(position, int) and isinstance(extent, int):
        return min(max(position + extent if position < 0 else position, 0), extent)
    if isinstance(position, int):
        if position >= 1 << 62:
            return extent
        return position + extent if position < 0 else position  # in range: guarded by PyTorch
    return position


def _slice_range(x: Node, dim: int, start: Dim | None, end: Dim | None, step: int) -> tuple[int, Dim, Dim]:
    """Return dimension, first index and number of elements of a slice."""
    d = canonicalize_dim(dim, x.type.rank)
    first, last = clip_slice_bound(start, x.shape[d], 0), clip_slice_bound(end, x.shape[d], x.shape[d])
    count = floordiv(last - first + step - 1, step)
    return d, first, max(count, 0) if isinstance(count, int) else count


@converts("aten.slice.Tensor", "aten.slice_copy.Tensor", needs_shape=True, signed_indices=True)
def slice_(
    x: Node, dim: int = 0, start: Dim | SymbolicScalar | None = None, end: Dim | SymbolicScalar | None = None, step: int = 1,
    shape: Sequence[Dim] = (),
) -> Node:  # fmt: skip
    if isinstance(start, SymbolicScalar) or isinstance(end, SymbolicScalar):
        d = canonicalize_dim(dim, x.type.rank)
        return ops.take(x, slice_positions(start, end, step, x.shape[d], shape[d]), dim=d)
    d, first, count = _slice_range(x, dim, start, end, step)
    if first == 0 and step == 1 and count == x.shape[d]:
        return x
    return ops.slice_(x, dim=d, start=first if count != 0 else 0, size=count, step=step)


@converts("aten.slice_scatter.default")
def slice_scatter(
    x: Node, new: Node, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1
) -> Node:
    d, first, _ = _slice_range(x, dim, start, end, step)
    return ops.slice_scatter(x, ops.as_dtype(new, x.dtype), dim=d, start=first, step=step)


@converts("aten.select_scatter.default")
def select_scatter(x: Node, new: Node, dim: int, index: Dim) -> Node:
    d = canonicalize_dim(dim, x.type.rank)
    start = index + x.shape[d] if isinstance(index, int) and index < 0 else index
    return ops.slice_scatter(x, ops.unsqueeze(ops.as_dtype(new, x.dtype), d), dim=d, start=start)


def inverse_permute(x: Node, order: Sequence[int]) -> Node:
    """Undo the permutation of the dimensions of `x` by `order`."""
    return ops.permute(x, dims=[order.index(d) for d in range(len(order))])


@converts("aten.diagonal_scatter.default")
def diagonal_scatter(x: Node, new: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """Replace a diagonal of the matrices along two dimensions of `x` by the last dimension of `new`."""
    rank = x.type.rank
    a, b = canonicalize_dim(dim1, rank), canonicalize_dim(dim2, rank)
    order = [d for d in range(rank) if d not in (a, b)] + [a, b]
    rows, columns = x.shape[a], x.shape[b]
    first, count = max(-offset, 0), new.shape[-1]
    ends = [0] * (rank - 2)
    lines = ops.pad(ops.as_dtype(new, x.dtype), before=[*ends, first], after=[*ends, rows - first - count])
    row = ops.reshape(ops.iota(size=rows), shape=(rows, 1))
    on_diagonal = ops.eq(ops.add(row, offset) if offset else row, ops.iota(size=columns))
    result = ops.where(on_diagonal, ops.unsqueeze(lines, -1), ops.permute(x, dims=order))
    return inverse_permute(result, order)


@converts("aten.resize.default")
def resize(x: Node, shape: Sequence[int]) -> Node:
    """Keep the first elements in memory order; new ones are zero (undefined in PyTorch)."""
    old_size, new_size = x.type.numel, product(shape)
    if not (isinstance(old_size, int) and isinstance(new_size, int)):
        raise ConversionError("resize to a symbolic size is not supported")
    return view(constant_pad(view(x, (old_size,)), (0, new_size - old_size)), shape)


@converts("aten.select.int", "aten.select_copy.int", signed_indices=True)
def select(x: Node, dim: int, index: Dim | SymbolicScalar) -> Node:
    d = canonicalize_dim(dim, x.type.rank)
    if isinstance(index, SymbolicScalar):
        return ops.index(x, index.node, dims=(d,))
    return ops.select(x, d, index + x.shape[d] if isinstance(index, int) and index < 0 else index)


@converts("aten.narrow.default", "aten.narrow_copy.default", signed_indices=True)
def narrow(x: Node, dim: int, start: Dim | SymbolicScalar, length: Dim) -> Node:
    if isinstance(start, SymbolicScalar):
        return ops.index(x, positions(length, start), dims=(canonicalize_dim(dim, x.type.rank),))
    end = x.shape[dim] + start + length if isinstance(start, int) and start < 0 else start + length
    return slice_(x, dim, start, end)


@converts("aten.unbind.int", "aten.unbind_copy.int")
def unbind(x: Node, dim: int = 0) -> tuple[Node, ...]:
    d = canonicalize_dim(dim, x.type.rank)
    return tuple(ops.select(x, d, k) for k in range(_require_static(x.shape[d], "unbind")))


def _require_static(d: Dim, operator: str) -> int:
    if not isinstance(d, int):
        raise ConversionError(f"{operator} along dynamic size {d} has a dynamic number of results")
    return d


@converts("aten.split_with_sizes.default", "aten.split.sizes", "aten.split_with_sizes_copy.default")
def split_sizes(x: Node, sizes: Sequence[Dim], dim: int = 0) -> tuple[Node, ...]:
    d, start, parts = canonicalize_dim(dim, x.type.rank), 0, []
    for size in sizes:
        parts.append(ops.slice_(x, dim=d, start=start, size=size))
        start = start + size  # type: ignore[assignment]
    return tuple(parts)


@converts("aten.split.Tensor", "aten.split_copy.Tensor")
def split(x: Node, size: int, dim: int = 0) -> tuple[Node, ...]:
    extent = _require_static(x.shape[canonicalize_dim(dim, x.type.rank)], "split")
    return split_sizes(x, [min(size, extent - start) for start in range(0, extent, size)] or [0], dim)


@converts("aten.chunk.default", "aten.unsafe_chunk.default")
def chunk(x: Node, chunks: int, dim: int = 0) -> tuple[Node, ...]:
    extent = x.shape[canonicalize_dim(dim, x.type.rank)]
    size = ceildiv(extent, chunks)
    if isinstance(extent, int) and isinstance(size, int):
        return split(x, max(size, 1), dim)
    # of a dynamic extent PyTorch has as many results as its range allows, at most `chunks`; nobody reads the others
    sizes = [size, *(minimum(size, extent - k * size) for k in range(1, chunks - 1)), extent - (chunks - 1) * size]
    return split_sizes(x, sizes[:chunks], dim)


@converts("aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def cat(tensors: Sequence[Node], dim: int = 0) -> Node:
    dtype = common_dtype(*tensors)
    parts = [x for x in tensors if x.shape != (0,)] or tensors[:1]  # PyTorch ignores empty vectors
    return ops.cat(*(ops.as_dtype(x, dtype) for x in parts), dim=canonicalize_dim(dim, parts[0].type.rank))


@converts("aten.stack.default", "aten._stack.default")
def stack(tensors: Sequence[Node], dim: int = 0) -> Node:
    d = canonicalize_dim(dim, tensors[0].type.rank + 1)
    return cat([ops.unsqueeze(x, d) for x in tensors], d)


@converts("aten.flip.default")
def flip(x: Node, dims: Sequence[int]) -> Node:
    return ops.flip(x, dims=canonicalize_dims(dims, x.type.rank)) if len(dims) and x.type.rank else x


@converts("aten.roll.default")
def roll(x: Node, shifts: Sequence[int], dims: Sequence[int] = ()) -> Node:
    if not len(dims):
        return view(roll(view(x, (x.type.numel,)), shifts, [0]), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        d = canonicalize_dim(dim, x.type.rank)
        start = -shift % x.shape[d] if x.shape[d] != 0 else 0
        if start != 0:
            tail = ops.slice_(x, dim=d, start=start, size=x.shape[d] - start)
            x = ops.cat(tail, ops.slice_(x, dim=d, size=start), dim=d)
    return x


@converts("aten.repeat.default", "aten.tile.default")
def repeat(x: Node, times: Sequence[Dim]) -> Node:
    times = (1,) * (x.type.rank - len(times)) + tuple(times)
    shape = (1,) * (len(times) - x.type.rank) + x.shape
    interleaved = view(x, [d for size in shape for d in (1, size)])
    wide = expand(interleaved, [d for pair in zip(times, shape, strict=True) for d in pair])
    return view(wide, [n * size for n, size in zip(times, shape, strict=True)])


@converts("aten.repeat_interleave.self_int")
def repeat_interleave(x: Node, repeats: Dim, dim: int | None = None, output_size: Dim | None = None) -> Node:
    if dim is None:
        return repeat_interleave(view(x, (x.type.numel,)), repeats, 0)
    d = canonicalize_dim(dim, x.type.rank)
    unsqueezed = ops.unsqueeze(x, d + 1)
    wide = expand(unsqueezed, (*x.shape[: d + 1], repeats, *x.shape[d + 1 :]))
    return view(wide, (*x.shape[:d], x.shape[d] * repeats, *x.shape[d + 1 :]))


def padding_pairs(padding: Sequence[Dim], rank: int) -> list[tuple[Dim, Dim]]:
    """Return (low, high) padding of each dimension from PyTorch's list, which starts at the last dimension."""
    pairs = [(padding[k], padding[k + 1]) for k in range(0, len(padding), 2)]
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


@converts("aten.constant_pad_nd.default")
def constant_pad(x: Node, padding: Sequence[Dim], value: float = 0) -> Node:
    """Pad with a constant; negative padding crops."""
    pairs = padding_pairs(padding, x.type.rank)
    for d, (before, after) in enumerate(pairs):
        crop = [-p if isinstance(p, int) and p < 0 else 0 for p in (before, after)]
        if any(crop):
            x = ops.slice_(x, dim=d, start=crop[0], size=x.shape[d] - crop[0] - crop[1])
    grown = [tuple(0 if isinstance(p, int) and p < 0 else p for p in pair) for pair in pairs]
    if all(p == 0 for pair in grown for p in pair):
        return x
    number: Any = bool(value) if x.dtype == boolean else value if x.dtype.is_float else int(value)
    return ops.pad(x, before=[b for b, _ in grown], after=[a for _, a in grown], value=number)


def _pad_with_edges(x: Node, padding: Sequence[Dim], edges: Any) -> Node:
    """Extend each padded dimension at its ends by `edges(x, dimension, before, after)`."""
    if x.type.numel == 0:
        return constant_pad(x, padding)
    for d, (before, after) in enumerate(padding_pairs(padding, x.type.rank)):
        if not (isinstance(before, int) and isinstance(after, int)) or min(before, after) < 0:
            x = _pad_by_index(x, d, before, after, edges)
            continue
        front, back = edges(x, d, before, after)
        parts = [part for part, size in ((front, before), (x, 1), (back, after)) if size]
        x = ops.cat(*parts, dim=d) if len(parts) > 1 else x
    return x


def _pad_by_index(x: Node, d: int, before: Dim, after: Dim, edges: Any) -> Node:
    """Pad dimension `d` by a gather of computed positions; also for padding that is symbolic or negative."""
    n = x.shape[d]
    source, last = positions(n + before + after, -before), as_node(n - 1, i64)
    if edges is _reflected_edges:
        source = ops.sub(last, ops.abs_(ops.sub(last, ops.abs_(source))))
    elif edges is _replicated_edges:
        source = clamp_positions(source, n)
    else:  # wrap around the elements that are not cropped
        low, period = as_node(maximum(-before, 0), i64), n + minimum(before, 0) + minimum(after, 0)
        source = ops.add(ops.remainder(ops.sub(source, low), as_node(period, i64)), low)
    return ops.take(x, fold_if_static(source, n, before, after), dim=d)


def _reflected_edges(x: Node, d: int, before: int, after: int) -> tuple[Node, Node]:
    n = x.shape[d]
    front = ops.flip(ops.slice_(x, dim=d, start=1 if before else 0, size=before), dims=[d])
    return front, ops.flip(ops.slice_(x, dim=d, start=n - 1 - after if after else 0, size=after), dims=[d])


def _replicated_edges(x: Node, d: int, before: int, after: int) -> tuple[Node, Node]:
    def edge(start: Dim, size: int) -> Node:
        return ops.expand(ops.slice_(x, dim=d, start=start, size=1), shape=(*x.shape[:d], size, *x.shape[d + 1 :]))

    return edge(0, before), edge(x.shape[d] - 1, after)


def _wrapped_edges(x: Node, d: int, before: int, after: int) -> tuple[Node, Node]:
    front = ops.slice_(x, dim=d, start=x.shape[d] - before if before else 0, size=before)
    return front, ops.slice_(x, dim=d, size=after)


for _dims in ("1d", "2d", "3d"):
    converts(f"aten.reflection_pad{_dims}.default")(partial(_pad_with_edges, edges=_reflected_edges))
    converts(f"aten.replication_pad{_dims}.default")(partial(_pad_with_edges, edges=_replicated_edges))


@converts("aten.pad.default")
def pad(x: Node, padding: Sequence[int], mode: str = "constant", value: float | None = None) -> Node:
    if mode == "constant":
        return constant_pad(x, padding, 0 if value is None else value)
    edges = {"reflect": _reflected_edges, "replicate": _replicated_edges, "circular": _wrapped_edges}
    return _pad_with_edges(x, padding, edges[mode])


@converts("aten.pixel_shuffle.default")
def pixel_shuffle(x: Node, factor: int) -> Node:
    *front, c, h, w = x.shape
    k = len(front)
    split = view(x, (*front, floordiv(c, factor * factor), factor, factor, h, w))
    mixed = ops.permute(split, dims=(*range(k), k, k + 3, k + 1, k + 4, k + 2))
    return view(mixed, (*front, floordiv(c, factor * factor), h * factor, w * factor))


@converts("aten.pixel_unshuffle.default")
def pixel_unshuffle(x: Node, factor: int) -> Node:
    *front, c, h, w = x.shape
    k = len(front)
    split = view(x, (*front, c, floordiv(h, factor), factor, floordiv(w, factor), factor))
    mixed = ops.permute(split, dims=(*range(k), k, k + 2, k + 4, k + 1, k + 3))
    return view(mixed, (*front, c * factor * factor, floordiv(h, factor), floordiv(w, factor)))


@converts("aten.channel_shuffle.default")
def channel_shuffle(x: Node, groups: int) -> Node:
    b, c, *spatial = x.shape
    return view(ops.transpose(view(x, (b, groups, floordiv(c, groups), *spatial)), 1, 2), x.shape)


@converts("aten.unfold.default", "aten.unfold_copy.default")
def unfold(x: Node, dim: int, size: int, step: int) -> Node:
    return ops.unfold(x, dim=canonicalize_dim(dim, x.type.rank), size=size, step=step)


@converts("aten.im2col.default")
def im2col(
    x: Node, size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Node:
    """Return the windows of images, each as a column."""
    windows = constant_pad(x, (padding[1], padding[1], padding[0], padding[0]))
    for k in range(2):
        reach = dilation[k] * (size[k] - 1) + 1
        windows = unfold(windows, x.type.rank - 2 + k, reach, stride[k])
        windows = slice_(windows, -1, 0, reach, dilation[k])
    *batch, channels, rows, columns, _, _ = windows.shape
    taps_first = movedim(windows, (-2, -1), (-4, -3))
    return view(taps_first, (*batch, channels * size[0] * size[1], rows * columns))


@converts("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    a, b = canonicalize_dim(dim1, x.type.rank), canonicalize_dim(dim2, x.type.rank)
    size = maximum(minimum(x.shape[a] + min(offset, 0), x.shape[b] - max(offset, 0)), 0)
    moved = movedim(x, (a, b), (-2, -1))
    steps = [positions(size, start) for start in (max(-offset, 0), max(offset, 0))]
    return ops.index(moved, *steps, dims=(x.type.rank - 2, x.type.rank - 1))


@converts("aten.as_strided.default", "aten.as_strided_copy.default")
def as_strided(
    x: Node, size: Sequence[Dim], stride: Sequence[Dim], offset: Dim | None = None, *, order: Sequence[int]
) -> Node:
    """View the memory of dense `x`, whose dimensions the importer gives from outermost to innermost as `order`."""
    x = ops.permute(x, dims=tuple(order))
    dense = [product(size[k + 1 :]) for k in range(len(size))]
    # a dimension of size 1 may have any stride
    if tuple(size) == x.shape and all(n == 1 or a == b for n, a, b in zip(size, stride, dense, strict=True)):
        return x
    flat = view(x, (x.type.numel,))
    return ops.as_strided(flat, shape=tuple(size), strides=tuple(stride), offset=offset or 0)


@converts("aten.as_strided_scatter.default")
def as_strided_scatter(
    x: Node, new: Node, size: Sequence[Dim], stride: Sequence[Dim], offset: Dim | None = None, *, order: Sequence[int]
) -> Node:
    """Replace the elements of `x` that `as_strided` selects by those of `new`."""
    x = ops.permute(x, dims=tuple(order))
    count, written = x.type.numel, product(size)
    indices = ops.as_strided(ops.iota(size=count), shape=tuple(size), strides=tuple(stride), offset=offset or 0)
    values = view(ops.as_dtype(new, x.dtype), (written,))
    flat = ops.scatter(view(x, (count,)), view(indices, (written,)), values, dim=0)
    return inverse_permute(view(flat, x.shape), order)
