"""Sorting: calls into PyTorch, and expansions into other ops for rows on which these are faster.

Elements become *keys*, integers of the same order.  Where indices are asked for, the bits of an element's index stand below those of
its key, so that equal elements keep their order, and what is sorted tells its index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import log2

import torch

from compiler.ir.graph.node import REQUIRED, Node, Signature, scalar_constant
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Opaque, highest
from compiler.ir.ops.cast import as_dtype, bitcast
from compiler.ir.ops.concat_pad import cat, pad
from compiler.ir.ops.creation import full, iota
from compiler.ir.ops.gather import gather
from compiler.ir.ops.logic import and_, eq, gt, isnan, not_, or_, shift_left, shift_right, where, xor
from compiler.ir.ops.radix_sort import sorted_by_digits, sorted_indices, sorted_keys
from compiler.ir.ops.reductions import amin
from compiler.ir.ops.rules import check_dims, same_type
from compiler.ir.ops.sorting_network import smallest_sorted
from compiler.ir.ops.views import permute, reshape, slice_
from compiler.ir.symbolic.index_expr import Dim, product
from compiler.ir.types import DType, TensorType, i16, i32, i64

MAX_ROUNDS = 16
"""Most elements that are selected one after another."""

VALUES, INDICES = 0, 1
"""Numbers of the results."""


def _sort_type(s: Signature) -> tuple[TensorType, TensorType]:
    check_dims(s, [s.attrs["dim"]] if s.types[0].rank else [])
    return same_type(s), TensorType(i64, s.types[0].shape)


def _topk_type(s: Signature) -> tuple[TensorType, TensorType]:
    x, dim, k = s.types[0], s.attrs["dim"], s.attrs["k"]
    check_dims(s, [dim] if x.rank else [])
    if x.rank and isinstance(x.shape[dim], int) and isinstance(k, int) and k > x.shape[dim]:
        raise s.error(f"dimension {dim} has only {x.shape[dim]} elements")
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :]) if x.rank else ()
    return TensorType(x.dtype, shape), TensorType(i64, shape)


def _key_dtype(dtype: DType) -> DType:
    """Return the integers that keys of a dtype are computed in: at least 32 bits, which every target has."""
    return i64 if dtype.bits == 64 else i32


def _keys(x: Node, keep_zero_sign: bool) -> Node:
    """Return integers in the order of the elements; NaN is the greatest, and zeros are equal unless `keep_zero_sign`."""
    dtype = _key_dtype(x.dtype)
    if not x.dtype.is_float:
        return as_dtype(x, dtype)
    same_width = {16: i16, 32: i32, 64: i64}[x.dtype.bits]
    bits = bitcast(x if keep_zero_sign else where(eq(x, 0.0), 0.0, x), dtype=same_width)
    return where(isnan(x), highest(same_width), _flip_magnitudes(as_dtype(bits, dtype), x.dtype.bits))


def _elements(keys: Node, dtype: DType) -> Node:
    """Return the elements of `dtype` with these keys."""
    if not dtype.is_float:
        return as_dtype(keys, dtype)
    bits = _flip_magnitudes(keys, dtype.bits)
    return bitcast(as_dtype(bits, i16) if dtype.bits == 16 else bits, dtype=dtype)


def _flip_magnitudes(x: Node, bits: int) -> Node:
    """Complement the lowest `bits` - 1 bits of negative integers, which turns the bits of floats into keys and back."""
    return xor(x, and_(shift_right(x, bits - 1), (1 << (bits - 1)) - 1))


def _as_rows(x: Node, dim: int) -> Node:
    """Return `x` as a matrix whose rows are along `dim`."""
    if not x.type.rank:
        return reshape(x, shape=(1, 1))
    rows = permute(x, dims=_order(x, dim))
    return reshape(rows, shape=(product(rows.shape[:-1]), rows.shape[-1]))


def _from_rows(rows: Node, like: Node, dim: int) -> Node:
    """Return the inverse of `_as_rows` of `like`, for rows of another length."""
    if not like.type.rank:
        return reshape(rows, shape=())
    order = _order(like, dim)
    shape = (*(like.shape[d] for d in order[:-1]), rows.shape[1])
    return permute(reshape(rows, shape=shape), dims=tuple(order.index(d) for d in range(like.type.rank)))


def _order(x: Node, dim: int) -> tuple[int, ...]:
    return (*(d for d in range(x.type.rank) if d != dim), dim)


def _select_by_network(x: Node, count: int) -> Node:
    """Return the `count` smallest elements of each row of integers in ascending order, by a sorting network."""
    length = x.shape[1]
    after = (1 << (length - 1).bit_length()) - length
    padded = pad(x, before=(0, 0), after=(0, after), value=highest(x.dtype)) if after else x
    return slice_(smallest_sorted(padded, 1 << (count - 1).bit_length()), dim=1, start=0, size=count)


def _select_in_rounds(x: Node, count: int) -> Node:
    """Return the `count` smallest elements of each row of different integers: the least one beyond the previous, and so on."""
    found = [amin(x, dims=(1,), keepdim=True)]
    while len(found) < count:
        rest = where(gt(x, found[-1]), x, scalar_constant(highest(x.dtype), x.dtype))
        found.append(amin(rest, dims=(1,), keepdim=True))
    return cat(*found, dim=1) if count > 1 else found[0]


@dataclass(frozen=True)
class _Selection:
    """The `count` first elements of each row of `x` in ascending or descending order."""

    x: Node
    dim: int
    length: int
    count: int
    descending: bool
    stable: bool

    def expansions(self, used: frozenset[int]) -> Iterator[Mapping[int, Node]]:
        """Yield the results of each way to select that computes those in `used`."""
        if self.count == 0:
            shape = _from_rows(slice_(_as_rows(self.x, self.dim), dim=1, start=0, size=0), self.x, self.dim).shape
            yield {VALUES: full(shape, 0, self.x.dtype), INDICES: full(shape, 0, i64)}
            return
        if used == {VALUES} and not (self.stable and self.x.dtype.is_float):  # keys would order zeros by their sign
            keys = self.keys(keep_zero_sign=True)
            yield self.values_of(_select_by_network(keys, self.count))
            words = sorted_by_digits(keys, self.key_bits, index_bits=0)
            assert words is not None
            yield self.values_of(sorted_keys(self.first(words), self.key_bits))
        if (numbered := self.numbered_keys()) is not None:
            yield self.results(sorted_indices(_select_by_network(numbered, self.count), self.index_bits))
            if self.count <= MAX_ROUNDS:
                yield self.results(sorted_indices(_select_in_rounds(numbered, self.count), self.index_bits))

        words = sorted_by_digits(self.keys(keep_zero_sign=False), self.key_bits, self.index_bits)
        if words is not None:
            yield self.results(sorted_indices(self.first(words), self.index_bits))

    def values_of(self, keys: Node) -> Mapping[int, Node]:
        """Return the values of selected keys."""
        values = _elements(not_(keys) if self.descending else keys, self.x.dtype)
        return {VALUES: _from_rows(values, self.x, self.dim)}

    def first(self, rows: Node) -> Node:
        """Return the first elements of sorted rows, as many as are selected."""
        return slice_(rows, dim=1, start=0, size=self.count)

    @property
    def key_bits(self) -> int:
        """Bits of a signed key."""
        return 16 if self.x.dtype.kind in ("uint", "bool") else self.x.dtype.bits

    def keys(self, keep_zero_sign: bool) -> Node:
        """Return integers for each row that ascend in the order of the selection."""
        keys = _keys(_as_rows(self.x, self.dim), keep_zero_sign)
        return not_(keys) if self.descending else keys

    @property
    def index_bits(self) -> int:
        return (self.length - 1).bit_length()

    def numbered_keys(self) -> Node | None:
        """Return keys followed by the bits of the index, or None if 64 bits do not hold them."""
        key_bits = self.x.dtype.bits + (self.x.dtype.kind in ("uint", "bool"))
        if key_bits + self.index_bits > 64:
            return None
        dtype = i32 if key_bits + self.index_bits <= 32 else i64
        keys = as_dtype(self.keys(keep_zero_sign=False), dtype)
        number = as_dtype(iota(size=self.length), dtype)
        return or_(shift_left(keys, self.index_bits), number)

    def results(self, indices: Node) -> Mapping[int, Node]:
        """Return the selected values and their indices."""
        values = gather(_as_rows(self.x, self.dim), indices, dim=1, in_bounds=True)
        return {VALUES: _from_rows(values, self.x, self.dim), INDICES: _from_rows(indices, self.x, self.dim)}


def _selection(node: Node) -> _Selection | None:
    """Return what a node selects, or None if that is unknown before the call."""
    x, dim = node.operands[0], node.attrs["dim"]
    length = x.shape[dim] if x.type.rank else 1
    count = node.attrs.get("k", length) if x.type.rank else 1
    descending = node.attrs["largest"] if "largest" in node.attrs else node.attrs["descending"]
    known = isinstance(length, int) and isinstance(count, int)
    return _Selection(x, dim, length, count, descending, node.attrs.get("stable", False)) if known else None


def _expansions(node: Node, used: frozenset[int]) -> Iterator[Mapping[int, Node]]:
    selection = _selection(node)
    return selection.expansions(used) if selection else iter(())


def _comparisons(node: Node) -> Dim:
    """Return the comparisons of a merge sort."""
    x, dim = node.operands[0], node.attrs["dim"]
    length = x.shape[dim] if x.type.rank else 1
    return x.type.numel * max(1, round(log2(length))) if isinstance(length, int) and length else x.type.numel


def _selection_comparisons(node: Node) -> Dim:
    """Return the comparisons of PyTorch's quickselect or heap, nearly one for each element."""
    return node.operands[0].type.numel


def _sorting(comparisons: Callable[[Node], Dim]) -> Opaque:
    return Opaque("sorting", expansions=_expansions, branches=comparisons)


sort = declare_op(
    "sort", "x: ordered", _sorting(_comparisons), type_rule=_sort_type, attrs={"dim": REQUIRED, "descending": False, "stable": False},
    reference=torch.ops.aten.sort.stable,
    samples=[sample_input("f32[4, 9]", dim=1), sample_input("i64[5, 2]", dim=0, descending=True, stable=True), sample_input("f32[]", dim=0)],
)  # fmt: skip
topk = declare_op(
    "topk", "x: ordered", _sorting(_selection_comparisons), type_rule=_topk_type, attrs={"k": REQUIRED, "dim": REQUIRED, "largest": True},
    reference=torch.ops.aten.topk.default,
    samples=[sample_input("f32[4, 9]", k=3, dim=1), sample_input("f32[9, 2]", k=2, dim=0, largest=False)],
)  # fmt: skip
