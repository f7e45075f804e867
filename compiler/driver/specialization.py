"""Buckets of sizes that share code, and the one or two programs of each."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from compiler.driver.interpreter_settings import compile_time
from compiler.driver.variant import CompiledVariant, Plan, SizeRanges, compile_plan
from compiler.ir.graph.graph import Graph
from compiler.ir.interpret.size_sampling import dynamic_sizes_of
from compiler.ir.symbolic.index_atoms import DEFAULT_SIZE_HINT, SMALL_SIZE_HINT, choose_size_hint
from compiler.ir.symbolic.index_expr import dynamic_size
from compiler.options import Options

SIZE_BUCKETS = (4096, 32768)
"""Upper bounds of sizes that share code; the rows of larger ones need not fit local buffers."""

MAX_SIZE = 1 << 31
"""Upper bound of a dynamic size that nothing else bounds."""

SMALL_SIZE_LIMIT = 128
"""Geometric mean of the sizes up to which calls take the variant for small sizes, if there is one."""


@dataclass(frozen=True, eq=False)
class Specialization:
    """Code for all sizes in `ranges`; both variants are correct for every size, the small one is faster for small sizes."""

    ranges: SizeRanges
    default_variant: CompiledVariant
    small_variant: CompiledVariant | None = None

    def covers(self, sizes: Mapping[str, int]) -> bool:
        """Return True if the code serves these sizes."""
        return all(low <= sizes[name] <= high for name, (low, high) in self.ranges.items())

    def select_variant(self, sizes: Mapping[str, int]) -> CompiledVariant:
        """Return the program that is the faster one for these sizes."""
        return self.small_variant if self.small_variant and are_sizes_small(sizes.values()) else self.default_variant


def are_sizes_small(sizes: Collection[int]) -> bool:
    """Return True if the geometric mean of the sizes is small: together they count how much is computed."""
    return bool(math.prod(sizes) <= SMALL_SIZE_LIMIT ** len(sizes))


def bucket_of(size: int, low: int, high: int) -> tuple[int, int]:
    """Return the part of low..high, both inclusive, that shares code with `size`."""
    return max([low, *(n + 1 for n in SIZE_BUCKETS if n < size)]), min([high, *(n for n in SIZE_BUCKETS if n >= size)])


def size_buckets(sizes: Mapping[str, int], bounds: SizeRanges) -> dict[str, tuple[int, int]]:
    """Return the range of each size that shares code with its value; `bounds` are the inclusive ranges of the model."""
    return {name: bucket_of(n, *bounds.get(name, (0, MAX_SIZE))) for name, n in sizes.items()}


def with_dynamic_sizes(graph: Graph, default_hint: int = DEFAULT_SIZE_HINT) -> Graph:
    """Return the graph with a dynamic size of the first bucket in place of each symbol that has no range yet."""
    declared = {s.name for s in dynamic_sizes_of(graph)}
    hint = choose_size_hint(0, SIZE_BUCKETS[0], 0, default_hint)
    sizes = {s: dynamic_size(s, 0, SIZE_BUCKETS[0], hint) for s in graph.symbols - declared}
    return graph.specialize(sizes) if sizes else graph


@compile_time
def specialize(graph: Graph, options: Options, ranges: SizeRanges, sizes: Mapping[str, int]) -> Specialization:
    """Compile one program for `ranges`; or two, where a pass would decide otherwise for small sizes and larger ones exist."""
    lows, highs = ([r[k] for r in ranges.values()] for k in (0, 1))
    hint = SMALL_SIZE_HINT if are_sizes_small(highs) else DEFAULT_SIZE_HINT
    variant, small = compile_plan(Plan.for_sizes(graph, options, ranges, sizes, hint)), None
    if variant.wants_small_variant and are_sizes_small(lows):
        small = compile_plan(Plan.for_sizes(graph, options, ranges, sizes, SMALL_SIZE_HINT))
    return Specialization(ranges, variant, small)
