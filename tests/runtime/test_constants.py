"""Constants in the layout that kernels read."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import compiler
from compiler.errors import VerifyError
from compiler.ir.graph.constant import ConstantData, LazyConstant
from compiler.ir.text.type_parser import parse_type
from compiler.ir.types import TensorType, f32
from compiler.runtime.constants import pack_aligned, pack_once
from compiler.runtime.memory import ALIGNMENT
from compiler.runtime.prefaulted_arena import PrefaultedArena

LAYOUTS = ["", "{1, 0}", "{1/4, 0, 1%4}", "{0/3, 1/4, 0%3, 1%4}", "{1, 0/2, 0%2}"]


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(LAYOUTS))
def test_every_element_lies_where_the_type_says(rows, columns, layout):
    type = parse_type(f"i32[{rows}, {columns}]{layout}")
    array = np.arange(1, rows * columns + 1, dtype=np.int32).reshape(rows, columns)
    flat = pack_aligned(array, type).reshape(-1)
    assert flat.nbytes == type.nbytes
    assert flat.ctypes.data % ALIGNMENT == 0
    for i in range(rows):
        for j in range(columns):
            assert flat[type.offset((i, j))] == array[i, j]
    assert np.count_nonzero(flat) == rows * columns, "the padding is zero"


@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from(
        ["{1/4, 0, 1%4}", "{1/3, 0/2, 0%2, 1%3}", "{0, 1/4, 1%4}", "{0/2, 1/3, 1%3, 0%2}", "{0/3, 1, 0%3}"]
    ),
)
def test_computed_elements_lie_there_too(rows, columns, layout):
    type = parse_type(f"f32[{rows}, {columns}]{layout}")
    array = np.arange(1, rows * columns + 1, dtype=np.float32).reshape(rows, columns)
    asked = []
    computed = LazyConstant(f32, array.shape, lambda start, stop: asked.append(stop - start) or array[:, start:stop])
    packed = pack_once(computed, type)
    np.testing.assert_array_equal(packed, pack_aligned(array, type))
    assert packed.ctypes.data % ALIGNMENT == 0
    blocks = [d.block_size for d in type.layout.physical_dims if d.dim == 1 and d.block_size]
    assert max(asked) <= max(blocks, default=columns), "no more than a block at a time"


def test_weights_are_not_copied():
    raw = np.zeros(1024, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    array = raw[start : start + 256].view(np.float32)
    assert np.shares_memory(pack_aligned(array, parse_type("f32[64]")), array)
    assert np.shares_memory(pack_aligned(array, parse_type("f32[8, 8]")), array)


def test_one_constant_is_packed_once():
    data = ConstantData(f32, np.zeros((8, 8), np.float32))
    type = parse_type("f32[8, 8]{1/4, 0, 1%4}")
    assert pack_once(data, type) is pack_once(data, type)
    assert pack_once(data, parse_type("f32[8, 8]{1, 0}")) is not pack_once(data, type)


def test_unaligned_weights_are():
    raw = np.zeros(1024, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT + 4
    array = raw[start : start + 256].view(np.float32)
    assert not np.shares_memory(pack_aligned(array, parse_type("f32[64]")), array)


@pytest.mark.parametrize("layout", ["{0/4, 1}", "{0/4, 0%2, 1}", "{0}"])
def test_a_layout_that_loses_elements_is_refused(layout):
    type: TensorType = parse_type(f"f32[8, 8]{layout}")
    with pytest.raises(VerifyError, match="dimension"):
        pack_aligned(np.zeros((8, 8), np.float32), type)


def test_memory_for_constants_is_claimed_as_soon_as_their_size_is_known(monkeypatch):
    """Winograd's weights are larger than those they are made of: they are claimed before fusion."""
    asked = []
    monkeypatch.setattr(PrefaultedArena, "reserve", lambda self, nbytes: asked.append(nbytes))
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False)
    compiler.compile(layer, (torch.randn(1, 64, 56, 56),))
    assert asked[0] == 64 * 64 * 9 * 4
    assert sum(asked) >= 64 * 64 * 16 * 4
