"""Values that are remembered while loops are built."""

from __future__ import annotations

from compiler.ir.tile import Range
from compiler.passes.nest import Nest


def test_a_value_is_known_inside_its_loop_and_not_behind_it() -> None:
    nest = Nest()
    with nest.inside(Range("i", 0, 4)):
        nest.remember("key", "inner")
        assert nest.recall("key") == "inner"
        with nest.inside(Range("j", 0, 4)):
            assert nest.recall("key") == "inner"
        with nest.at(0):
            assert nest.recall("key") is None  # as if the loop were not open yet
    assert nest.recall("key") is None
    with nest.inside(Range("k", 0, 4)):
        assert nest.recall("key") is None  # another loop, as deep


def test_the_innermost_value_counts() -> None:
    nest = Nest()
    with nest.inside(Range("i", 0, 4)):
        nest.remember("key", "inner")
        with nest.at(0):
            nest.remember("key", "outer")
        assert nest.recall("key") == "inner"
    assert nest.recall("key") == "outer"
