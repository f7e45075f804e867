"""Values that are remembered while loops are built."""

from __future__ import annotations

from compiler.ir.tile.kernel import Range
from compiler.lowering.loop_nest_builder import LoopNestBuilder


def test_a_value_is_known_inside_its_loop_and_not_behind_it() -> None:
    nest = LoopNestBuilder()
    with nest.open_level(Range("i", 0, 4)):
        nest.memoize("key", "inner")
        assert nest.lookup("key") == "inner"
        with nest.open_level(Range("j", 0, 4)):
            assert nest.lookup("key") == "inner"
        with nest.at_depth(0):
            assert nest.lookup("key") is None  # as if the loop were not open yet
    assert nest.lookup("key") is None
    with nest.open_level(Range("k", 0, 4)):
        assert nest.lookup("key") is None  # another loop, as deep


def test_the_innermost_value_counts() -> None:
    nest = LoopNestBuilder()
    with nest.open_level(Range("i", 0, 4)):
        nest.memoize("key", "inner")
        with nest.at_depth(0):
            nest.memoize("key", "outer")
        assert nest.lookup("key") == "inner"
    assert nest.lookup("key") == "outer"
