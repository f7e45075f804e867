"""Ops that come together in models, and that passes look for: an idiom adds them to a graph and gives the last of them.

Drawn one by one they hardly ever meet.  Sizes, element types and the ops around are as random as elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from compiler.fuzz.calls import LARGEST
from compiler.fuzz.growth import Growth
from compiler.ir import ops
from compiler.ir.graph import Graph, Node
from compiler.ir.structure import Scan
from compiler.ir.types import DTYPES, DType, TensorType, boolean


def dtype(g: Growth) -> DType:
    """Mostly f32."""
    return DTYPES[g.rng.choice(("f32",) * 6 + ("f64", "f16", "bf16"))]


def sizes(g: Growth, *highest: int) -> tuple[int, ...]:
    """Sizes from 1 up to these."""
    return tuple(g.rng.randint(1, h) for h in highest)


def maybe(g: Growth, share: float, change: Callable[[Node], Node], x: Node) -> Node:
    """`x`, or `change` of it in a `share` of all cases."""
    return change(x) if g.rng.random() < share else x


# attention


def attention(g: Growth) -> Node:
    """softmax(q k^T * s + mask) v, in one op or in several."""
    front = g.rng.choice(((), (), (2,), (1, 3), (2, 2)))
    rows, columns = g.rng.choice(
        (sizes(g, 8, 40), sizes(g, 32, 32), sizes(g, 32, 32), (g.rng.randint(1, 3), g.rng.randint(641, 1300)))
    )
    if g.rng.random() < 0.4:
        rows = columns = min(rows, columns)
    if prod(front) * rows * columns > LARGEST:
        front = ()
    depth, width = sizes(g, 8, 8) if columns < 100 else sizes(g, 3, 3)
    kind, scale = dtype(g), g.rng.choice((1.0, 0.5, 0.125, 0.3))
    shapes = ((rows, depth), (columns, depth), (columns, width))
    q, k, v = (g.value(TensorType(kind, (*front, *shape))) for shape in shapes)
    if g.rng.random() < 0.4:
        mask = [g.value(mask_type(g, kind, rows, columns))] if g.rng.random() < 0.4 else []
        return ops.attention(q, k, v, *mask, scale=scale, causal=g.rng.random() < 0.5)
    scores = hidden(g, ops.mul(ops.matmul(q, ops.transpose(k, -1, -2)), scale))
    return ops.matmul(ops.softmax(scores, dim=len(front) + 1), v)


def mask_type(g: Growth, kind: DType, rows: int, columns: int) -> TensorType:
    """Of a mask that says what is seen, or of one that is added."""
    return TensorType(g.rng.choice((boolean, kind)), (g.rng.choice((1, rows)), columns))


def hidden(g: Growth, scores: Node) -> Node:
    """`scores` with some of them -inf, by a mask or by where they stand, or with a mask added."""
    rows, columns = scores.shape[-2:]
    way = g.rng.random()
    if way < 0.3:
        return scores
    if way < 0.5:
        mask = g.value(mask_type(g, scores.dtype, rows, columns))
        return ops.where(mask, scores, float("-inf")) if mask.dtype == boolean else ops.add(scores, mask)
    row, column = ops.reshape(ops.iota(size=rows), shape=(rows, 1)), ops.iota(size=columns)
    seen = ordered(g, column, maybe(g, 0.4, lambda x: ops.add(x, g.rng.randint(-2, 4)), row))
    if g.rng.random() < 0.2:  # a window that slides along
        seen = ops.and_(seen, ops.gt(column, ops.sub(row, g.rng.randint(1, 4))))
    return ops.where(seen, scores, float("-inf"))


def ordered(g: Growth, low: Node, high: Node) -> Node:
    """low <= high or low < high, either way round."""
    return g.rng.choice((ops.le(low, high), ops.ge(high, low), ops.lt(low, high), ops.gt(high, low)))


# images


def image(g: Growth) -> Node:
    """One or two convolutions with constant weights, a factor for each channel, an activation, a pooling; perhaps of a few frames."""
    kind, frames = dtype(g), sizes(g, 4) if g.rng.random() < 0.2 else ()
    side = 7 if frames else 12
    x = g.value(TensorType(kind, (*sizes(g, 2, 4), *frames, *(g.rng.randint(3, side) for _ in range(2)))))
    for _ in range(g.rng.choice((1, 1, 2))):
        x = transposed(g, x) if not frames and g.rng.random() < 0.2 else convolved(g, x)
        x = g.rng.choice((partial(normalised, g), partial(scaled, g), lambda x: x))(x)
        x = maybe(g, 0.5, ops.relu, x)
    return maybe(g, 0.3, partial(pooled, g), x)


def convolved(g: Growth, x: Node) -> Node:
    """Mostly by windows of 3 x 3 at every place, of as many frames as there are or fewer."""
    seen = sizes(g, *(min(3, d) for d in x.shape[2:-2]))
    window = (*seen, *((3, 3) if g.rng.random() < 0.7 else sizes(g, *(min(5, d) for d in x.shape[-2:]))))
    channels, groups = x.shape[1], x.shape[1] if g.rng.random() < 0.15 else 1
    least = max(0, max(w - d for w, d in zip(window, x.shape[2:], strict=True)) + 1) // 2
    weight = g.constant(TensorType(x.dtype, (groups * g.rng.randint(1, 4), channels // groups, *window)))
    bias = [g.constant(TensorType(x.dtype, weight.shape[:1]))] if g.rng.random() < 0.4 else []
    stride = [*sizes(g, *(2 for _ in seen)), *([2, 1] if g.rng.random() < 0.1 else [1, 1])]
    padding = [max(least, g.rng.choice((0, 1, 1, 2)))] * len(window)
    dilation = [1] * len(window)
    return ops.convolution(x, weight, *bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def transposed(g: Growth, x: Node) -> Node:
    """By windows that reach as far as their steps, at least."""
    stride = sizes(g, 3, 3)
    if prod((d + 2) * s for d, s in zip(x.shape[2:], stride, strict=True)) * 4 * x.shape[0] > LARGEST:
        stride = (1, 1)
    window = [s + g.rng.randint(0, 2) for s in stride]
    weight = g.constant(TensorType(x.dtype, (x.shape[1], g.rng.randint(1, 3), *window)))
    padding, more = ([g.rng.randint(0, s // 2) for s in stride] for _ in range(2))
    return ops.conv_transposed(
        x, weight, stride=stride, padding=padding, dilation=[1, 1], output_padding=[min(m, s - 1) for m, s in zip(more, stride, strict=True)]
    )  # fmt: skip


def per_channel(g: Growth, x: Node) -> Node:
    """A constant number above 0 for each channel of `x`."""
    return g.made_constant(TensorType(x.dtype, (x.shape[1],)), g.numbers.uniform(0.5, 2.0, x.shape[1]))


def normalised(g: Growth, x: Node) -> Node:
    """What a batch norm does in inference, with or without slope and offset."""
    return ops.batch_norm(x, *(per_channel(g, x) for _ in range(g.rng.choice((2, 3, 4)))))


def scaled(g: Growth, x: Node) -> Node:
    """A number for each channel added, perhaps, and one multiplied."""
    shape = (x.shape[1], *(1,) * (x.type.rank - 2))

    def number() -> Node:
        return ops.reshape(g.constant(TensorType(x.dtype, (x.shape[1],))), shape=shape)

    return ops.mul(maybe(g, 0.5, lambda x: ops.add(x, number()), x), number())


def pooled(g: Growth, x: Node) -> Node:
    """The largest or the sum of each window."""
    size = [min(d, g.rng.choice((2, 2, 3))) for d in x.shape[2:]]
    pool = g.rng.choice((ops.max_pool, ops.sum_pool))
    return pool(x, size=size, stride=g.rng.choice((size, [1] * len(size))), dilation=[1] * len(size))


# rows


def scanned(g: Growth) -> Node:
    """A long row, or several, scanned by one of the ops that combine all elements so far."""
    combining = [o for o in g.kinds["Scan"] if isinstance(o.structure, Scan) and o.structure.combine]
    length = prod(g.rng.choice((2, 3, 4, 5, 8)) for _ in range(g.rng.randint(2, 5)))
    shape = (min(length, LARGEST), g.rng.randint(1, max(1, min(4, LARGEST // length))))
    dim = g.rng.randrange(2)
    x = g.value(TensorType(dtype(g), shape[::-1] if dim else shape))
    return g.rng.choice(combining)(x, dim=dim, reverse=g.rng.random() < 0.3, exclusive=g.rng.random() < 0.3)


def feed_forward(g: Growth) -> Node:
    """A sum with what came before, a norm or a softmax of its rows, a layer and its activation."""
    rows, width, wide = sizes(g, 9, 48, 32)
    t = TensorType(dtype(g), (rows, width))
    x = maybe(g, 0.6, lambda x: ops.add(x, g.value(t)), g.value(t))
    weight = [g.value(TensorType(t.dtype, (width,)))] if g.rng.random() < 0.5 else []
    norms: tuple[Callable[[], Node], ...] = (
        lambda: ops.layer_norm(x, *weight), lambda: ops.rms_norm(x, *weight, eps=1e-5), lambda: ops.softmax(x, dim=1), lambda: ops.log_softmax(x, dim=1),
    )  # fmt: skip
    normed = g.rng.choice(norms)()
    layer = ops.linear(normed, g.value(TensorType(t.dtype, (wide, width))), g.value(TensorType(t.dtype, (wide,))))
    return maybe(g, 0.7, g.rng.choice((ops.relu, ops.gelu, ops.silu, ops.tanh)), layer)


# loops


def recurrence(g: Growth) -> Node:
    """A loop over sequences whose body is a small random graph."""
    rng, inside, kind = g.rng, g.inside(), dtype(g)
    steps, width = rng.choice((1, 2, 3, 5, 8)), rng.randint(1, 9)
    shapes = ((width,), (width,), (2, width), ())
    sequences, states = (
        [inside.input(TensorType(kind, rng.choice(shapes))) for _ in range(n)]
        for n in (rng.choice((1, 1, 2)), rng.choice((0, 1, 1, 2)))
    )
    for _ in range(rng.randint(1, 4)):
        inside.step()
    news = [next_state(inside, s) for s in states]
    made = [inside.recent() for _ in range(rng.choice((0, 1, 1, 2)) if states else 1)]
    body = Graph(tuple(inside.inputs), (*news, *made), "step")
    given = [g.value(n.type.with_shape((steps, *n.shape))) for n in sequences]
    given += [g.value(n.type) for n in inside.inputs[len(sequences) :]]
    return ops.recurrence(*given, body=body, sequences=len(sequences), states=len(states), reverse=rng.random() < 0.3)


def next_state(inside: Growth, state: Node) -> Node:
    """A value of the body as the state that comes after `state`, mostly kept small."""
    made = inside.adapted(inside.recent(), state.type) or state
    return maybe(inside, 0.7, ops.tanh, made)


IDIOMS: tuple[Callable[[Growth], Node], ...] = (attention, image, image, scanned, feed_forward, recurrence)
