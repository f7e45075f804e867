"""Pooling and resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

from compiler.frontend.conversions.index_tensors import clamp_positions, fold_if_static, positions
from compiler.frontend.conversions.views import expand, view
from compiler.frontend.promotion import as_node
from compiler.frontend.registry import ConversionError, converts
from compiler.frontend.sympy_conversion import exact_ratio
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import lowest
from compiler.ir.symbolic.index_expr import Dim, ceildiv, floordiv, maximum, minimum, product
from compiler.ir.types import boolean, f32, f64, i64

IntOrInts = int | Sequence[int]


def per_dim(value: IntOrInts, count: int) -> tuple[int, ...]:
    """One entry per window dimension; a single one serves all."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * count if len(values) == 1 else values


def _end_padding(
    x: Node, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], ceil: bool
) -> list[Dim]:
    """Padding after each dimension, enough for the last window where sizes round up.

    A window that would start in the padding after the input is left out.
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


def _make_max_pool(count: int) -> Any:
    def max_pool(
        x: Node,
        kernel: IntOrInts,
        stride: IntOrInts = (),
        padding: IntOrInts = 0,
        dilation: IntOrInts = 1,
        ceil_mode: bool = False,
    ) -> Node:
        padded, window = _padded_window(x, count, kernel, stride, padding, dilation, ceil_mode)
        return ops.max_pool(padded, **window)

    return max_pool


for _count in (1, 2, 3):
    converts(f"aten.max_pool{_count}d.default")(_make_max_pool(_count))


def _make_max_pool_with_indices(count: int) -> Any:
    """Max pooling that also says where in the unpadded input each maximum lies."""

    def max_pool(
        x: Node,
        kernel: IntOrInts,
        stride: IntOrInts = (),
        padding: IntOrInts = 0,
        dilation: IntOrInts = 1,
        ceil_mode: bool = False,
    ) -> tuple[Node, Node]:
        padded, window = _padded_window(x, count, kernel, stride, padding, dilation, ceil_mode)
        pooled, first = ops.max_pool(padded, **window), x.type.rank - count
        windows = padded
        for k, (size, step, gap) in enumerate(zip(*window.values(), strict=True)):
            windows = ops.unfold(windows, dim=first + k, size=size, step=step, dilation=gap)
        flat = view(windows, (*pooled.shape, prod(window["size"])))
        best = ops.argmax(flat, dim=pooled.type.rank)
        return pooled, _flat_index(best, x, window, per_dim(padding, count))

    return max_pool


def _flat_index(best: Node, x: Node, window: Any, padding: Sequence[int]) -> Node:
    """Number `best` inside each window as a place in the flattened last dimensions of `x`."""
    size, stride, dilation = window.values()
    count, first = len(size), x.type.rank - len(size)
    total: Node | None = None
    for k in range(count):
        inside = ops.floor_divide(best, prod(size[k + 1 :])) if k + 1 < count else best
        inside = ops.remainder(inside, size[k]) if k else inside
        place = ops.mul(ops.iota(size=best.shape[first + k]), stride[k])
        place = ops.reshape(ops.sub(place, padding[k]), shape=(best.shape[first + k], *(1,) * (count - 1 - k)))
        at = ops.add(ops.mul(inside, dilation[k]), place)
        total = at if total is None else ops.add(ops.mul(total, as_node(x.shape[first + k], total.dtype)), at)
    assert total is not None
    return total


for _count in (2, 3):
    converts(f"aten.max_pool{_count}d_with_indices.default")(_make_max_pool_with_indices(_count))


def _make_avg_pool(count: int) -> Any:
    def avg_pool(
        x: Node, kernel: IntOrInts, stride: IntOrInts = (), padding: IntOrInts = 0, ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Node:  # fmt: skip
        size, pads, ones = per_dim(kernel, count), per_dim(padding, count), (1,) * count
        steps = per_dim(stride, count) if stride != () else size
        ends, first = _end_padding(x, size, steps, pads, ones, ceil_mode), x.type.rank - count
        window: dict[str, Any] = {"size": size, "stride": steps, "dilation": ones}
        wide = ops.as_dtype(x, f32) if x.dtype.is_half else x
        total = ops.sum_pool(ops.pad_spatial(wide, pads, ends), **window)
        if divisor_override is not None:
            return ops.as_dtype(ops.div(total, float(divisor_override)), x.dtype)
        extra = [e - p for e, p in zip(ends, pads, strict=True)]
        if all(p == 0 for p in (*pads, *extra)) or (count_include_pad and not any(extra)):
            return ops.as_dtype(ops.div(total, float(prod(size))), x.dtype)
        inner = (pads, pads) if count_include_pad else ((0,) * count, (0,) * count)
        counted = [n + a + b for n, a, b in zip(x.shape[first:], *inner, strict=True)]
        members = ops.full((*(1,) * first, *counted), 1.0, wide.dtype)
        outer = [(p - a, e - b) for p, e, a, b in zip(pads, ends, *inner, strict=True)]
        members = ops.pad_spatial(members, [a for a, _ in outer], [b for _, b in outer])
        return ops.as_dtype(ops.div(total, ops.sum_pool(members, **window)), x.dtype)

    return avg_pool


for _count in (1, 2, 3):
    converts(f"aten.avg_pool{_count}d.default")(_make_avg_pool(_count))


def _adaptive_pool(x: Node, target: Sequence[int | None], reduce: Any) -> Node:
    """Windows of equal size where the target divides the input; else one slice per result and dimension."""
    first = x.type.rank - len(target)
    for k, wanted in enumerate(target):
        d, n = first + k, x.shape[first + k]
        m = n if wanted is None else wanted
        if m == n:
            continue
        if m == 1:
            x = reduce(x, d)
        elif isinstance(m, int):
            x = _adaptive_pool_dim(x, d, n, m, reduce)
        else:
            x = _average_of_windows(x, d, n, m)
    return x


def _average_of_windows(x: Node, d: int, n: Dim, m: Dim) -> Node:
    """Dimension `d` with the averages of `m` windows, however many they are."""
    places, belongs = _adaptive_windows(n, m)
    inside = ops.reshape(belongs, shape=(*belongs.shape, *(1,) * (x.type.rank - 1 - d)))
    windows = ops.where(inside, ops.take(x, places, dim=d), as_node(0, x.dtype))
    members = ops.sum_(ops.as_dtype(inside, x.dtype), dims=(1,))
    return ops.div(ops.sum_(windows, dims=(d + 1,)), members)


def _adaptive_pool_dim(x: Node, d: int, n: Dim, m: int, reduce: Any) -> Node:
    if n % m == 0:
        apart = view(x, (*x.shape[:d], m, n // m, *x.shape[d + 1 :]))
        reduced = reduce(apart, d + 1)
        return view(reduced, (*x.shape[:d], m, *x.shape[d + 1 :]))
    bounds = [(j * n // m, ceildiv((j + 1) * n, m)) for j in range(m)]
    return ops.cat(*(reduce(ops.slice_(x, dim=d, start=a, size=b - a), d) for a, b in bounds), dim=d)


def _adaptive_average(x: Node, target: Sequence[int]) -> Node:
    wide = ops.as_dtype(x, f32) if x.dtype.is_half else x
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
    """Where each of `m` windows over `n` elements begins and ends, i64[m]."""

    def bound(steps: Node, more: Dim) -> Node:
        return ops.floor_divide(ops.add(ops.mul(steps, as_node(n, i64)), as_node(more, i64)), as_node(m, i64))

    return bound(positions(m), 0), bound(positions(m, 1), m - 1)


def _adaptive_windows(n: Dim, m: Dim) -> tuple[Node, Node]:
    """Positions [m, w] of `m` windows over `n` elements, all as wide as the widest may be, and which of them belong."""
    low, high = (ops.unsqueeze(b, 1) for b in window_bounds(n, m))
    at = ops.add(low, positions(ceildiv(n, m) if n % m == 0 else ceildiv(n, m) + 1))
    return fold_if_static(clamp_positions(at, n), n, m), fold_if_static(ops.lt(at, high), n, m)


def _make_adaptive_max_pool(count: int) -> Any:
    def adaptive_max_pool(x: Node, output_size: Sequence[int]) -> tuple[Node, Node]:
        """The maximum of each window, and where it lies in the flattened last dimensions."""
        first = x.type.rank - count
        windows, belongs, place = x, ops.full((), True, boolean), ops.full((), 0, i64)
        for k, m in enumerate(output_size):
            n, shape = x.shape[first + k], [1] * (2 * count)
            if m == 1:
                shape[count + k] = n
                windows, at = ops.unsqueeze(windows, first + 2 * k), ops.iota(size=n)
            else:
                at, inside = _adaptive_windows(n, m)
                shape[k], shape[count + k] = at.shape
                windows = ops.take(windows, at, dim=first + 2 * k)
                belongs = belongs if n % m == 0 else ops.and_(belongs, ops.reshape(inside, shape=tuple(shape)))
            place = ops.add(ops.mul(place, as_node(n, i64)), ops.reshape(at, shape=tuple(shape)))
        areas, insides = (range(first + k, first + 2 * count, 2) for k in (0, 1))
        windows = ops.permute(windows, dims=[*range(first), *areas, *insides])
        windows = ops.where(belongs, windows, as_node(lowest(x.dtype), x.dtype))
        flat = (*windows.shape[: first + count], product(windows.shape[first + count :]))
        best = ops.argmax(view(windows, flat), dim=first + count)
        places = ops.gather(view(expand(place, windows.shape), flat), ops.unsqueeze(best, -1), dim=first + count)
        return ops.amax(view(windows, flat), dims=(first + count,)), view(places, best.shape)

    return adaptive_max_pool


for _count in (2, 3):
    converts(f"aten.adaptive_max_pool{_count}d.default")(_make_adaptive_max_pool(_count))


ResizeDim: TypeAlias = Callable[[Node, int, Dim, Dim, int], Node]
"""How dimension `d` of a node goes from `n` elements to `m`, as the last dimension number `k`: of (x, d, n, m, k)."""


def _resize_dims(
    x: Node,
    target: Sequence[Dim],
    scales: Sequence[float | None],
    resize: ResizeDim,
    upscale: Callable[[Node, int, int], Node] | None,
) -> Node:
    """Each of the last dimensions resized; `grow(x, d, times)`, if it is there, serves whole numbers where sizes are symbolic."""
    first = x.type.rank - len(target)
    for d, (m, scale) in enumerate(zip(target, scales, strict=True), first):
        n = x.shape[d]
        if m == n:
            continue
        known = isinstance(n, int) and isinstance(m, int)
        times = None if known or upscale is None else _integer_factor(n, m, scale)
        x = upscale(x, d, times) if upscale and times else resize(x, d, n, m, d - first)
    return x


def _integer_factor(n: Dim, m: Dim, scale: float | None) -> int | None:
    """The whole number by which `n` elements become `m`, where `scale` says nothing else."""
    times = floordiv(m, n)
    return times if isinstance(times, int) and n * times == m and scale in (None, times) else None


def _target_size(x: Node, size: Sequence[Dim] | None, scales: Sequence[float | None], count: int) -> tuple[Dim, ...]:
    if size is not None:
        return tuple(size)
    return tuple(map(_scaled_size, x.shape[x.type.rank - count :], scales))


def _scaled_size(n: Dim, scale: float | None) -> Dim:
    assert scale is not None
    if isinstance(n, int):
        return int(n * scale)
    if times := exact_ratio(scale):
        return floordiv(n * times.numerator, times.denominator)
    raise ConversionError(f"a symbolic size times {scale}, which rounds as no quotient of integers does")


def _resize_nearest(x: Node, size: Sequence[Dim] | None, scales: Sequence[float | None], exact: bool = False) -> Node:
    count = x.type.rank - 2
    scales = tuple(scales) or (None,) * count

    def look_up(x: Node, d: int, n: Dim, m: Dim, k: int) -> Node:
        if times := _integer_factor(n, m, scales[k]):
            return _repeat_elements(x, d, times)
        at = ops.add(ops.as_dtype(positions(m), f32), 0.5 if exact else 0.0)
        place = ops.floor(ops.mul(at, ops.as_dtype(_sampling_step(n, m, scales[k]), f32)))
        return ops.take(x, fold_if_static(clamp_positions(ops.as_dtype(place, i64), n), n, m), dim=d)

    return _resize_dims(x, _target_size(x, size, scales, count), scales, look_up, _repeat_elements)


def _sampling_step(n: Dim, m: Dim, scale: float | None) -> Node:
    """How many of `n` elements lie between two of `m`, f64."""
    return as_node(1.0 / scale, f64) if scale else ops.div(as_node(n, f64), as_node(m, f64))


def _repeat_elements(x: Node, d: int, times: int) -> Node:
    """Each element along dimension `d` as often as `times` says."""
    apart = ops.expand(ops.unsqueeze(x, d + 1), shape=(*x.shape[: d + 1], times, *x.shape[d + 1 :]))
    return view(apart, (*x.shape[:d], x.shape[d] * times, *x.shape[d + 1 :]))


@converts("aten.upsample_nearest1d.default", "aten.upsample_nearest2d.default", "aten.upsample_nearest3d.default")
def upsample_nearest(x: Node, size: Sequence[Dim], *scales: float | None) -> Node:
    return _resize_nearest(x, size, scales)


@converts("aten.upsample_nearest1d.vec", "aten.upsample_nearest2d.vec", "aten.upsample_nearest3d.vec")
def upsample_nearest_vec(x: Node, size: Sequence[Dim] | None, scales: Sequence[float] | None) -> Node:
    return _resize_nearest(x, size, scales or ())


def _resize_linear(x: Node, size: Sequence[Dim] | None, align: bool, scales: Sequence[float | None]) -> Node:
    """Between the two nearest elements, one dimension after the other."""
    count = x.type.rank - 2
    scales = tuple(scales) or (None,) * count

    def look_up(x: Node, d: int, n: Dim, m: Dim, k: int) -> Node:
        at = ops.as_dtype(positions(m), f64)
        if align:
            place = ops.mul(at, _sampling_step(n - 1, maximum(m - 1, 1), None))
        else:
            place = ops.maximum(ops.sub(ops.mul(ops.add(at, 0.5), _sampling_step(n, m, scales[k])), 0.5), 0.0)
        low = clamp_positions(ops.as_dtype(place, i64), n)
        a, b = (ops.take(x, fold_if_static(p, n, m), dim=d) for p in (low, clamp_positions(ops.add(low, 1), n)))
        share = fold_if_static(ops.as_dtype(ops.sub(place, ops.as_dtype(low, f64)), f32), n, m)
        weight = ops.reshape(share, shape=(m, *(1,) * (x.type.rank - 1 - d)))
        near, far = ops.mul(a, ops.as_dtype(ops.sub(1.0, weight), x.dtype)), ops.mul(b, ops.as_dtype(weight, x.dtype))
        return ops.add(near, far)

    wide = ops.as_dtype(x, f32) if x.dtype.is_half else x
    grow = None if align else _interpolate_integer_factor
    return ops.as_dtype(_resize_dims(wide, _target_size(x, size, scales, count), scales, look_up, grow), x.dtype)


def _interpolate_integer_factor(x: Node, d: int, times: int) -> Node:
    """`times` elements for each one along dimension `d`, evenly around it: each lies between two neighbours, equally far everywhere."""
    n = x.shape[d]
    first, last = (ops.slice_(x, dim=d, start=at, size=1) for at in (0, n - 1))
    wide, around = ops.cat(first, x, last, dim=d), []
    for j in range(times):
        low, share = divmod((j + 0.5) / times + 0.5, 1.0)
        near, far = (ops.slice_(wide, dim=d, start=int(low) + k, size=n) for k in (0, 1))
        weights = (as_node(w, x.dtype) for w in (1.0 - share, share))
        around.append(ops.unsqueeze(ops.add(*map(ops.mul, (near, far), weights)), d + 1))
    return view(ops.cat(*around, dim=d + 1), (*x.shape[:d], n * times, *x.shape[d + 1 :]))


@converts("aten.upsample_linear1d.default", "aten.upsample_bilinear2d.default", "aten.upsample_trilinear3d.default")
def upsample_linear(x: Node, size: Sequence[Dim], align_corners: bool, *scales: float | None) -> Node:
    return _resize_linear(x, size, align_corners, scales)


@converts("aten.upsample_linear1d.vec", "aten.upsample_bilinear2d.vec", "aten.upsample_trilinear3d.vec")
def upsample_linear_vec(
    x: Node, size: Sequence[Dim] | None, align_corners: bool, scales: Sequence[float] | None
) -> Node:
    return _resize_linear(x, size, align_corners, scales or ())
