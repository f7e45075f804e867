"""Idioms: ops that occur together in models and that passes match.  An idiom adds them to a graph and returns the last node.

Independent random ops almost never form these patterns.  Sizes, dtypes and the surrounding ops are random.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from compiler.analysis.quantized_value import is_known
from compiler.frontend.conversions.quantization import round_and_shift, shift_and_scale
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Scan
from compiler.ir.types import DTYPES, DType, TensorType, bf16, boolean, f8e4m3fn, f8e5m2, f16, f32, f64, i8, i32, u8
from compiler.testing.fuzz.graph_builder import GraphBuilder
from compiler.testing.fuzz.inputs import random_elements
from compiler.testing.fuzz.op_calls import MAX_VALUE_ELEMENTS


def random_dtype(g: GraphBuilder) -> DType:
    """Return a float dtype, mostly f32."""
    return DTYPES[g.rng.choice(("f32",) * 6 + ("f64", "f16", "bf16"))]


def random_sizes(g: GraphBuilder, *maxima: int) -> tuple[int, ...]:
    """Return random sizes, each from 1 to its maximum."""
    return tuple(g.rng.randint(1, h) for h in maxima)


def maybe(g: GraphBuilder, probability: float, change: Callable[[Node], Node], x: Node) -> Node:
    """Return `change(x)` with the given probability, else `x`."""
    return change(x) if g.rng.random() < probability else x


# attention


def attention(g: GraphBuilder) -> Node:
    """Add softmax(q k^T * scale + mask) v, as one op or several."""
    batch = g.rng.choice(((), (), (2,), (1, 3), (2, 2)))
    sizes = [random_sizes(g, *maxima) for maxima in ((8, 40), (32, 32), (32, 32))]
    rows, columns = g.rng.choice([*sizes, (g.rng.randint(1, 3), g.rng.randint(641, 1300))])
    if g.rng.random() < 0.4:
        rows = columns = min(rows, columns)
    if prod(batch) * rows * columns > MAX_VALUE_ELEMENTS:
        batch = ()
    depth, width = random_sizes(g, 8, 8) if columns < 100 else random_sizes(g, 3, 3)
    dtype, scale = random_dtype(g), g.rng.choice((1.0, 0.5, 0.125, 0.3))
    shapes = ((rows, depth), (columns, depth), (columns, width))
    q, k, v = (g.make_value(TensorType(dtype, (*batch, *shape))) for shape in shapes)
    if g.rng.random() < 0.4:
        mask = [g.make_value(mask_type(g, dtype, rows, columns))] if g.rng.random() < 0.4 else []
        return ops.attention(q, k, v, *mask, scale=scale, causal=g.rng.random() < 0.5)
    scores = mask_scores(g, ops.mul(ops.matmul(q, ops.transpose(k, -1, -2)), scale))
    return ops.matmul(ops.softmax(scores, dim=len(batch) + 1), v)


def mask_type(g: GraphBuilder, dtype: DType, rows: int, columns: int) -> TensorType:
    """Return the type of a boolean or an additive mask."""
    return TensorType(g.rng.choice((boolean, dtype)), (g.rng.choice((1, rows)), columns))


def mask_scores(g: GraphBuilder, scores: Node) -> Node:
    """Mask scores by a boolean, an additive or a causal mask, or not at all."""
    rows, columns = scores.shape[-2:]
    choice = g.rng.random()
    if choice < 0.3:
        return scores
    if choice < 0.5:
        mask = g.make_value(mask_type(g, scores.dtype, rows, columns))
        return ops.where(mask, scores, float("-inf")) if mask.dtype == boolean else ops.add(scores, mask)
    row, column = ops.reshape(ops.iota(size=rows), shape=(rows, 1)), ops.iota(size=columns)
    visible = random_comparison(g, column, maybe(g, 0.4, lambda x: ops.add(x, g.rng.randint(-2, 4)), row))
    if g.rng.random() < 0.2:  # a sliding window
        visible = ops.and_(visible, ops.gt(column, ops.sub(row, g.rng.randint(1, 4))))
    return ops.where(visible, scores, float("-inf"))


def random_comparison(g: GraphBuilder, low: Node, high: Node) -> Node:
    """Return low <= high or low < high, in either operand order."""
    return g.rng.choice((ops.le(low, high), ops.ge(high, low), ops.lt(low, high), ops.gt(high, low)))


# images


def image_network(g: GraphBuilder) -> Node:
    """Add one or two convolutions with constant weights, with normalization, activation and pooling; 2-d or 3-d."""
    dtype, frames = random_dtype(g), random_sizes(g, 4) if g.rng.random() < 0.2 else ()
    side = 7 if frames else 12
    x = g.make_value(TensorType(dtype, (*random_sizes(g, 2, 4), *frames, *(g.rng.randint(3, side) for _ in range(2)))))
    for _ in range(g.rng.choice((1, 1, 2))):
        x = maybe(g, 0.2, partial(requantize, g), x)
        x = add_transposed_convolution(g, x) if not frames and g.rng.random() < 0.2 else add_convolution(g, x)
        x = g.rng.choice((partial(add_batch_norm, g), partial(add_channel_scale, g), lambda x: x))(x)
        x = maybe(g, 0.5, ops.relu, x)
    return maybe(g, 0.3, partial(add_pooling, g), x)


def add_convolution(g: GraphBuilder, x: Node) -> Node:
    """Add a convolution, mostly 3 x 3 with stride 1."""
    depth = random_sizes(g, *(min(3, d) for d in x.shape[2:-2]))
    window = (*depth, *((3, 3) if g.rng.random() < 0.7 else random_sizes(g, *(min(5, d) for d in x.shape[-2:]))))
    channels, groups = x.shape[1], x.shape[1] if g.rng.random() < 0.15 else 1
    min_padding = max(0, max(w - d for w, d in zip(window, x.shape[2:], strict=True)) + 1) // 2
    shape = (groups * g.rng.randint(1, 4), channels // groups, *window)
    narrow = g.rng.random() < 0.2
    weight = narrow_weights(g, shape, x.dtype) if narrow else g.random_constant(TensorType(x.dtype, shape))
    bias = [g.random_constant(TensorType(x.dtype, weight.shape[:1]))] if g.rng.random() < 0.4 else []
    stride = [*random_sizes(g, *(2 for _ in depth)), *([2, 1] if g.rng.random() < 0.1 else [1, 1])]
    padding = [max(min_padding, g.rng.choice((0, 1, 1, 2)))] * len(window)
    dilation = [1] * len(window)
    return ops.convolution(x, weight, *bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def add_transposed_convolution(g: GraphBuilder, x: Node) -> Node:
    """Add a transposed convolution with a window at least as large as its stride."""
    stride = random_sizes(g, 3, 3)
    if prod((d + 2) * s for d, s in zip(x.shape[2:], stride, strict=True)) * 4 * x.shape[0] > MAX_VALUE_ELEMENTS:
        stride = (1, 1)
    window = [s + g.rng.randint(0, 2) for s in stride]
    weight = g.random_constant(TensorType(x.dtype, (x.shape[1], g.rng.randint(1, 3), *window)))
    padding, extra = ([g.rng.randint(0, s // 2) for s in stride] for _ in range(2))
    return ops.conv_transposed(
        x, weight, stride=stride, padding=padding, dilation=[1, 1], output_padding=[min(m, s - 1) for m, s in zip(extra, stride, strict=True)]
    )  # fmt: skip


def per_channel_constant(g: GraphBuilder, x: Node) -> Node:
    """Return a positive constant for each channel of `x`."""
    return g.constant_from_array(TensorType(x.dtype, (x.shape[1],)), g.array_rng.uniform(0.5, 2.0, x.shape[1]))


def add_batch_norm(g: GraphBuilder, x: Node) -> Node:
    """Add a batch norm in inference, with or without weight and bias."""
    return ops.batch_norm(x, *(per_channel_constant(g, x) for _ in range(g.rng.choice((2, 3, 4)))))


def add_channel_scale(g: GraphBuilder, x: Node) -> Node:
    """Multiply by a constant for each channel, perhaps after adding one."""
    shape = (x.shape[1], *(1,) * (x.type.rank - 2))

    def constant() -> Node:
        return ops.reshape(g.random_constant(TensorType(x.dtype, (x.shape[1],))), shape=shape)

    return ops.mul(maybe(g, 0.5, lambda x: ops.add(x, constant()), x), constant())


def add_pooling(g: GraphBuilder, x: Node) -> Node:
    """Add a max or sum pooling."""
    size = [min(d, g.rng.choice((2, 2, 3))) for d in x.shape[2:]]
    pool = g.rng.choice((ops.max_pool, ops.sum_pool))
    return pool(x, size=size, stride=g.rng.choice((size, [1] * len(size))), dilation=[1] * len(size))


# rows


def random_scan(g: GraphBuilder) -> Node:
    """Scan one or several long rows by a random op."""
    scans = [o for o in g.ops_by_structure["Scan"] if isinstance(o.structure, Scan) and o.structure.combine]
    length = prod(g.rng.choice((2, 3, 4, 5, 8)) for _ in range(g.rng.randint(2, 5)))
    shape = (min(length, MAX_VALUE_ELEMENTS), g.rng.randint(1, max(1, min(4, MAX_VALUE_ELEMENTS // length))))
    dim = g.rng.randrange(2)
    x = g.make_value(TensorType(random_dtype(g), shape[::-1] if dim else shape))
    return g.rng.choice(scans)(x, dim=dim, reverse=g.rng.random() < 0.3, exclusive=g.rng.random() < 0.3)


def feed_forward(g: GraphBuilder) -> Node:
    """Add a residual, a norm or softmax of rows, a linear layer and an activation."""
    rows, width, wide = random_sizes(g, 9, 48, 32)
    t = TensorType(random_dtype(g), (rows, width))
    x = maybe(g, 0.6, lambda x: ops.add(x, g.make_value(t)), g.make_value(t))
    weight = [g.make_value(TensorType(t.dtype, (width,)))] if g.rng.random() < 0.5 else []
    norms: tuple[Callable[[], Node], ...] = (
        lambda: ops.layer_norm(x, *weight), lambda: ops.rms_norm(x, *weight, eps=1e-5), lambda: ops.softmax(x, dim=1), lambda: ops.log_softmax(x, dim=1),
    )  # fmt: skip
    normed = g.rng.choice(norms)()
    matrix, bias = (g.make_value(TensorType(t.dtype, shape)) for shape in ((wide, width), (wide,)))
    layer = ops.linear(normed, matrix, bias)
    return maybe(g, 0.7, g.rng.choice((ops.relu, ops.gelu, ops.silu, ops.tanh)), layer)


# low precision


def quantized_layer(g: GraphBuilder) -> Node:
    """Add a linear layer of weights stored in 8 bits or fewer; its input and its result may be quantized too."""
    rows, outputs, groups = random_sizes(g, 9, 24, 4)
    group_size = g.rng.choice((2, 3, 4, 8, 16, 32))
    x = g.make_value(TensorType(random_dtype(g), (rows, groups * group_size)))
    x = maybe(g, 0.6, partial(requantize, g), x)
    weight = ops.reshape(narrow_weights(g, (outputs, groups, group_size), x.dtype), shape=(outputs, x.shape[1]))
    bias = [g.make_value(TensorType(x.dtype, (outputs,)))] if g.rng.random() < 0.4 else []
    y = maybe(g, 0.4, ops.relu, ops.linear(x, weight, *bias))
    return maybe(g, 0.4, partial(requantize, g), y)


def narrow_weights(g: GraphBuilder, shape: tuple[int, ...], dtype: DType) -> Node:
    """Dequantize weights with one scale, one for each index of the first dimension, or one for each of the first two."""
    rank = g.rng.randrange(3)
    grid = (*shape[:rank], *(1 for _ in shape[rank:]))
    scale = g.constant_from_array(TensorType(f32, grid), g.array_rng.uniform(0.01, 1.0, grid))
    codes = packed_halves(g, shape) if shape[-1] % 2 == 0 and g.rng.random() < 0.3 else narrow_values(g, shape)
    has_zero_point = codes.dtype.is_integer and g.rng.random() < 0.5
    zero_point = g.constant_from_array(TensorType(i32, grid), g.array_rng.integers(0, 16, grid))
    return shift_and_scale(codes, scale, zero_point if has_zero_point else None, dtype)


def narrow_values(g: GraphBuilder, shape: tuple[int, ...]) -> Node:
    """Return a constant of 8 bits, whose integers may fit 4, 2 or 1 bits, or an input."""
    t = TensorType(g.rng.choice((i8, i8, u8, f8e4m3fn, f8e5m2)), shape)
    if g.rng.random() < 0.2:
        return g.add_input(t)
    if t.dtype.is_float:
        return g.constant_from_array(t, random_elements(t, g.array_rng))
    bits = g.rng.choice((8, 8, 4, 2, 1))
    low = 0 if t.dtype == u8 else -(1 << bits - 1)
    return g.constant_from_array(t, g.array_rng.integers(low, low + (1 << bits), shape))


def packed_halves(g: GraphBuilder, shape: tuple[int, ...]) -> Node:
    """Return integers of 4 bits, taken from the halves of constant bytes."""
    t = TensorType(u8, (*shape[:-1], shape[-1] // 2, 1))
    packed = g.constant_from_array(t, g.array_rng.integers(0, 256, t.static_shape()))
    halves = ops.cat(ops.and_(packed, 15), ops.shift_right(packed, 4), dim=len(shape))
    return ops.reshape(halves, shape=shape)


def requantize(g: GraphBuilder, x: Node) -> Node:
    """Round `x` to 8 bits and widen it again.

    The scale of integers is a number, or the range of all of `x` or of its rows.
    """
    dtype = g.rng.choice((i8, u8, u8, f8e4m3fn, f8e5m2))
    if dtype.is_float:
        return ops.as_dtype(ops.as_dtype(x, dtype), x.dtype)
    info, zero_point, wide = np.iinfo(dtype.numpy), g.rng.choice((0, 0, 3, 100)), ops.as_dtype(x, f32)
    scale: Node | float = g.rng.choice((0.02, 0.25, 0.1, 1.7))
    if not is_known(x) and g.rng.random() < 0.5:  # known scales must be finite
        dims = tuple(range(g.rng.randrange(2), x.type.rank))
        largest = ops.amax(ops.abs_(wide), dims=dims, keepdim=True)
        scale = ops.div(ops.minimum(ops.maximum(largest, 1e-5), 1e4), 127.0)  # an infinite one gives NaN
    codes = ops.as_dtype(round_and_shift(wide, scale, zero_point, (int(info.min), int(info.max))), dtype)
    return shift_and_scale(codes, scale, zero_point, x.dtype)


def mixed_product(g: GraphBuilder) -> Node:
    """Add a product of matrices of two dtypes, with sums of a dtype that includes both."""
    lhs, rhs = (g.rng.choice((i8, u8, f8e4m3fn, f8e5m2, bf16, f16, f32)) for _ in range(2))
    rows, inner, columns = random_sizes(g, 9, 48, 24)
    x, y = g.make_value(TensorType(lhs, (rows, inner))), g.make_value(TensorType(rhs, (inner, columns)))
    return ops.matmul(
        x, y, dtype=g.rng.choice([d for d in (i32, f32, f32, f64) if d.includes(lhs) and d.includes(rhs)])
    )


# loops


def recurrence(g: GraphBuilder) -> Node:
    """Add a recurrence whose body is a small random graph."""
    rng, builder, dtype = g.rng, g.loop_body_builder(), random_dtype(g)
    steps, width = rng.choice((1, 2, 3, 5, 8)), rng.randint(1, 9)
    shapes = ((width,), (width,), (2, width), ())
    sequences, states = (
        [builder.add_input(TensorType(dtype, rng.choice(shapes))) for _ in range(n)]
        for n in (rng.choice((1, 1, 2)), rng.choice((0, 1, 1, 2)))
    )
    for _ in range(rng.randint(1, 4)):
        builder.add_random_call()
    next_states = [next_state(builder, s) for s in states]
    results = [builder.recent_value() for _ in range(rng.choice((0, 1, 1, 2)) if states else 1)]
    body = Graph(tuple(builder.inputs), (*next_states, *results), "step")
    operands = [g.make_value(n.type.with_shape((steps, *n.shape))) for n in sequences]
    operands += [g.make_value(n.type) for n in builder.inputs[len(sequences) :]]
    return ops.recurrence(
        *operands, body=body, num_scanned=len(sequences), num_carried=len(states), reverse=rng.random() < 0.3
    )


def next_state(body: GraphBuilder, state: Node) -> Node:
    """Return a value of the body with the type of `state` as its next value, mostly bounded by tanh."""
    value = body.adapt_value(body.recent_value(), state.type) or state
    return maybe(body, 0.7, ops.tanh, value)


IDIOMS: tuple[Callable[[GraphBuilder], Node], ...] = (
    attention, image_network, image_network, random_scan, feed_forward, recurrence, quantized_layer, quantized_layer,
    mixed_product,
)  # fmt: skip
"""Idioms to choose from; an idiom that is listed twice is twice as frequent."""
