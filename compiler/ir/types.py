"""Element types, layouts and tensor types.

    type   ::= dtype "[" dims "]" layout?          f32[128, s0*4]
    layout ::= "{" physical ("," physical)* "}"    {0, 2, 3, 1} is channels-last, {0/16, 1, 0%16} is blocked by 16

A layout lists the *physical dimensions*, slowest first (as oneDNN's blocked layouts).  `d` is logical dimension `d`,
`d/b` its block number and `d%b` the index in the block of `b` elements.  `d+a:b` is dimension `d` with a margin of `a`
elements before and `b` after it: the tensor is a subview of a larger array.  No layout means dense row-major order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np

from compiler.ir.float_format import Array, FloatFormat
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
    """An element type.

    `numpy` is the type of interpreted values.  Constants and memory hold `storage`: codes of `format` if NumPy lacks it.
    Elements of kind "opaque" are codes that only PyTorch can read.  Those of kind "packed" are a few values of dtype `element`,
    side by side as in memory; their values are their bits as one integer.
    """

    name: str
    kind: str  # "float" | "int" | "uint" | "bool" | "complex" | "opaque" | "packed"
    bits: int
    numpy: np.dtype[Any]
    format: FloatFormat | None = field(default=None, compare=False)  # of floats
    torch_name: str = field(default="", compare=False)  # empty if NumPy's
    element: DType | None = field(default=None, compare=False)  # of packed values

    @cached_property
    def bytes(self) -> int:
        """Bytes that hold one element by itself."""
        return max(8, self.bits) // 8

    @property
    def memory_bits(self) -> int:
        """Bits from one element of an array to the next: elements of 2 or 4 bits share bytes, bools do not."""
        return 8 if self.kind == "bool" else self.bits

    @property
    def count(self) -> int:
        """Number of values in a packed element, 1 for others."""
        return self.bits // self.element.bits if self.element else 1

    @property
    def alignment(self) -> int:
        """Bytes that the address of an element is a multiple of: as of what it packs."""
        return self.element.bytes if self.element else self.bytes

    @cached_property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_opaque(self) -> bool:
        """True if only eager calls compute with the elements: no kernel and no other op does."""
        return self.kind in ("complex", "opaque")

    @cached_property
    def is_reduced_float(self) -> bool:
        """True for floats of less than 32 bits: arithmetic is done in `compute` and rounded to this type."""
        return self.kind == "float" and self.bits < 32

    def includes(self, other: DType) -> bool:
        """Return True if every number of type `other` is a number of this type."""
        if self.is_float:
            if other.is_float:
                return self.float_format.includes(other.float_format)
            return other.is_integer and self.float_format.precision >= other.bits - (other.kind == "int")
        is_wide = self.bits >= other.bits + (self.kind == "int") - (other.kind == "int")
        return self.is_integer and other.is_integer and is_wide and (self.kind == "int" or other.kind == "uint")

    @cached_property
    def compute(self) -> DType:
        """The type that arithmetic is done in, and sums are accumulated in: f32 for reduced floats, else the type itself."""
        return f32 if self.is_reduced_float else self

    @cached_property
    def is_encoded(self) -> bool:
        """True if memory holds codes, because NumPy and LLVM have no such type."""
        return self.numpy.itemsize > self.bytes

    @cached_property
    def storage(self) -> np.dtype[Any]:
        """NumPy type of elements in constants and memory."""
        return np.dtype(f"u{self.bytes}") if self.is_encoded else self.numpy

    @property
    def float_format(self) -> FloatFormat:
        """The format of a float type."""
        assert self.format is not None, self
        return self.format

    def decode(self, stored: Array) -> Array:
        """Return the values of `storage` elements in `numpy`."""
        return self.float_format.decode(stored) if self.is_encoded else np.asarray(stored)

    def encode(self, values: Any) -> Array:
        """Round `values` to this type; return them as `storage` elements."""
        array = np.asarray(values).astype(self.numpy)
        return self.float_format.encode(array) if self.is_encoded else array

    def pack(self, values: Array) -> Array:
        """Return packed elements of `numpy` from values of `element`, whose last axis holds those of each element."""
        assert self.element is not None, self
        return np.ascontiguousarray(self.element.encode(values)).view(self.numpy)[..., 0]

    def unpack(self, values: Array) -> Array:
        """Return the values of packed elements along a new last axis; inverse of `pack`."""
        assert self.element is not None, self
        return self.element.decode(np.ascontiguousarray(values)[..., np.newaxis].view(self.element.storage))

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


def packed_dtype(element: DType, count: int) -> DType:
    """Return the dtype whose elements are `count` values of `element`, which fill 16 or 32 bits."""
    bits = element.bits * count
    return DType(f"{element}x{count}", "packed", bits, np.dtype(f"u{bits // 8}"), element=element)


f64 = DType("f64", "float", 64, np.dtype(np.float64), FloatFormat(11, 52))
f32 = DType("f32", "float", 32, np.dtype(np.float32), FloatFormat(8, 23))
f16 = DType("f16", "float", 16, np.dtype(np.float16), FloatFormat(5, 10))
bf16 = DType("bf16", "float", 16, np.dtype(np.float32), FloatFormat(8, 7), "bfloat16")
f8e4m3fn = DType("f8e4m3fn", "float", 8, np.dtype(np.float32), FloatFormat(4, 3, has_infinities=False), "float8_e4m3fn")
f8e5m2 = DType("f8e5m2", "float", 8, np.dtype(np.float32), FloatFormat(5, 2), "float8_e5m2")
i64 = DType("i64", "int", 64, np.dtype(np.int64))
i32 = DType("i32", "int", 32, np.dtype(np.int32))
i16 = DType("i16", "int", 16, np.dtype(np.int16))
i8 = DType("i8", "int", 8, np.dtype(np.int8))
u8 = DType("u8", "uint", 8, np.dtype(np.uint8))
boolean = DType("bool", "bool", 1, np.dtype(np.bool_))
c64 = DType("c64", "complex", 64, np.dtype(np.complex64))
c128 = DType("c128", "complex", 128, np.dtype(np.complex128))
c32 = DType("c32", "opaque", 32, np.dtype(np.uint32), torch_name="complex32")
u16 = DType("u16", "opaque", 16, np.dtype(np.uint16))
u32 = DType("u32", "opaque", 32, np.dtype(np.uint32))
u64 = DType("u64", "opaque", 64, np.dtype(np.uint64))
f8e4m3fnuz = DType("f8e4m3fnuz", "opaque", 8, np.dtype(np.uint8), torch_name="float8_e4m3fnuz")
f8e5m2fnuz = DType("f8e5m2fnuz", "opaque", 8, np.dtype(np.uint8), torch_name="float8_e5m2fnuz")
f8e8m0fnu = DType("f8e8m0fnu", "opaque", 8, np.dtype(np.uint8), torch_name="float8_e8m0fnu")
f4e2m1fnx2 = DType("f4e2m1fnx2", "opaque", 8, np.dtype(np.uint8), torch_name="float4_e2m1fn_x2")  # a pair of elements

DTYPES: Mapping[str, DType] = {d.name: d for d in tuple(globals().values()) if isinstance(d, DType)}
"""Every element type by name."""

KERNEL_DTYPES: Mapping[str, DType] = {name: d for name, d in DTYPES.items() if not d.is_opaque}
"""The element types that kernels can compute with, by name."""

bf16x2, i16x2 = packed_dtype(bf16, 2), packed_dtype(i16, 2)
i8x4, u8x4, i8x2, u8x2 = (packed_dtype(element, count) for count in (4, 2) for element in (i8, u8))

PACKED_DTYPES: Mapping[str, DType] = {d.name: d for d in (bf16x2, i16x2, i8x4, u8x4, i8x2, u8x2)}
"""The types of packed elements that kernels can read, by name."""


@dataclass(frozen=True)
class PhysicalDim:
    """One dimension of the array in memory: logical dimension `dim`, its block number, or the index in the block.

    `block_size` is 0 for an unblocked dimension, which may have a margin: `margin_before` and `margin_after` elements
    around it belong to other tensors.  `is_inner` selects the index in the block.
    """

    dim: int
    block_size: int = 0
    is_inner: bool = False
    margin_before: Dim = 0
    margin_after: Dim = 0

    def __str__(self) -> str:
        if self.block_size:
            return f"{self.dim}{'%' if self.is_inner else '/'}{self.block_size}"
        margin = f"+{self.margin_before}:{self.margin_after}" if self.margin_before or self.margin_after else ""
        return f"{self.dim}{margin}"


@dataclass(frozen=True)
class Layout:
    """The physical dimensions of a tensor in memory, slowest first."""

    physical_dims: tuple[PhysicalDim, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.physical_dims)

    @staticmethod
    def from_order(order: Sequence[int]) -> Layout:
        """Return the dense layout with logical dimensions in `order`, slowest first."""
        return Layout(tuple(PhysicalDim(d) for d in order))

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.physical_dims)) + "}"

    def is_packing(self, rank: int) -> bool:
        """Return True if each of `rank` dimensions appears once: unsplit, or as block number and index in the block; no margins."""
        expected = list[PhysicalDim]()
        for d in range(rank):
            block = next((g.block_size for g in self.physical_dims if g.dim == d), 0)
            expected += [PhysicalDim(d, block), *[PhysicalDim(d, block, is_inner=True)] * bool(block)]
        return Counter(self.physical_dims) == Counter(expected)

    def physical_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """Return the extent of each physical dimension; a blocked one is padded to full blocks."""
        return tuple(
            shape[d.dim] + d.margin_before + d.margin_after
            if not d.block_size
            else d.block_size
            if d.is_inner
            else ceildiv(shape[d.dim], d.block_size)
            for d in self.physical_dims
        )

    def physical_index(self, index: Sequence[Dim]) -> tuple[Dim, ...]:
        """Return the index of logical element `index` along each physical dimension."""
        return tuple(
            index[d.dim] + d.margin_before
            if not d.block_size
            else (mod if d.is_inner else floordiv)(index[d.dim], d.block_size)
            for d in self.physical_dims
        )

    def specialize(self, values: Mapping[str, Dim]) -> Layout:
        """Return the layout with symbols in its margins replaced by `values`."""

        def fix(d: PhysicalDim) -> PhysicalDim:
            before, after = substitute(d.margin_before, values), substitute(d.margin_after, values)
            return replace(d, margin_before=before, margin_after=after)

        return Layout(tuple(map(fix, self.physical_dims)))

    @property
    def is_permutation(self) -> bool:
        """True if the layout only permutes dimensions: no blocks and no margins."""
        return not any(d.block_size or d.margin_before or d.margin_after for d in self.physical_dims)


@dataclass(frozen=True)
class TensorType:
    """Element type, logical shape (ints or symbolic dimensions) and layout of a tensor; no layout is row-major."""

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
        """Size in memory in bytes, including the layout's padding and margins."""
        elements, bits = product(self.physical_shape), self.dtype.memory_bits
        return elements * (bits // 8) if bits % 8 == 0 else ceildiv(elements * bits, 8)

    @property
    def contiguous_dim(self) -> int:
        """The dimension of a tensor with elements along which neighbours lie side by side."""
        return self.layout.physical_dims[-1].dim if self.layout else self.rank - 1

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the variables and dynamic sizes in the shape."""
        return frozenset().union(*(variables(d) | {s.name for s in dynamic_sizes(d)} for d in self.shape))

    def static_shape(self) -> tuple[int, ...]:
        """Return the shape as ints; KeyError for a variable, DynamicShapeError for a dynamic size."""
        return tuple(evaluate(d, {}) for d in self.shape)

    def fits(self, shape: Sequence[int]) -> bool:
        """Return True if `shape` has this rank and the same static sizes; a symbolic dimension fits any size."""
        return len(shape) == self.rank and all(
            d == n for d, n in zip(self.shape, shape, strict=True) if isinstance(d, int)
        )

    def offset(self, index: Sequence[Dim]) -> Dim:
        """Return the offset of logical element `index` from the start of the buffer, in elements."""
        return _offset(self, tuple(index))

    def bit_address(self, index: Sequence[Dim]) -> tuple[Dim, Dim]:
        """Return the byte that logical element `index` begins in, from the start of the buffer, and its lowest bit there."""
        bits = self.offset(index) * self.dtype.memory_bits
        return floordiv(bits, 8), mod(bits, 8)

    def subview_slices(self) -> tuple[slice, ...]:
        """Return the slices that select the tensor in an array whose shape includes the margins."""
        margin = {d.dim: d.margin_before for d in self.layout.physical_dims if not d.is_inner} if self.layout else {}
        return tuple(slice(margin.get(d, 0), margin.get(d, 0) + n) for d, n in enumerate(self.shape))

    @property
    def parent(self) -> TensorType:
        """The type of the array whose shape includes the margins; the type itself without any."""
        if self.layout is None:
            return self
        shape = list(self.shape)
        for d in self.layout.physical_dims:
            shape[d.dim] = shape[d.dim] + d.margin_before + d.margin_after
        plain = (replace(d, margin_before=0, margin_after=0) for d in self.layout.physical_dims)
        return replace(self, shape=tuple(shape), layout=Layout(tuple(plain)))

    def is_subview_of(self, parent: TensorType) -> bool:
        """Return True if the tensor is `parent` or a box inside it, or those in packed elements."""
        if self.dtype.element and self != parent:
            return self.dtype.element == parent.dtype and self.elementwise(parent.shape).is_subview_of(parent)
        own, outer = self.layout, parent.layout
        order = [g.dim for g in outer.physical_dims] if outer else list(range(parent.rank))
        return self == parent or (
            own is not None
            and (outer is None or outer.is_permutation)
            and [g.dim for g in own.physical_dims] == order
            and self.dtype == parent.dtype
            and self.physical_shape == parent.physical_shape
        )

    def is_disjoint_from(self, other: TensorType) -> bool:
        """Return True if the two subviews of one array provably share no element."""
        both = zip(self.subview_slices(), other.subview_slices(), strict=True)
        pairs = [(a, b) for a, b in both if isinstance(a.stop, int) and isinstance(b.stop, int)]
        return any(a.stop <= b.start or b.stop <= a.start for a, b in pairs)

    def packed(self, dim: int, dtype: DType) -> TensorType | None:
        """Return the type of the same memory in packed elements, of neighbours along `dim`; None if those are not contiguous."""
        order = self.layout or _row_major(self.rank)
        last, extent = order.physical_dims[-1], self.shape[dim]
        counts = (extent, last.margin_before, last.margin_after)
        if last.dim != dim or last.block_size or any(n % dtype.count != 0 for n in counts):
            return None
        _, before, after = (floordiv(n, dtype.count) for n in counts)
        physical = (*order.physical_dims[:-1], replace(last, margin_before=before, margin_after=after))
        return self.repacked(dim, dtype, Layout(physical) if self.layout else None)

    def repacked(self, dim: int, dtype: DType, layout: Layout | None = None) -> TensorType:
        """Return the type of packed elements of neighbours along `dim`, in a layout of its own."""
        shape = [floordiv(n, dtype.count) if d == dim else n for d, n in enumerate(self.shape)]
        return TensorType(dtype, tuple(shape), layout)

    def packed_dim(self, shape: Sequence[Dim]) -> int:
        """Return the dimension along which neighbours are packed, in elements of a tensor of `shape` or of a box inside it."""
        differing = [d for d, (n, m) in enumerate(zip(shape, self.shape, strict=True)) if n != m]
        return differing[0] if len(differing) == 1 else self.contiguous_dim

    def elementwise(self, shape: Sequence[Dim]) -> TensorType:
        """Return the type of the same memory in single elements, inverse of `packed`; `shape` as for `packed_dim`."""
        count, element = self.dtype.count, self.dtype.element
        if element is None or tuple(shape) == self.shape:
            return self
        dim, physical = self.packed_dim(shape), list((self.layout or _row_major(self.rank)).physical_dims)
        place = next(k for k, g in enumerate(physical) if g.dim == dim)
        if place == len(physical) - 1:
            before, after = physical[place].margin_before * count, physical[place].margin_after * count
            physical[place] = PhysicalDim(dim, margin_before=before, margin_after=after)
        elif physical[-1].dim == dim:  # the inner dimension of blocks: they have more elements
            physical = [replace(g, block_size=g.block_size * count) if g.dim == dim else g for g in physical]
        else:
            physical[place:] = [PhysicalDim(dim, count), *physical[place + 1 :], PhysicalDim(dim, count, is_inner=True)]
        layout = Layout(tuple(physical))
        extents = tuple(n * count if d == dim else n for d, n in enumerate(self.shape))
        is_default = self.layout is None and layout == _row_major(self.rank)
        return TensorType(element, extents, None if is_default else layout)

    def with_shape(self, shape: Sequence[Dim]) -> TensorType:
        return TensorType(self.dtype, tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape, self.layout)

    def specialize(self, values: Mapping[str, Dim]) -> TensorType:
        """Return the type with symbolic dimensions replaced by `values`."""
        layout = self.layout.specialize(values) if self.layout else None
        return TensorType(self.dtype, tuple(substitute(d, values) for d in self.shape), layout)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]{self.layout or ''}"

    __repr__ = __str__


ResultType: TypeAlias = TensorType | tuple[TensorType, ...]
"""Type of a node's result; a tuple for a node with several results."""


@lru_cache(maxsize=4096)
def with_innermost(type: TensorType, dim: int) -> TensorType:
    """Return the type with dimension `dim` stored innermost and the others in order around it; margins stay."""
    dims = type.layout.physical_dims if type.layout else tuple(map(PhysicalDim, range(type.rank)))
    return replace(type, layout=Layout(tuple(sorted(dims, key=lambda p: (p.dim == dim, p.dim)))))


@lru_cache
def _row_major(rank: int) -> Layout:
    return Layout.from_order(range(rank))


@lru_cache(maxsize=65536)
def _offset(type: TensorType, index: tuple[Dim, ...]) -> Dim:
    """Compute `TensorType.offset`; cached, because every analysis of a kernel queries its accesses again."""
    physical = type.layout.physical_index(index) if type.layout else index
    total: Dim = 0
    for extent, i in zip(type.physical_shape, physical, strict=True):
        total = total * extent + i
    return total


def is_valid_extent(d: object) -> bool:
    """Return True if `d` can be the extent of a dimension: a non-negative int or symbolic."""
    return d >= 0 if isinstance(d, int) else isinstance(d, IndexExpr)


def broadcast_shapes(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return the broadcast of `shapes` by NumPy's and PyTorch's rule; ValueError if they do not broadcast."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    for axis in range(-rank, 0):
        extents = [s[axis] for s in shapes if len(s) >= -axis and s[axis] != 1]
        if any(n != extents[0] for n in extents):
            raise ValueError(f"shapes {', '.join(str(list(s)) for s in shapes)} do not broadcast at dimension {axis}")
        result.append(extents[0] if extents else 1)
    return tuple(result)


def broadcast_index(shape: Sequence[Dim], index: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return the index in an operand of `shape` that element `index` of the broadcast result reads."""
    tail = index[len(index) - len(shape) :]
    return tuple(0 if s == 1 else i for s, i in zip(shape, tail, strict=True))


def summand_dtype(element: DType, result: DType) -> DType:
    """Return the type in which a reduction to `result` takes each element: its accumulator's, or a wider `result`."""
    return result.compute if result.includes(element) else element.compute
