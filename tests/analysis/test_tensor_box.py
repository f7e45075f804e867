"""Boxes of tensors: a load has one if the elements that it reads are those of an aligned box that lie in the tensor."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.analysis.tensor_box import ALIGNMENT, TensorBox, box_side, is_aligned, tensor_box
from compiler.ir.symbolic.index_expr import Dim, dynamic_size, substitute, var
from compiler.ir.text.type_parser import parse_type
from compiler.ir.tile.kernel import Range
from compiler.ir.types import Layout, TensorType, f16, f32

ROW, COL, PAGE, SIZE = var("i"), var("j"), var("k"), dynamic_size("s", 1, 4096, 512)
LOOPS = [Range("k", 0, 4), Range("i", 0, 64, tile=16), Range("j", 0, 64, tile=32)]


@pytest.mark.parametrize(
    ("index", "tensor", "expected"),
    [
        ((ROW, COL), "f16[64, 64]", TensorBox((64, 64), (64, 1), (16, 32), ("i", "j"), (0, 0))),
        ((ROW + 3, COL + 8), "f16[80, 80]", TensorBox((80, 80), (80, 1), (16, 32), ("i", "j"), (3, 8))),
        ((ROW, COL), "f16[64, 64]{1, 0}", TensorBox((64, 64), (64, 1), (32, 16), ("j", "i"), (0, 0))),
        (
            (PAGE, ROW, COL),
            "f32[4, 64, 64]",
            TensorBox((4, 64, 64), (4096, 64, 1), (1, 16, 32), ("", "i", "j"), (PAGE, 0, 0)),
        ),
        ((PAGE * 2 + 1, ROW), "f32[9, 64]", TensorBox((9, 64), (64, 1), (1, 16), ("", "i"), (PAGE * 2 + 1, 0))),
        ((5, COL + PAGE * 8), "f16[9, 96]", TensorBox((9, 96), (96, 1), (1, 32), ("", "j"), (5, PAGE * 8))),
        ((ROW, COL), "f16[s, 64]", TensorBox((SIZE, 64), (64, 1), (16, 32), ("i", "j"), (0, 0))),
        (
            (ROW, PAGE, COL),
            "f16[64, s, 64]",
            TensorBox((64, SIZE, 64), (SIZE * 64, 64, 1), (16, 1, 32), ("i", "", "j"), (0, PAGE, 0)),
        ),
    ],
)
def test_a_load_in_tiles_reads_a_box(index: tuple[Dim, ...], tensor: str, expected: TensorBox) -> None:
    type_ = parse_type(tensor)
    shape = tuple(SIZE if str(d) == "s" else d for d in type_.shape)
    assert tensor_box(index, TensorType(type_.dtype, shape, type_.layout), LOOPS) == expected


@pytest.mark.parametrize(
    ("index", "tensor"),
    [
        pytest.param((COL,), "f16[64]", id="one dimension"),
        pytest.param((0, 0, 0, 0, 0, COL), "f16[1, 1, 1, 1, 1, 64]", id="six dimensions"),
        pytest.param((ROW, COL), "f16[64, 64]{0, 1/16, 1%16}", id="a layout in blocks"),
        pytest.param((ROW, COL), "f16[64, 64]{0, 1+8:8}", id="a layout with margins"),
        pytest.param((ROW * 2, COL), "f16[128, 64]", id="every other row"),
        pytest.param((ROW + COL, COL), "f16[128, 64]", id="two tiles in one dimension"),
        pytest.param((ROW // 2, COL), "f16[64, 64]", id="each row twice"),
        pytest.param((ROW, ROW), "f16[64, 64]", id="a diagonal"),
        pytest.param((var("n"), COL), "f16[64, 64]", id="an index that no loop counts"),
        pytest.param((ROW, PAGE), "f16[64, 64]", id="single elements of rows"),
        pytest.param((ROW, COL), "f16[64, 60]", id="unaligned rows"),
        pytest.param((ROW, COL + 4), "f16[64, 72]", id="an unaligned start"),
        pytest.param((ROW, COL + PAGE * 4), "f16[64, 80]", id="a start that is unaligned in some steps"),
    ],
)
def test_other_loads_read_none(index: tuple[Dim, ...], tensor: str) -> None:
    assert tensor_box(index, parse_type(tensor), LOOPS) is None


@pytest.mark.parametrize(("tile", "expected"), [(256, True), (512, False)])
def test_a_box_has_at_most_256_elements_along_a_dimension(tile: int, expected: bool) -> None:
    loops = [Range("i", 0, 1024, tile=tile), LOOPS[2]]
    assert (tensor_box((ROW, COL), parse_type("f16[1024, 64]"), loops) is not None) is expected


def test_axes_are_the_tiled_loops_in_the_order_of_memory() -> None:
    box = tensor_box((PAGE, ROW, COL), parse_type("f16[4, 64, 64]{0, 2, 1}"), LOOPS)
    assert box is not None
    assert box.axes == ("j", "i")


@pytest.mark.parametrize(
    ("index", "size", "r", "expected"),
    [
        (PAGE + 2, 9, Range("i", 0, 5, tile=4), ("", PAGE + 2)),
        (ROW + 2, 10, Range("i", 0, 8, tile=4), ("i", 2)),
        (ROW + 2, 7, Range("i", 0, 5, tile=4), ("i", 2)),  # the last tile ends with the tensor
        (ROW + 2, 8, Range("i", 0, 5, tile=4), None),
        (ROW, SIZE, Range("i", 0, SIZE, tile=4), ("i", 0)),
        (ROW, SIZE + 1, Range("i", 0, SIZE, tile=4), None),
        (ROW * 3, 30, Range("i", 0, 8, tile=4), None),
    ],
)
def test_the_side_of_a_box_is_a_tile_and_the_rest_of_the_index(
    index: Dim, size: Dim, r: Range, expected: tuple[str, Dim] | None
) -> None:
    assert box_side(index, size, {"i": r}) == expected


@pytest.mark.parametrize(
    ("box", "low", "expected"),
    [
        (TensorBox((8, 64), (64, 1), (1, 16), ("", "i"), (0, 0)), 0, True),
        (TensorBox((8, 64), (64, 1), (1, 16), ("", "i"), (0, 0)), 4, False),
        (TensorBox((8, 64), (64, 1), (1, 16), ("", "i"), (0, 4)), 4, True),
        (TensorBox((8, 60), (60, 1), (1, 16), ("", "i"), (0, 0)), 0, False),
        (TensorBox((8, 64), (64, 1), (16, 1), ("i", ""), (0, 0)), 0, False),
    ],
)
def test_rows_and_their_distances_are_multiples_of_the_alignment(box: TensorBox, low: int, expected: bool) -> None:
    assert is_aligned(box, 2, {"i": Range("i", low, low + 32, tile=16)}) is expected


@st.composite
def loads(draw: st.DrawFn) -> tuple[TensorType, list[range], list[int]]:
    """A tensor, the first indices of the tiles of a loop for each of its dimensions, and the distance of what they read."""
    loops, offsets, shape = list[range](), list[int](), list[int]()
    for _ in range(draw(st.integers(2, 3))):
        low, extent = draw(st.sampled_from([0, 0, 1, 8])), draw(st.sampled_from([8, 8, 5, 16]))
        loops.append(range(low, low + extent, draw(st.sampled_from([8, 8, 4, 1]))))
        offsets.append(draw(st.sampled_from([0, 0, 3, 8])))
        shape.append(low + extent + offsets[-1] + draw(st.sampled_from([0, 0, 1, 8])))
    layout = Layout.from_order(draw(st.permutations(range(len(shape)))))
    return TensorType(draw(st.sampled_from([f16, f32])), tuple(shape), layout), loops, offsets


@given(loads())
def test_a_load_has_a_box_if_it_reads_one_in_every_tile(load: tuple[TensorType, list[range], list[int]]) -> None:
    """Other elements of the box lie outside the tensor, and its rows are aligned."""
    type_, loops, offsets = load
    order = [d.dim for d in type_.layout.physical_dims] if type_.layout else []
    addresses = np.arange(prod(type_.static_shape())).reshape([type_.static_shape()[d] for d in order])
    ranges = [Range(f"i{k}", r.start, r.stop, tile=r.step) for k, r in enumerate(loops)]
    box = tensor_box(tuple(var(r.var) + b for r, b in zip(ranges, offsets, strict=True)), type_, ranges)
    distances = [prod(addresses.shape[k + 1 :]) for k in range(addresses.ndim)]
    row, unit = loops[order[-1]].step, ALIGNMENT // type_.dtype.bytes
    is_box = row > 1 and not any(n % unit for n in (row, *distances[:-1]))
    for starts in product(*loops):
        first = [start + b for start, b in zip(starts, offsets, strict=True)]
        end = [min(start + r.step, r.stop) + b for start, r, b in zip(starts, loops, offsets, strict=True)]
        read = addresses[tuple(slice(first[d], end[d]) for d in order)]
        inside = addresses[tuple(slice(first[d], first[d] + loops[d].step) for d in order)]
        is_box &= read.shape == inside.shape and first[order[-1]] % unit == 0
        if box is not None:
            at = {r.var: start for r, start in zip(ranges, starts, strict=True)}
            sides = [
                (substitute(b, at) + at.get(v, 0), n)
                for v, b, n in zip(box.loops, box.offsets, box.extents, strict=True)
            ]
            assert np.array_equal(addresses[tuple(slice(f, f + n) for f, n in sides)], read)
    assert (box is not None) == is_box
    assert box is None or (box.shape, box.strides) == (addresses.shape, tuple(distances))
