"""Type rules, sample inputs and graph idioms shared by several families of ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from compiler.ir.graph.node import Node, SampleInput, Signature, TypeRule
from compiler.ir.graph.op import sample_input
from compiler.ir.graph.structure import Guard, Position
from compiler.ir.symbolic.index_expr import Dim, floordiv
from compiler.ir.types import TensorType, f32

Result = TypeVar("Result")

FLOATS = ("f32", "f64", "bf16", "f16")
"""Dtypes that samples of ops on floats have."""

UNARY_SHAPES = ("4, 5", "0, 3", "", "7", "2, 1, 3")
"""Sample shapes of elementwise ops: plain, empty, rank 0, odd, with a dimension of size 1."""


def unary(*, low: float = -4.0, high: float = 4.0, dtypes: Sequence[str] = ("f32",), **attrs: Any) -> list[SampleInput]:
    """Return samples of one operand in low..high: all shapes in the first dtype, one shape in each other."""
    shapes = [sample_input(f"{dtypes[0]}[{shape}]", low=low, high=high, **attrs) for shape in UNARY_SHAPES]
    return shapes + [sample_input(f"{d}[3, 4]", low=low, high=high, **attrs) for d in dtypes[1:]]


def binary(
    *, low: float = -4.0, high: float = 4.0, dtypes: Sequence[str] = ("f32",), **attrs: Any
) -> list[SampleInput]:
    """Return samples of two operands in low..high that broadcast against each other."""
    first = dtypes[0]
    pairs = [("4, 5", "4, 5"), ("4, 5", "5"), ("2, 1, 3", "4, 1"), ("", "3"), ("0, 3", "1, 3"), ("", "")]
    shapes = [sample_input(f"{first}[{a}]", f"{first}[{b}]", low=low, high=high, **attrs) for a, b in pairs]
    return shapes + [sample_input(f"{d}[3, 4]", f"{d}[4]", low=low, high=high, **attrs) for d in dtypes[1:]]


def same_type(s: Signature) -> TensorType:
    """Return dtype and shape of operand 0, with a dense layout."""
    return TensorType(s.types[0].dtype, s.types[0].shape)


def single_or_tuple(results: tuple[Result, ...]) -> Result | tuple[Result, ...]:
    """Return what an op with one or several results has for them: their types, or their values."""
    return results[0] if len(results) == 1 else results


def check_dims(s: Signature, dims: Sequence[int]) -> None:
    """Raise TypeRuleError unless `dims` are different dimensions of operand 0, counted from 0."""
    rank = s.types[0].rank
    for d in dims:
        if not 0 <= d < rank:
            raise s.error(f"dimension {d} is out of range 0..{rank - 1}")
    if len(set(dims)) != len(dims):
        raise s.error(f"dimensions {list(dims)} are not distinct")


def check_positive_attrs(s: Signature) -> None:
    """Raise TypeRuleError unless strides, steps, dilations and groups are positive."""
    for name in ("stride", "step", "dilation", "groups"):
        value = s.attrs.get(name, 1)
        for n in value if isinstance(value, tuple) else (value,):
            if isinstance(n, int) and n < 1:
                raise s.error(f"{name} must be positive, not {n}")


def check_lengths(s: Signature, count: int, names: Sequence[str]) -> None:
    """Raise TypeRuleError unless each of these attributes has an entry for each of `count` window dimensions."""
    for name in names:
        if len(s.attrs[name]) != count:
            raise s.error(f"{name} has {len(s.attrs[name])} entries for {count} window dimensions")


def window_count(s: Signature, extent: Dim, size: Dim, stride: int, dilation: int) -> Dim:
    """Return the number of windows of `size` elements, `dilation` apart, that start every `stride` elements in `extent`.

    Raises TypeRuleError if there is none.
    """
    count = floordiv(extent - dilation * (size - 1) - 1, stride) + 1
    if isinstance(count, int) and count < 1:
        raise s.error(f"a window of {size} elements, {dilation} apart, is larger than the input's {extent}")
    return count


def implicit_padding(s: Signature | Node, count: int) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """Return how far windows reach before and after the input in each of `count` window dimensions, in elements."""
    zeros = (0,) * count
    return s.attrs.get("before") or zeros, s.attrs.get("after") or zeros


def padded_extents(s: Signature, extents: Sequence[Dim]) -> Sequence[Dim]:
    """Return the extents of the window dimensions with their implicit padding; TypeRuleError if its attributes are no such."""
    before, after = implicit_padding(s, len(extents))
    if not len(before) == len(after) == len(extents) or any(isinstance(p, int) and p < 0 for p in (*before, *after)):
        raise s.error("before and after need one entry per window dimension, none of them negative")
    return [b + n + a for b, n, a in zip(before, extents, after, strict=True)]


def padding_guards(n: Node, index: Position, extents: Sequence[Dim]) -> tuple[Guard, ...]:
    """Return the guards under which element `index` of the window dimensions lies inside the input, not in implicit padding."""
    dims = zip(index, extents, *implicit_padding(n, len(extents)), strict=True)
    return tuple(Guard(d, 0, size) for d, size, before, after in dims if before != 0 or after != 0)


def reduced_shape(shape: Sequence[Dim], dims: Sequence[int], keepdim: bool) -> tuple[Dim, ...]:
    """Return `shape` with `dims` removed, or set to 1 if `keepdim`."""
    if keepdim:
        return tuple(1 if k in dims else d for k, d in enumerate(shape))
    return tuple(d for k, d in enumerate(shape) if k not in dims)


def reduction_type(dtype: Any = None) -> TypeRule:
    """Return a type rule: shape reduced over attribute `dims`; dtype of the operand, or `dtype` if given."""

    def rule(s: Signature) -> TensorType:
        check_dims(s, s.attrs["dims"])
        x = s.types[0]
        return TensorType(dtype or x.dtype, reduced_shape(x.shape, s.attrs["dims"], s.attrs["keepdim"]))

    return rule


def in_f32(expand: Callable[..., Node]) -> Callable[..., Node]:
    """Wrap an expansion: reduced float operands are cast to f32 first, and the result is rounded once, at the end."""
    from compiler.ir.ops.cast import cast

    def expand_wide(node: Node, *operands: Node) -> Node:
        if not node.dtype.is_reduced_float:
            return expand(node, *operands)
        wide = tuple(cast(o, dtype=f32) if o.dtype.is_reduced_float else o for o in operands)
        widened = replace(node, operands=wide, result_type=node.type.with_dtype(f32))
        return cast(expand(widened, *wide), dtype=node.dtype)

    return expand_wide
