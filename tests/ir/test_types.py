"""Layouts: where elements lie, and tensors that are boxes in larger arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.ir.symbolic.index_expr import floordiv, mod, var
from compiler.ir.text.type_parser import parse_type
from compiler.ir.types import DType, Layout, PhysicalDim, TensorType, bf16, bf16x2, boolean, f32, i8x4


@st.composite
def boxes(draw: st.DrawFn) -> TensorType:
    """Whole dimensions in any order with any margins."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple))
    order = draw(st.permutations(range(len(shape))))
    margin = st.integers(0, 2)
    return TensorType(
        f32, shape, Layout(tuple(PhysicalDim(d, margin_before=draw(margin), margin_after=draw(margin)) for d in order))
    )


@given(boxes())
@settings(deadline=None)
def test_a_box_is_a_part_of_its_array(t: TensorType) -> None:
    """Element offsets are those of NumPy's view of the same array."""
    assert t.layout is not None
    order = [g.dim for g in t.layout.physical_dims]
    whole = np.arange(np.prod(t.physical_shape)).reshape(t.physical_shape)
    logical = whole.transpose([order.index(d) for d in range(t.rank)])[t.subview_slices()]
    assert logical.shape == t.shape
    assert t.is_subview_of(t.parent)
    assert t.parent.static_shape() == whole.transpose([order.index(d) for d in range(t.rank)]).shape
    assert t.nbytes == whole.size * 4
    for index in np.ndindex(*t.static_shape()):
        assert t.offset(index) == logical[index]


I4 = DType("i4", "int", 4, np.dtype(np.int8))


@pytest.mark.parametrize(
    ("dtype", "layout", "nbytes"), [(I4, "", 11), (I4, "{0/4, 1, 0%4}", 14), (boolean, "", 21), (bf16, "", 42)], ids=str
)
def test_elements_below_a_byte_share_bytes(dtype: DType, layout: str, nbytes: int) -> None:
    t = parse_type(f"f32[3, 7]{layout}").with_dtype(dtype)
    assert t.nbytes == nbytes
    bits = [8 * byte + low for byte, low in map(t.bit_address, np.ndindex(3, 7))]
    assert len({*bits}) == 21
    assert max(bits) + dtype.memory_bits <= 8 * nbytes
    assert all(b == t.offset(i) * dtype.memory_bits for b, i in zip(bits, np.ndindex(3, 7), strict=True))


def test_symbolic_addresses_below_a_byte() -> None:
    n, i = var("n"), var("i")
    t = TensorType(I4, (n, 6))
    assert (t.nbytes, t.bit_address((i, 2))) == (n * 3, (i * 3 + 1, 0))
    assert TensorType(I4, (n,)).bit_address((i,)) == (floordiv(i, 2), mod(i * 4, 8))


@given(boxes())
@settings(deadline=None)
def test_margins_round_trip(t: TensorType) -> None:
    assert parse_type(str(t)) == t


@given(boxes(), st.sampled_from([bf16x2, i8x4]))
@settings(deadline=None)
def test_packed_elements_are_neighbours_in_the_same_memory(t: TensorType, dtype: DType) -> None:
    assert t.layout is not None
    assert dtype.element is not None
    count, t = dtype.count, t.with_dtype(dtype.element)
    assert t.layout is not None
    dim = t.layout.physical_dims[-1].dim
    wide = replace(t, shape=tuple(n * count if d == dim else n for d, n in enumerate(t.shape)))
    packed = wide.packed(dim, dtype)
    margins = t.layout.physical_dims[-1]
    if margins.margin_before % count or margins.margin_after % count:
        assert packed is None
        return
    assert packed is not None
    assert packed.is_subview_of(wide)
    assert packed.elementwise(wide.shape).physical_shape == wide.physical_shape
    for index in np.ndindex(*packed.static_shape()):
        first = tuple(i * count if d == dim else i for d, i in enumerate(index))
        assert packed.offset(index) * count == wide.offset(first)


@pytest.mark.parametrize(
    ("whole", "dim", "layout", "expected"),
    [
        ("i8[96, 8]", 1, "{0/48, 1, 0%48}", "i8[96, 8]{0/48, 1/4, 0%48, 1%4}"),
        ("i8[96, 8, 3]", 1, "{0/48, 2, 1, 0%48}", "i8[96, 8, 3]{0/48, 2, 1/4, 0%48, 1%4}"),
        ("i8[96, 8]", 0, "{0, 1}", "i8[96, 8]{0/4, 1, 0%4}"),
        ("i8[96, 8]", 1, "{0, 1}", "i8[96, 8]{0, 1}"),
        ("i8[3, 512]", 1, "{1/64, 0, 1%64}", "i8[3, 512]{1/256, 0, 1%256}"),
        ("i8[96, 8]", 1, "", "i8[96, 8]"),
        ("i8[96, 8]", 0, "{1, 0}", "i8[96, 8]{1, 0}"),
    ],
)
def test_packed_constants_have_one_more_digit(whole: str, dim: int, layout: str, expected: str) -> None:
    t = parse_type(whole)
    packed = t.repacked(dim, i8x4, parse_type(f"{whole}{layout}").layout)
    assert str(packed.elementwise(t.shape)) == expected


def test_single_elements_that_are_not_contiguous_are_not_packed() -> None:
    assert parse_type("i8[8, 8]{1, 0}").packed(1, i8x4) is None
    assert parse_type("i8[8, 6]").packed(1, i8x4) is None
    assert not parse_type("u8x4[8, 2]").is_subview_of(parse_type("i8[8, 8]"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("{1, 0}", True), ("{0, 1}", True), ("{0, 1+0:1}", False), ("{0+2:0, 1}", False), ("{0/2, 1, 0%2}", False)],
)
def test_permutations(text: str, expected: bool) -> None:
    layout = parse_type(f"f32[4, 6]{text}").layout
    assert layout is not None
    assert layout.is_permutation == expected


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [
        ("f32[4, 6]", "f32[4, 6]", True),
        ("f32[4, 6]{1, 0}", "f32[4, 6]{1, 0}", True),
        ("f32[4, 6]{0+1:2, 1}", "f32[7, 6]", True),
        ("f32[4, 6]{0, 1}", "f32[4, 6]", True),
        ("f32[4, 6]{1, 0+1:2}", "f32[7, 6]{1, 0}", True),
        ("f32[4, 6]", "f32[7, 6]", False),  # no margin
        ("f32[4, 6]{0+1:1, 1}", "f32[7, 6]", False),  # margins of another array
        ("f32[4, 6]{1, 0+1:2}", "f32[7, 6]", False),  # another order
        ("f32[4, 6]{0+1:2, 1}", "f32[7, 6]{1, 0}", False),
        ("f64[4, 6]{0+1:2, 1}", "f32[7, 6]", False),
        ("f32[4, 6]{0+1:1, 1}", "f32[4, 6]{0+1:1, 1}", True),
        ("f32[2, 6]{0+1:3, 1}", "f32[4, 6]{0+1:1, 1}", False),  # the array around a box is not one itself
        ("f32[4, 8]{0/2, 1, 0%2}", "f32[4, 8]", False),
    ],
)
def test_lying_in(part: str, whole: str, expected: bool) -> None:
    assert parse_type(part).is_subview_of(parse_type(whole)) == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("f32[2, 6]{0+0:3, 1}", "f32[3, 6]{0+2:0, 1}", True),
        ("f32[2, 6]{0+0:3, 1}", "f32[3, 6]{0+1:1, 1}", False),
        ("f32[3, 2]{0+1:1, 1+0:4}", "f32[3, 2]{0+0:2, 1+2:2}", True),
        ("f32[5, 6]", "f32[2, 6]{0+0:3, 1}", False),
        ("f32[5, 6]", "f32[5, 6]", False),
    ],
)
def test_boxes_apart(one: str, other: str, expected: bool) -> None:
    a, b = parse_type(one), parse_type(other)
    assert a.is_disjoint_from(b) == b.is_disjoint_from(a) == expected
