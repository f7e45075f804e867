"""Recognition of dequantized values by what their elements compute: (codes - zero_point) * scale.

Casts, zero points, scales, views and zero padding keep the form.  With one positive scale, so do concatenation of values
that have the same, and what keeps their order: maxima, minima and ReLU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from compiler.analysis.contraction_nodes import operand_positions
from compiler.analysis.convolution_match import match_zero_padding
from compiler.analysis.reduction_domains import is_never_empty
from compiler.analysis.windows import PaddedWindows, match_padded_windows
from compiler.ir import ops
from compiler.ir.graph.graph import Graph, reachable
from compiler.ir.graph.node import CONSTANT, Node, constant_node, scalar_value
from compiler.ir.graph.structure import (
    Elementwise,
    IndexMap,
    Position,
    Reduction,
    elementwise_expr,
    index_vars,
    is_cast,
    is_view,
    lowest,
    position_variables,
)
from compiler.ir.ops.views import linearize_index
from compiler.ir.scalar import PrimitiveCall, Ref, maximum
from compiler.ir.symbolic.index_expr import Dim, var
from compiler.ir.types import DType, f32, i8, i32, u8

CODES = {i8: range(-128, 128), u8: range(256)}
"""Every code of the dtypes of bytes."""


@dataclass(frozen=True)
class QuantizedValue:
    """The value (codes - zero_point) * scale, in exact arithmetic.

    `codes` have 8 bits: bytes, signed or not, or floats.  `zero_point` (i32) and `scale` (f32) broadcast to them; None is 0 and 1.
    """

    codes: Node
    zero_point: Node | None = None
    scale: Node | None = None

    @property
    def constants(self) -> tuple[int, float] | None:
        """Zero point and scale, if each is one constant for all elements and the scale is positive."""
        zero_point = 0 if self.zero_point is None else scalar_value(self.zero_point)
        scale = 1.0 if self.scale is None else scalar_value(self.scale)
        return None if zero_point is None or scale is None or scale <= 0 else (int(zero_point), float(scale))

    def dequantize(self, dtype: DType) -> Node:
        """Return the value as a tensor of `dtype`; integers if it has no scale."""
        wide = dtype.compute
        value = ops.cast(self.codes, dtype=wide)
        if self.zero_point is not None:
            value = ops.sub(value, ops.as_dtype(self.zero_point, wide))
        if self.scale is not None:
            value = ops.mul(value, ops.as_dtype(self.scale, wide))
        return ops.as_dtype(value, dtype)


Match: TypeAlias = QuantizedValue | str
"""A quantized value, or why it is none; empty for a value that has nothing to do with bytes."""


def match_quantized_values(graph: Graph) -> dict[Node, Match]:
    """Find the values of a graph that are computed from bytes by what keeps their form."""
    found: dict[Node, Match] = dict.fromkeys(graph.nodes, "")
    if any(map(_has_8_bits, graph.nodes)):
        for n in graph.nodes:
            found[n] = match_quantized(n, found)
    return found


def _has_8_bits(n: Node) -> bool:
    """Return True for bytes and for floats of 8 bits."""
    return not isinstance(n.result_type, tuple) and n.dtype.bits == 8 and (n.dtype.is_integer or n.dtype.is_float)


def match_quantized(n: Node, operands: Mapping[Node, Match]) -> Match:
    """Return the bytes that `n` is computed from, given those of its operands."""
    if isinstance(n.result_type, tuple):
        return ""
    if _has_8_bits(n):
        return QuantizedValue(n)
    inner = [operands[o] for o in n.operands]
    if isinstance(n.structure, Elementwise):
        return _match_elementwise(n, inner)
    if is_view(n.structure, n):
        return _through_view(n, inner[0])
    if (padding := match_zero_padding(n)) is not None:
        return _through_padding(n, inner[0], padding)
    if (windows := match_padded_windows(n)) is not None:
        return _through_padded_windows(windows, operands[windows.image])
    return _through_selection(n, inner)


def _match_elementwise(n: Node, operands: Sequence[Match]) -> Match:
    e = elementwise_expr(n)
    if len(n.operands) == 1:
        (x,), (inner,) = n.operands, operands
        if isinstance(inner, QuantizedValue) and e == maximum(Ref(x.dtype.compute, "x0"), 0):
            return _relu(inner)
        converts = is_cast(n) and (n.dtype.is_float or not x.dtype.is_float)  # from float to integers would round
        return inner if converts and (n.dtype.is_float or (n.dtype.kind == "int" and n.dtype.bits > 8)) else ""
    names = tuple(Ref(o.dtype.compute, f"x{k}") for k, o in enumerate(n.operands))
    if len(names) != 2 or not isinstance(e, PrimitiveCall) or e.operands != names:
        return ""
    (x, y), (inner, other) = n.operands, operands
    if e.primitive == "mul" and not (isinstance(inner, QuantizedValue) and x.shape == n.shape):
        x, y, inner = y, x, other
    if x.shape != n.shape:
        return ""
    if not isinstance(inner, QuantizedValue):
        return inner
    if e.primitive == "mul" and n.dtype.is_float:
        scale = ops.as_dtype(y, f32)
        return replace(inner, scale=scale if inner.scale is None else ops.mul(inner.scale, scale))
    if e.primitive == "sub" and inner.scale is None and inner.zero_point is None:
        if is_known_zero(y):
            return inner
        zero_point = _as_integers(y)
        return "" if zero_point is None else replace(inner, zero_point=zero_point)
    return ""


def _relu(x: QuantizedValue) -> Match:
    """Take the maximum of the codes and the zero point: the code of 0."""
    if x.constants is None or x.constants[0] not in CODES.get(x.codes.dtype, ()):
        return ""
    return replace(x, codes=ops.maximum(x.codes, x.constants[0]))


def _through_selection(n: Node, operands: Sequence[Match]) -> Match:
    """Match a concatenation, or a maximum or minimum: each element is one of those of the operands, the codes keep the order."""
    joined = isinstance(n.structure, IndexMap) and n.structure.fill is None and bool(operands)
    if not (joined or is_extreme(n)):
        return ""
    values = [m for m in operands if isinstance(m, QuantizedValue)]
    if len(values) != len(operands) or values[0].constants is None:
        return ""
    if any(v.constants != values[0].constants or v.codes.dtype != values[0].codes.dtype for v in values):
        return ""
    return replace(values[0], codes=n.op(*(v.codes for v in values), loc=n.loc, **n.attrs))


def _through_padded_windows(w: PaddedWindows, image: Match) -> Match:
    """Match maxima over windows with padding that is never chosen: the lowest code is never chosen either."""
    if not isinstance(image, QuantizedValue) or image.constants is None or image.codes.dtype not in CODES:
        return ""
    if not is_extreme(w.without_padding()):
        return ""
    codes, (before, after) = image.codes, zip(*w.padding, strict=True)
    padded = ops.pad_spatial(codes, before, after, lowest(codes.dtype))
    return replace(image, codes=w.node.op(padded, loc=w.node.loc, **w.node.attrs))


def is_extreme(n: Node) -> bool:
    """Return True if each element of `n` is the largest or smallest of some numbers in its operand; bools are no numbers.

    Windows that lie in padding have none.
    """
    s = n.structure
    if (
        not isinstance(s, Reduction)
        or s.combine not in ("max", "min")
        or len(n.operands) != 1
        or n.dtype.kind == "bool"
    ):
        return False
    x = Ref(n.dtype, "x")
    return s.fn(x) == x and is_never_empty(n)


def _as_integers(n: Node) -> Node | None:
    """Return a tensor of integers in i32, whatever it was cast to; None if it may hold fractions."""
    while n.dtype.is_float and is_cast(n):
        n = n.operands[0]
    if n.dtype.is_integer:
        return ops.as_dtype(n, i32)
    if n.op is not CONSTANT:
        return None
    values = n.attrs["value"].numpy_values
    return constant_node(values.astype(np.int32)) if (values == np.rint(values)).all() else None


def is_known_zero(n: Node) -> bool:
    """Return True if `n` is a constant of zeros, behind views and casts."""
    while n.op is not CONSTANT:
        if not (is_view(n.structure, n) or is_cast(n)):
            return False
        (n,) = n.operands
    return not n.attrs["value"].array.any()


def is_known(n: Node) -> bool:
    """Return True if `n` depends on constants only."""
    return all(x.operands or x.op is CONSTANT for x in reachable([n], attrgetter("operands")))


def _through_view(n: Node, inner: Match) -> Match:
    if not isinstance(inner, QuantizedValue):
        return inner
    (read,) = n.structure.reads(n, index_vars("i", n.type.rank))  # type: ignore[attr-defined]  # views are index maps
    moved = [p if p is None else place(p, read.position, n.shape) for p in (inner.zero_point, inner.scale)]
    if any(new is None and old is not None for new, old in zip(moved, (inner.zero_point, inner.scale), strict=True)):
        return "a view divides its groups, which have scales or zero points of their own"
    return QuantizedValue(n.op(inner.codes, loc=n.loc, **n.attrs), *moved)


def _through_padding(n: Node, inner: Match, padding: tuple[tuple[Dim, Dim], ...]) -> Match:
    """Pad the codes with the zero point: the code of 0."""
    if not isinstance(inner, QuantizedValue):
        return inner
    zero = 0 if inner.zero_point is None else scalar_value(inner.zero_point)
    if zero is None:
        return "the padding needs a zero point that is one constant"
    if inner.scale is not None and not is_known(inner.scale):
        return "the padding needs a scale that is constant: 0 times one that is not finite would be NaN"
    before, after = zip(*padding, strict=True)
    if inner.scale is not None and any(
        a != b for a, b in zip(inner.scale.shape[::-1], n.shape[::-1], strict=False) if a != 1
    ):
        return "the scale varies along the padding"
    return replace(inner, codes=ops.pad(inner.codes, before=before, after=after, value=int(zero), loc=n.loc))


def place(parameter: Node, position: Position, shape: tuple[Dim, ...]) -> Node | None:
    """Return scales or zero points for a result of `shape` whose element `i` reads the operand at `position`.

    `parameter` broadcasts to the operand.  None if it varies along an index that is not one of the result.
    """
    if parameter.type.numel == 1:
        return parameter if not parameter.type.rank else ops.reshape(parameter, shape=())
    own = position[len(position) - parameter.type.rank :]
    varying = [k for k, d in enumerate(parameter.shape) if d != 1]
    extents, index = [parameter.shape[k] for k in varying], [own[k] for k in varying]
    numbers = {var(f"i{k}"): k for k in range(len(shape))}
    targets = [numbers[d] for d in index if not isinstance(d, int) and d in numbers]
    if len(set(targets)) == len(extents):
        if any(e != shape[t] for e, t in zip(extents, targets, strict=True)):
            return None
        order = sorted(range(len(varying)), key=targets.__getitem__)
        in_order = order == sorted(order)
        compact = parameter if in_order else ops.permute(ops.reshape(parameter, shape=extents), dims=order)
    else:  # several indices of the operand are one of the result, or the reverse, in the same order
        used = position_variables(tuple(index))
        targets = [k for k in range(len(shape)) if f"i{k}" in used]
        number = linearize_index([var(f"i{k}") for k in targets], [shape[k] for k in targets])
        if linearize_index(index, extents) != number:
            return None
        compact = parameter
    placed = tuple(d if k in targets else 1 for k, d in enumerate(shape))
    return ops.as_shape(compact, placed)


def operand_sums(n: Node, x: Node, number: int, dtype: DType) -> Node | None:
    """Return the sums, in `dtype`, of the elements of `x` that each result of `n` reads from operand `number`.

    None where a result adds parts of a dimension.
    """
    assert isinstance(n.structure, Reduction)
    reduced, position = index_vars("r", len(n.structure.domain(n).extents)), operand_positions(n)[number]
    dims = tuple(k for k, d in enumerate(position) if d in reduced)
    if {position[k] for k in dims} != set(reduced) or len(dims) != len(reduced):
        return None
    kept = tuple(0 if k in dims else d for k, d in enumerate(position))
    return place(ops.sum_(ops.as_dtype(x, dtype), dims=dims, keepdim=True), kept, n.shape)
