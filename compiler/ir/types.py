"""Element types, layouts and tensor types.

    type   ::= dtype "[" dims "]" layout?          f32[128, s0*4]
    layout ::= "{" digit ("," digit)* "}"          {0, 2, 3, 1} is channels-last, {0/16, 1, 0%16} is blocked by 16

A layout lists the *digits* of the physical array from the slowest to the fastest.  Digit `d` is a whole logical dimension,
`d/b` its block number and `d%b` the position inside the block.  `d+a:b` is a whole dimension with room for `a` elements
before it and `b` after: the tensor is a box inside a larger array.  No layout means dense row-major order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from compiler.ir.symbolic.index_expr import (
    Dim,
    IndexExpr,
    ceildiv,
    dynamic_sizes,
    evaluate,
    floordiv,
    mod,
    product,
    substitute,
    variables,
)


@dataclass(frozen=True)
class DType:
    """An element type.  `numpy` is the type its values are held in by interpreters (bf16 is held as float32)."""

    name: str
    kind: str  # "float" | "int" | "uint" | "bool" | "complex"
    bits: int
    numpy: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """Bytes one element takes in memory."""
        return max(8, self.bits) // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_half(self) -> bool:
        """Whether arithmetic happens in f32 and is rounded to this type."""
        return self.kind == "float" and self.bits == 16

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


f64 = DType("f64", "float", 64, np.dtype(np.float64))
f32 = DType("f32", "float", 32, np.dtype(np.float32))
f16 = DType("f16", "float", 16, np.dtype(np.float16))
bf16 = DType("bf16", "float", 16, np.dtype(np.float32))
i64 = DType("i64", "int", 64, np.dtype(np.int64))
i32 = DType("i32", "int", 32, np.dtype(np.int32))
i16 = DType("i16", "int", 16, np.dtype(np.int16))
i8 = DType("i8", "int", 8, np.dtype(np.int8))
u8 = DType("u8", "uint", 8, np.dtype(np.uint8))
boolean = DType("bool", "bool", 1, np.dtype(np.bool_))
c64 = DType("c64", "complex", 64, np.dtype(np.complex64))  # complex numbers only pass between calls into PyTorch
c128 = DType("c128", "complex", 128, np.dtype(np.complex128))

DTYPES: Mapping[str, DType] = {d.name: d for d in (f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean, c64, c128)}

KERNEL_DTYPES: Mapping[str, DType] = {name: d for name, d in DTYPES.items() if d.kind != "complex"}
"""The element types that kernels compute with."""


@dataclass(frozen=True)
class PhysicalDim:
    """One physical dimension: logical dimension `dim`, or its block number (`/block`), or its place in the block (`%block`).

    A whole dimension may have a margin: `before` elements in front and `after` behind that belong to other tensors.
    """

    dim: int
    block_size: int = 0
    is_inner: bool = False
    margin_before: Dim = 0
    margin_after: Dim = 0

    def __str__(self) -> str:
        if self.block_size:
            return f"{self.dim}{'%' if self.is_inner else '/'}{self.block_size}"
        return (
            f"{self.dim}+{self.margin_before}:{self.margin_after}"
            if self.margin_before or self.margin_after
            else f"{self.dim}"
        )


@dataclass(frozen=True)
class Layout:
    """The order of a tensor in memory, slowest digit first."""

    physical_dims: tuple[PhysicalDim, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.physical_dims)

    @staticmethod
    def from_order(order: Sequence[int]) -> Layout:
        """Dense, with logical dimensions stored in `order`, slowest first."""
        return Layout(tuple(PhysicalDim(d) for d in order))

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.physical_dims)) + "}"

    def physical_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """Extent of each digit; a dimension that its block does not divide is padded up."""
        return tuple(
            shape[d.dim] + d.margin_before + d.margin_after
            if not d.block_size
            else d.block_size
            if d.is_inner
            else ceildiv(shape[d.dim], d.block_size)
            for d in self.physical_dims
        )

    def physical_index(self, index: Sequence[Dim]) -> tuple[Dim, ...]:
        """Position of logical `index` along each digit."""
        return tuple(
            index[d.dim] + d.margin_before
            if not d.block_size
            else (mod if d.is_inner else floordiv)(index[d.dim], d.block_size)
            for d in self.physical_dims
        )

    def specialize(self, values: Mapping[str, Dim]) -> Layout:
        """The layout with symbols in its margins replaced by `values`."""
        return Layout(
            tuple(
                replace(
                    d,
                    margin_before=substitute(d.margin_before, values),
                    margin_after=substitute(d.margin_after, values),
                )
                for d in self.physical_dims
            )
        )

    @property
    def is_permutation(self) -> bool:
        """Whether every element has its place and nothing else does: whole dimensions without margins."""
        return not any(d.block_size or d.margin_before or d.margin_after for d in self.physical_dims)


@dataclass(frozen=True)
class TensorType:
    """dtype, logical shape (ints or symbolic dimensions) and layout of a tensor."""

    dtype: DType
    shape: tuple[Dim, ...]
    layout: Layout | None = None

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.dtype.name, self.shape, self.layout))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Dim:
        """Number of logical elements."""
        return product(self.shape)

    @property
    def physical_shape(self) -> tuple[Dim, ...]:
        return self.layout.physical_shape(self.shape) if self.layout else self.shape

    @property
    def nbytes(self) -> Dim:
        """Bytes in memory, padding of the layout included."""
        return product(self.physical_shape) * self.dtype.bytes

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbolic dimensions."""
        return frozenset().union(*(variables(d) | {s.name for s in dynamic_sizes(d)} for d in self.shape))

    def static_shape(self) -> tuple[int, ...]:
        """The shape as ints; KeyError where a dimension is symbolic."""
        return tuple(evaluate(d, {}) for d in self.shape)

    def offset(self, index: Sequence[Dim]) -> Dim:
        """Elements from the start of the buffer to logical `index`."""
        return _offset(self, tuple(index))

    def subview_slices(self) -> tuple[slice, ...]:
        """The tensor's own part of an array whose shape includes the margins of its layout."""
        margin = {d.dim: d.margin_before for d in self.layout.physical_dims if not d.is_inner} if self.layout else {}
        return tuple(slice(margin.get(d, 0), margin.get(d, 0) + n) for d, n in enumerate(self.shape))

    def is_subview_of(self, parent: TensorType) -> bool:
        """Whether the tensor is `whole`, or a box inside it."""
        own, around = self.layout, parent.layout
        order = [g.dim for g in around.physical_dims] if around else list(range(parent.rank))
        return self == parent or (
            own is not None
            and (around is None or around.is_permutation)
            and [g.dim for g in own.physical_dims] == order
            and self.dtype == parent.dtype
            and self.physical_shape == parent.physical_shape
        )

    def is_disjoint_from(self, other: TensorType) -> bool:
        """Whether two boxes in one array share no element."""
        both = zip(self.subview_slices(), other.subview_slices(), strict=True)
        pairs = [(a, b) for a, b in both if isinstance(a.stop, int) and isinstance(b.stop, int)]
        return any(a.stop <= b.start or b.stop <= a.start for a, b in pairs)

    def with_shape(self, shape: Sequence[Dim]) -> TensorType:
        return TensorType(self.dtype, tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape, self.layout)

    def specialize(self, values: Mapping[str, Dim]) -> TensorType:
        """The type with symbolic dimensions replaced by `values`."""
        layout = self.layout.specialize(values) if self.layout else None
        return TensorType(self.dtype, tuple(substitute(d, values) for d in self.shape), layout)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]{self.layout or ''}"

    __repr__ = __str__


@lru_cache(maxsize=65536)
def _offset(type: TensorType, index: tuple[Dim, ...]) -> Dim:
    """`TensorType.offset`: every look at a kernel asks for those of its loads and stores again."""
    place = type.layout.physical_index(index) if type.layout else index
    total: Dim = 0
    for extent, i in zip(type.physical_shape, place, strict=True):
        total = total * extent + i
    return total


def is_valid_extent(d: object) -> bool:
    """Whether a dimension may have `d` elements."""
    return d >= 0 if isinstance(d, int) else isinstance(d, IndexExpr)


def broadcast_shapes(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The common shape of `shapes`, aligned at the last dimension, size 1 stretching (as NumPy and PyTorch have it)."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    for axis in range(-rank, 0):
        sizes = [s[axis] for s in shapes if len(s) >= -axis]
        wide = [s for s in sizes if s != 1]
        if any(s != wide[0] for s in wide):
            raise ValueError(f"shapes {', '.join(str(list(s)) for s in shapes)} do not broadcast at dimension {axis}")
        result.append(wide[0] if wide else 1)
    return tuple(result)


def broadcast_index(shape: Sequence[Dim], index: Sequence[Dim]) -> tuple[Dim, ...]:
    """Where element `index` of the broadcast result lies in an operand of `shape`."""
    tail = index[len(index) - len(shape) :]
    return tuple(0 if s == 1 else i for s, i in zip(shape, tail, strict=True))


def accumulator_dtype(dtype: DType) -> DType:
    """The type a reduction over `dtype` is accumulated in."""
    return f32 if dtype.is_half else dtype


def summand_dtype(element: DType, result: DType) -> DType:
    """The type in which a reduction to `result` takes an element: what it is accumulated in, or `result` if that is wider."""
    own = accumulator_dtype(element)
    return result if result.kind == own.kind and result.bits > own.bits else own
