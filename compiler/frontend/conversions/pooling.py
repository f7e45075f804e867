"""Conversions of pooling and resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

from compiler.frontend.conversions.index_tensors import clamp_positions, fold_if_static, positions
from compiler.frontend.conversions.views import expand, view
from compiler.frontend.promotion import as_node, widen_half
from compiler.frontend.registry import converts, converts_spatial
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import lowest
from compiler.ir.symbolic.index_expr import Dim, ceildiv, floordiv, maximum, minimum, product
from compiler.ir.types import boolean, f32, f64, i64

IntOrInts = int | Sequence[int]


def per_dim(value: IntOrInts, count: int) -> tuple[int, ...]:
    """Return one entry per spatial dimension; a single value applies to all."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * count if len(values) == 1 else values


def _end_padding(
    x: Node, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], ceil: bool
) -> list[Dim]:
    """Return the padding after each spatial dimension; with `ceil`, enough for a partial last window.

    A window that would start in the padding after the input is dropped.
    """
    first, ends = x.type.rank - len(size), []
    for n, k, s, p, d in zip(x.shape[first:], size, stride, padding, dilation, strict=True):
        end: Dim = p
        if ceil:
            count = minimum(ceildiv(n + 2 * p - d * (k - 1) - 1, s) + 1, ceildiv(n + p, s))
            end = -minimum(n + p - (count - 1) * s - d * (k - 1) - 1, -p)
        ends.append(end)
    return ends


def _padded_window(
    x: Node, count: int, kernel: IntOrInts, stride: IntOrInts, padding: IntOrInts, dilation: IntOrInts, ceil: bool
) -> tuple[Node, Any]:
    size, pads, gaps = per_dim(kernel, count), per_dim(padding, count), per_dim(dilation, count)
    steps = per_dim(stride, count) if stride != () else size
    padded = ops.pad_spatial(x, pads, _end_padding(x, size, steps, pads, gaps, ceil), lowest(x.dtype))
    return padded, {"size": size, "stride": steps, "dilation": gaps}


@converts_spatial("aten.max_pool#d.default", 1, 2, 3)
def max_pool(
    count: int, x: Node, kernel: IntOrInts, stride: IntOrInts = (), padding: IntOrInts = 0, dilation: IntOrInts = 1, ceil_mode: bool = False
) -> Node:  # fmt: skip
    padded, window = _padded_window(x, count, kernel, stride, padding, dilation, ceil_mode)
    return ops.max_pool(padded, **window)


@converts_spatial("aten.max_pool#d_with_indices.default", 2, 3)
def max_pool_with_indices(
    count: int, x: Node, kernel: IntOrInts, stride: IntOrInts = (), padding: IntOrInts = 0, dilation: IntOrInts = 1, ceil_mode: bool = False
) -> tuple[Node, Node]:  # fmt: skip
    """Return the maxima, and the index of each in the flattened spatial dimensions of the unpadded input."""
    padded, window = _padded_window(x, count, kernel, stride, padding, dilation, ceil_mode)
    pooled, first = ops.max_pool(padded, **window), x.type.rank - count
    windows = padded
    for k, (size, step, gap) in enumerate(zip(*window.values(), strict=True)):
        windows = ops.unfold(windows, dim=first + k, size=size, step=step, dilation=gap)
    flat = view(windows, (*pooled.shape, prod(window["size"])))
    best = ops.argmax(flat, dim=pooled.type.rank)
    return pooled, _flat_index(best, x, window, per_dim(padding, count))


def _flat_index(best: Node, x: Node, window: Any, padding: Sequence[int]) -> Node:
    """Convert `best`, element numbers inside windows, to indices into the flattened spatial dimensions of `x`."""
    size, stride, dilation = window.values()
    count, first = len(size), x.type.rank - len(size)
    index: Node | None = None
    for k in range(count):
        inside = ops.floor_divide(best, prod(size[k + 1 :])) if k + 1 < count else best
        inside = ops.remainder(inside, size[k]) if k else inside
        start = ops.mul(ops.iota(size=best.shape[first + k]), stride[k])
        start = ops.reshape(ops.sub(start, padding[k]), shape=(best.shape[first + k], *(1,) * (count - 1 - k)))
        position = ops.add(ops.mul(inside, dilation[k]), start)
        size_k = x.shape[first + k]
        index = position if index is None else ops.add(ops.mul(index, as_node(size_k, index.dtype)), position)
    assert index is not None
    return index


@converts_spatial("aten.avg_pool#d.default", 1, 2, 3)
def avg_pool(
    count: int, x: Node, kernel: IntOrInts, stride: IntOrInts = (), padding: IntOrInts = 0, ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:  # fmt: skip
    size, pads, ones = per_dim(kernel, count), per_dim(padding, count), (1,) * count
    steps = per_dim(stride, count) if stride != () else size
    ends, first = _end_padding(x, size, steps, pads, ones, ceil_mode), x.type.rank - count
    window: dict[str, Any] = {"size": size, "stride": steps, "dilation": ones}
    wide = widen_half(x)
    total = ops.sum_pool(ops.pad_spatial(wide, pads, ends), **window)
    if divisor_override is not None:
        return ops.as_dtype(ops.div(total, float(divisor_override)), x.dtype)
    extra = [e - p for e, p in zip(ends, pads, strict=True)]
    if all(p == 0 for p in (*pads, *extra)) or (count_include_pad and not any(extra)):
        return ops.as_dtype(ops.div(total, float(prod(size))), x.dtype)
    counted = pads if count_include_pad else (0,) * count  # padding that counts, on either side
    sizes = [n + 2 * c for n, c in zip(x.shape[first:], counted, strict=True)]
    members = ops.full((*(1,) * first, *sizes), 1.0, wide.dtype)
    low, high = ([p - c for p, c in zip(side, counted, strict=True)] for side in (pads, ends))
    members = ops.pad_spatial(members, low, high)
    return ops.as_dtype(ops.div(total, ops.sum_pool(members, **window)), x.dtype)


def _adaptive_pool(x: Node, target: Sequence[int | None], reduce: Any) -> Node:
    """Pool each spatial dimension to its `target` size (None: unchanged) by `reduce(x, dim)`, which keeps `dim`."""
    first = x.type.rank - len(target)
    for d, m in enumerate(target, first):
        n = x.shape[d]
        if m is None or m == n:
            continue
        if m == 1:
            x = reduce(x, d)
        elif isinstance(m, int):
            x = _adaptive_pool_dim(x, d, n, m, reduce)
        else:
            x = _average_of_windows(x, d, n, m)
    return x


def _average_of_windows(x: Node, d: int, n: Dim, m: Dim) -> Node:
    """Average dimension `d` over `m` windows, where `m` may be symbolic."""
    source, valid = _adaptive_windows(n, m)
    inside = ops.reshape(valid, shape=(*valid.shape, *(1,) * (x.type.rank - 1 - d)))
    windows = ops.where(inside, ops.take(x, source, dim=d), as_node(0, x.dtype))
    members = ops.sum_(ops.as_dtype(inside, x.dtype), dims=(1,))
    return ops.div(ops.sum_(windows, dims=(d + 1,)), members)


def _adaptive_pool_dim(x: Node, d: int, n: Dim, m: int, reduce: Any) -> Node:
    """Pool dimension `d` from `n` to `m`: windows of equal size if `m` divides `n`, else one slice per window."""
    if n % m == 0:
        windows = view(x, (*x.shape[:d], m, n // m, *x.shape[d + 1 :]))
        reduced = reduce(windows, d + 1)
        return view(reduced, (*x.shape[:d], m, *x.shape[d + 1 :]))
    bounds = [(j * n // m, ceildiv((j + 1) * n, m)) for j in range(m)]
    return ops.cat(*(reduce(ops.slice_(x, dim=d, start=a, size=b - a), d) for a, b in bounds), dim=d)


def _adaptive_average(x: Node, target: Sequence[int]) -> Node:
    wide = widen_half(x)
    if all(t == 1 for t in target):
        pooled = ops.mean(wide, dims=tuple(range(x.type.rank - len(target), x.type.rank)), keepdim=True)
    else:
        pooled = _adaptive_pool(wide, target, lambda y, d: ops.mean(y, dims=(d,), keepdim=True))
    return ops.as_dtype(pooled, x.dtype)


@converts(
    "aten.adaptive_avg_pool1d.default", "aten.adaptive_avg_pool2d.default", "aten.adaptive_avg_pool3d.default",
    "aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default",
)  # fmt: skip
def adaptive_avg_pool(x: Node, output_size: Sequence[int]) -> Node:
    return _adaptive_average(x, output_size)


def window_bounds(n: Dim, m: Dim) -> tuple[Node, Node]:
    """Return begin and (exclusive) end of each of the `m` adaptive windows over `n` elements, i64[m]."""

    def bound(steps: Node, rounding: Dim) -> Node:
        return ops.floor_divide(ops.add(ops.mul(steps, as_node(n, i64)), as_node(rounding, i64)), as_node(m, i64))

    return bound(positions(m), 0), bound(positions(m, 1), m - 1)


def _adaptive_windows(n: Dim, m: Dim) -> tuple[Node, Node]:
    """Return positions i64[m, w] and validity bool[m, w] of `m` windows over `n` elements; w bounds their width."""
    low, high = (ops.unsqueeze(b, 1) for b in window_bounds(n, m))
    position = ops.add(low, positions(ceildiv(n, m) if n % m == 0 else ceildiv(n, m) + 1))
    return fold_if_static(clamp_positions(position, n), n, m), fold_if_static(ops.lt(position, high), n, m)


@converts_spatial("aten.adaptive_max_pool#d.default", 2, 3)
def adaptive_max_pool(count: int, x: Node, output_size: Sequence[int]) -> tuple[Node, Node]:
    """Return the maximum of each window, and its index into the flattened spatial dimensions."""
    first = x.type.rank - count
    windows, valid, index = x, ops.full((), True, boolean), ops.full((), 0, i64)
    for k, m in enumerate(output_size):
        n, shape = x.shape[first + k], [1] * (2 * count)
        if m == 1:
            shape[count + k] = n
            windows, position = ops.unsqueeze(windows, first + 2 * k), ops.iota(size=n)
        else:
            position, inside = _adaptive_windows(n, m)
            shape[k], shape[count + k] = position.shape
            windows = ops.take(windows, position, dim=first + 2 * k)
            valid = valid if n % m == 0 else ops.and_(valid, ops.reshape(inside, shape=tuple(shape)))
        index = ops.add(ops.mul(index, as_node(n, i64)), ops.reshape(position, shape=tuple(shape)))
    window_dims, inner_dims = (range(first + k, first + 2 * count, 2) for k in (0, 1))
    windows = ops.permute(windows, dims=[*range(first), *window_dims, *inner_dims])
    windows = ops.where(valid, windows, as_node(lowest(x.dtype), x.dtype))
    flat = (*windows.shape[: first + count], product(windows.shape[first + count :]))
    best = ops.argmax(view(windows, flat), dim=first + count)
    indices = ops.gather(view(expand(index, windows.shape), flat), ops.unsqueeze(best, -1), dim=first + count)
    if all(isinstance(m, int) for m in output_size):
        pooled = _adaptive_pool(x, output_size, lambda y, d: ops.amax(y, dims=(d,), keepdim=True))
    else:
        pooled = ops.amax(view(windows, flat), dims=(first + count,))
    return pooled, view(indices, best.shape)


ResizeDim: TypeAlias = Callable[[Node, int, Dim, Dim, int], Node]
"""Function (x, d, n, m, k) that resizes dimension `d`, spatial dimension `k`, from `n` elements to `m`."""


def _resize_dims(
    x: Node, target: Sequence[Dim], scales: Sequence[float | None], resize: ResizeDim, upscale: Callable[[Node, int, int], Node] | None
) -> Node:  # fmt: skip
    """Resize each spatial dimension; `upscale(x, d, factor)`, if given, handles integer factors of symbolic sizes."""
    first = x.type.rank - len(target)
    for d, (m, scale) in enumerate(zip(target, scales, strict=True), first):
        n = x.shape[d]
        if m == n:
            continue
        static = isinstance(n, int) and isinstance(m, int)
        factor = None if static else _integer_factor(n, m, scale)
        x = upscale(x, d, factor) if upscale and factor else resize(x, d, n, m, d - first)
    return x


def _integer_factor(n: Dim, m: Dim, scale: float | None) -> int | None:
    """Return m / n if it is an integer and agrees with `scale`, else None."""
    factor = floordiv(m, n)
    return factor if isinstance(factor, int) and n * factor == m and scale in (None, factor) else None


@converts("aten.upsample_nearest1d.default", "aten.upsample_nearest2d.default", "aten.upsample_nearest3d.default")
def upsample_nearest(x: Node, size: Sequence[Dim], *scales: float | None) -> Node:
    scales = scales or (None,) * len(size)

    def resize(x: Node, d: int, n: Dim, m: Dim, k: int) -> Node:
        if factor := _integer_factor(n, m, scales[k]):
            return _repeat_elements(x, d, factor)
        target = ops.as_dtype(positions(m), f32)
        source = ops.floor(ops.mul(target, ops.as_dtype(_sampling_step(n, m, scales[k]), f32)))
        return ops.take(x, fold_if_static(clamp_positions(ops.as_dtype(source, i64), n), n, m), dim=d)

    return _resize_dims(x, size, scales, resize, _repeat_elements)


@converts("aten.upsample_nearest1d.vec", "aten.upsample_nearest2d.vec", "aten.upsample_nearest3d.vec", needs_shape=True)
def upsample_nearest_by_factors(x: Node, size: Any, factors: Sequence[float] | None, *, shape: Sequence[Dim]) -> Node:
    return upsample_nearest(x, shape[2:], *(factors or ()))


def _sampling_step(n: Dim, m: Dim, scale: float | None) -> Node:
    """Return the distance of two result elements in source elements, n / m or 1 / scale, f64."""
    return as_node(1.0 / scale, f64) if scale else ops.div(as_node(n, f64), as_node(m, f64))


def _repeat_elements(x: Node, d: int, times: int) -> Node:
    """Repeat each element along dimension `d`."""
    repeated = ops.expand(ops.unsqueeze(x, d + 1), shape=(*x.shape[: d + 1], times, *x.shape[d + 1 :]))
    return view(repeated, (*x.shape[:d], x.shape[d] * times, *x.shape[d + 1 :]))


@converts("aten.upsample_linear1d.default", "aten.upsample_bilinear2d.default", "aten.upsample_trilinear3d.default")
def upsample_linear(x: Node, size: Sequence[Dim], align_corners: bool, *scales: float | None) -> Node:
    """Interpolate linearly between the two nearest elements, one dimension after the other."""
    scales = scales or (None,) * len(size)

    def resize(x: Node, d: int, n: Dim, m: Dim, k: int) -> Node:
        target = ops.as_dtype(positions(m), f64)
        if align_corners:
            source = ops.mul(target, _sampling_step(n - 1, maximum(m - 1, 1), None))
        else:
            source = ops.maximum(ops.sub(ops.mul(ops.add(target, 0.5), _sampling_step(n, m, scales[k])), 0.5), 0.0)
        low = clamp_positions(ops.as_dtype(source, i64), n)
        a, b = (ops.take(x, fold_if_static(p, n, m), dim=d) for p in (low, clamp_positions(ops.add(low, 1), n)))
        fraction = fold_if_static(ops.as_dtype(ops.sub(source, ops.as_dtype(low, f64)), f32), n, m)
        weight = ops.reshape(fraction, shape=(m, *(1,) * (x.type.rank - 1 - d)))
        near, far = ops.mul(a, ops.as_dtype(ops.sub(1.0, weight), x.dtype)), ops.mul(b, ops.as_dtype(weight, x.dtype))
        return ops.add(near, far)

    upscale = None if align_corners else _interpolate_integer_factor
    resized = _resize_dims(widen_half(x), size, scales, resize, upscale)
    return ops.as_dtype(resized, x.dtype)


@converts(
    "aten.upsample_linear1d.vec", "aten.upsample_bilinear2d.vec", "aten.upsample_trilinear3d.vec", needs_shape=True
)
def upsample_linear_by_factors(
    x: Node, size: Any, align_corners: bool, factors: Sequence[float] | None, *, shape: Sequence[Dim]
) -> Node:
    return upsample_linear(x, shape[2:], align_corners, *(factors or ()))


def _interpolate_integer_factor(x: Node, d: int, times: int) -> Node:
    """Upscale dimension `d` linearly by the factor `times`.

    Result element j of each source element has the same two interpolation weights everywhere.
    """
    n = x.shape[d]
    first, last = (ops.slice_(x, dim=d, start=start, size=1) for start in (0, n - 1))
    padded, phases = ops.cat(first, x, last, dim=d), []
    for j in range(times):
        low, fraction = divmod((j + 0.5) / times + 0.5, 1.0)
        near, far = (ops.slice_(padded, dim=d, start=int(low) + k, size=n) for k in (0, 1))
        weights = (as_node(w, x.dtype) for w in (1.0 - fraction, fraction))
        phases.append(ops.unsqueeze(ops.add(*map(ops.mul, (near, far), weights)), d + 1))
    return view(ops.cat(*phases, dim=d + 1), (*x.shape[:d], n * times, *x.shape[d + 1 :]))
