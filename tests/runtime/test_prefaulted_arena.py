"""Memory that is touched ahead of its use."""

import sys

import numpy as np
import pytest

from compiler.ir.text.type_parser import parse_type
from compiler.runtime.constants import pack_aligned
from compiler.runtime.memory import ALIGNMENT
from compiler.runtime.pool import PAGE
from compiler.runtime.prefaulted_arena import PrefaultedArena


def address(array):
    return array.ctypes.data


def test_arrays_lie_one_after_the_other_on_cache_lines_and_keep_what_is_written():
    reserve = PrefaultedArena()
    reserve.reserve(2 * PAGE)
    first, second = reserve.allocate(100), reserve.allocate(PAGE)
    assert address(first) % ALIGNMENT == 0
    assert address(second) == address(first) + 128
    first[:], second[:] = 1, 2
    reserve.trim()
    assert (first == 1).all()
    assert (second == 2).all()


def test_what_does_not_fit_is_refused_and_smaller_arrays_are_not():
    reserve = PrefaultedArena()
    assert reserve.allocate(1) is None
    reserve.reserve(PAGE)
    assert reserve.allocate(PAGE + 1) is None
    assert reserve.allocate(PAGE) is not None
    assert reserve.allocate(1) is None


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="memory that is given back reads as zero on Linux alone"
)
def test_what_nobody_took_is_given_back():
    reserve = PrefaultedArena()
    reserve.reserve(3 * PAGE)
    rest = reserve.chunks[0].bytes(PAGE, 2 * PAGE)
    rest[:] = 7
    taken = reserve.allocate(PAGE + 1)
    reserve.trim()
    assert (taken == [7 if k >= PAGE else 0 for k in range(PAGE + 1)]).all()
    assert (rest[:PAGE] == 7).all()
    assert not rest[PAGE:].any()
    assert reserve.allocate(1) is None


def test_weights_are_packed_in_memory_of_the_reserve():
    reserve, array = PrefaultedArena(), np.arange(64, dtype=np.float32).reshape(8, 8)
    reserve.reserve(PAGE)
    packed = pack_aligned(array, parse_type("f32[8, 8]{1, 0}"), reserve)
    assert address(packed) == address(reserve.chunks[0].bytes(0, 1))
    assert np.array_equal(packed, array.T)
