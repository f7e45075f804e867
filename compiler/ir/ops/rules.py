"""Type rules, samples and small graph idioms that several families of ops share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from compiler.ir.graph.node import Node, SampleInput, Signature, TypeRule
from compiler.ir.graph.op import sample_input
from compiler.ir.symbolic.index_expr import Dim, floordiv
from compiler.ir.types import TensorType, f32

UNARY_SHAPES = ("4, 5", "0, 3", "", "7", "2, 1, 3")
"""Shapes every elementwise op is tried on: plain, empty, rank 0, odd, with a stretched dimension."""


def unary(*, low: float = -4.0, high: float = 4.0, dtypes: Sequence[str] = ("f32",), **attrs: Any) -> list[SampleInput]:
    """Samples of one operand: every shape in the first dtype, one shape in the others."""
    shapes = [sample_input(f"{dtypes[0]}[{shape}]", low=low, high=high, **attrs) for shape in UNARY_SHAPES]
    return shapes + [sample_input(f"{d}[3, 4]", low=low, high=high, **attrs) for d in dtypes[1:]]


def binary(
    *, low: float = -4.0, high: float = 4.0, dtypes: Sequence[str] = ("f32",), **attrs: Any
) -> list[SampleInput]:
    """Samples of two operands that broadcast against each other."""
    first = dtypes[0]
    pairs = [("4, 5", "4, 5"), ("4, 5", "5"), ("2, 1, 3", "4, 1"), ("", "3"), ("0, 3", "1, 3"), ("", "")]
    shapes = [sample_input(f"{first}[{a}]", f"{first}[{b}]", low=low, high=high, **attrs) for a, b in pairs]
    return shapes + [sample_input(f"{d}[3, 4]", f"{d}[4]", low=low, high=high, **attrs) for d in dtypes[1:]]


def same_type(s: Signature) -> TensorType:
    """dtype and shape of the first operand, in dense order."""
    return TensorType(s.types[0].dtype, s.types[0].shape)


def single_or_tuple(types: tuple[TensorType, ...]) -> TensorType | tuple[TensorType, ...]:
    """The result of an op that may have one or several."""
    return types[0] if len(types) == 1 else types


def check_dims(s: Signature, dims: Sequence[int]) -> None:
    """Dimensions of operand 0 must exist and differ; they count from 0."""
    rank = s.types[0].rank
    for d in dims:
        if not 0 <= d < rank:
            raise s.error(f"there is no dimension {d} (they are 0..{rank - 1})")
    if len(set(dims)) != len(dims):
        raise s.error(f"a dimension is named twice in {list(dims)}")


def check_positive_attrs(s: Signature) -> None:
    """Strides, dilations and groups count from 1."""
    for name in ("stride", "step", "dilation", "groups"):
        given = s.attrs.get(name, 1)
        if least := [n for n in (given if isinstance(given, tuple) else (given,)) if isinstance(n, int) and n < 1]:
            raise s.error(f"{name} must be positive, not {least[0]}")


def check_lengths(s: Signature, count: int, names: Sequence[str]) -> None:
    """The lists of these names have an entry for each of `count` window dimensions."""
    for name in names:
        if len(s.attrs[name]) != count:
            raise s.error(f"{name} has {len(s.attrs[name])} entries for {count} window dimensions")


def window_count(s: Signature, extent: Dim, size: Dim, stride: int, dilation: int) -> Dim:
    """How many windows of `size` elements, `dilation` apart, start every `stride` elements inside `extent`: one at least."""
    count = floordiv(extent - dilation * (size - 1) - 1, stride) + 1
    if isinstance(count, int) and count < 1:
        raise s.error(f"a window of {size} elements, {dilation} apart, is larger than the input's {extent}")
    return count


def reduced_shape(shape: Sequence[Dim], dims: Sequence[int], keepdim: bool) -> tuple[Dim, ...]:
    """`shape` with `dims` removed, or made 1."""
    if keepdim:
        return tuple(1 if k in dims else d for k, d in enumerate(shape))
    return tuple(d for k, d in enumerate(shape) if k not in dims)


def reduction_type(dtype: Any = None) -> TypeRule:
    """Shape reduced over attribute `dims`; dtype of the operand, or `dtype`."""

    def rule(s: Signature) -> TensorType:
        check_dims(s, s.attrs["dims"])
        return TensorType(
            dtype or s.types[0].dtype, reduced_shape(s.types[0].shape, s.attrs["dims"], s.attrs["keepdim"])
        )

    return rule


def in_f32(expand: Callable[..., Node]) -> Callable[..., Node]:
    """An expansion whose half-precision operands are widened first and whose result is rounded once, at the end."""
    from compiler.ir.ops.cast import cast

    def expand_wide(node: Node, *operands: Node) -> Node:
        if not node.dtype.is_half:
            return expand(node, *operands)
        wide = tuple(cast(o, dtype=f32) if o.dtype.is_half else o for o in operands)
        widened = replace(node, operands=wide, result_type=node.type.with_dtype(f32))
        return cast(expand(widened, *wide), dtype=node.dtype)

    return expand_wide
