"""Plans for ranges of sizes, buckets of sizes that share code, and the choice of a variant."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.driver import specialization
from compiler.driver.specialization import (
    SIZE_BUCKETS,
    SMALL_SIZE_LIMIT,
    Specialization,
    are_sizes_small,
    bucket_of,
    specialize,
)
from compiler.driver.variant import CompiledVariant, Plan, compile_plan, require_executable
from compiler.errors import TargetError
from compiler.ir.symbolic.index_atoms import DEFAULT_SIZE_HINT, SMALL_SIZE_HINT
from compiler.ir.symbolic.index_expr import dynamic_sizes
from compiler.ir.text.graph_parser import parse_graph
from compiler.options import Options

GRAPH = parse_graph("graph(%x: f32[n, m]) { %y = relu %x  return %y }")
OPTIONS = Options(cache="")


@pytest.mark.parametrize(
    ("size", "low", "high", "bucket"),
    [
        (5, 2, 100, (2, 100)),
        (5, 2, 1 << 31, (2, 4096)),
        (4096, 2, 1 << 31, (2, 4096)),
        (4097, 2, 1 << 31, (4097, 32768)),
        (40000, 2, 1 << 31, (32769, 1 << 31)),
        (5000, 4500, 6000, (4500, 6000)),
    ],
)
def test_bucket_of_size(size: int, low: int, high: int, bucket: tuple[int, int]) -> None:
    assert bucket_of(size, low, high) == bucket


@given(st.data())
def test_buckets_partition_a_range(data: st.DataObject) -> None:
    low, high = sorted(data.draw(st.tuples(st.integers(0, 70000), st.integers(0, 70000))))
    sizes = [*data.draw(st.lists(st.integers(low, high), min_size=1)), low, high]
    sizes += [b + k for b in SIZE_BUCKETS for k in (0, 1) if low <= b + k <= high]
    for size in sizes:
        first, last = bucket_of(size, low, high)
        assert low <= first <= size <= last <= high
        assert bucket_of(first, low, high) == bucket_of(last, low, high) == (first, last)
        assert last == high or bucket_of(last + 1, low, high)[0] == last + 1


def test_sizes_are_small_by_their_geometric_mean() -> None:
    assert are_sizes_small([SMALL_SIZE_LIMIT])
    assert not are_sizes_small([SMALL_SIZE_LIMIT + 1])
    assert are_sizes_small([1, SMALL_SIZE_LIMIT**2])
    assert not are_sizes_small([2, SMALL_SIZE_LIMIT**2])
    assert are_sizes_small([])


def plan(ranges: dict[str, tuple[int, int]], observed: dict[str, int], hint: int = DEFAULT_SIZE_HINT) -> Plan:
    return Plan.for_sizes(GRAPH, OPTIONS, ranges, observed, hint)


def test_hint_of_a_size_that_may_be_small_ignores_the_first_call() -> None:
    for observed in (3, 1000):
        assert plan({"n": (2, 4096)}, {"n": observed}).hints == {"n": DEFAULT_SIZE_HINT}
    assert plan({"n": (2, 4096)}, {"n": 3}, SMALL_SIZE_HINT).hints == {"n": SMALL_SIZE_HINT}


def test_hint_is_clamped_to_the_range() -> None:
    assert plan({"n": (2, 100)}, {"n": 3}).hints == {"n": 100}
    assert plan({"n": (90, 4096)}, {"n": 95}, SMALL_SIZE_HINT).hints == {"n": 90}


def test_hint_of_a_large_size_is_that_of_the_first_call() -> None:
    assert plan({"n": (4097, 32768)}, {"n": 5000}).hints == {"n": 5000}


def test_size_with_one_value_is_a_number_in_the_graph() -> None:
    p = plan({"n": (2, 4096), "m": (16, 16)}, {"n": 3, "m": 16})
    (x,) = p.specialized_graph().inputs
    n, m = x.shape
    assert m == 16
    (size,) = dynamic_sizes(n)
    assert (size.name, size.low, size.high, size.hint) == ("n", 2, 4096, DEFAULT_SIZE_HINT)


def test_static_graph_is_compiled_as_it_is() -> None:
    graph = parse_graph("graph(%x: f32[4]) { %y = relu %x  return %y }")
    assert Plan.for_sizes(graph, OPTIONS, {}, {}, DEFAULT_SIZE_HINT).specialized_graph() is graph


def stub(name: str = "", wants_small_variant: bool = False) -> Any:
    """A compiled variant without code."""
    return SimpleNamespace(name=name, wants_small_variant=wants_small_variant)


def test_covers_sizes_in_all_ranges() -> None:
    s = Specialization({"n": (2, 100), "m": (1, 4)}, stub())
    assert s.covers({"n": 2, "m": 4})
    assert not s.covers({"n": 101, "m": 4})
    assert not s.covers({"n": 2, "m": 0})


def test_selects_small_variant_for_small_sizes() -> None:
    default, small = stub("default"), stub("small")
    both = Specialization({"n": (2, 4096)}, default, small)
    assert both.select_variant({"n": SMALL_SIZE_LIMIT}) is small
    assert both.select_variant({"n": SMALL_SIZE_LIMIT + 1}) is default
    assert Specialization({"n": (2, 4096)}, default).select_variant({"n": 2}) is default


@pytest.mark.parametrize(
    ("ranges", "wants_small", "hints"),
    [
        ((2, 4096), True, [DEFAULT_SIZE_HINT, SMALL_SIZE_HINT]),
        ((2, 4096), False, [DEFAULT_SIZE_HINT]),
        ((200, 4096), True, [DEFAULT_SIZE_HINT]),  # none is small
        ((2, 100), False, [SMALL_SIZE_HINT]),  # all are small
    ],
)
def test_compiles_a_small_variant_where_a_pass_asks_for_it(
    ranges: tuple[int, int], wants_small: bool, hints: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []

    def compile_stub(p: Plan) -> Any:
        plans.append(p)
        return stub(wants_small_variant=wants_small)

    monkeypatch.setattr(specialization, "compile_plan", compile_stub)
    graph = parse_graph("graph(%x: f32[n]) { %y = relu %x  return %y }")
    s = specialize(graph, OPTIONS, {"n": ranges}, {"n": ranges[0]})
    assert [p.hints["n"] for p in plans] == hints
    assert (s.small_variant is not None) == (len(hints) == 2)


def test_target_that_is_not_here_gives_stages_and_no_executable() -> None:
    variant = compile_plan(Plan(GRAPH.specialize({"n": 4, "m": 8}), Options(target="sm90", cache=""), {}, {}))
    assert isinstance(variant, CompiledVariant)
    assert variant.executable is None
    assert variant.executable_for({}) is None
    assert variant.stages.scheduled.kernels
    with pytest.raises(TargetError, match=r"sm90 code cannot run here, .* is missing"):
        require_executable(variant, variant.executable)
