"""Sample values of dynamic sizes for tests: small ones, because interpreters are slow, and ones that fill tiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TypeAlias

from compiler.ir.graph.graph import Graph
from compiler.ir.symbolic.index_atoms import DEFAULT_SIZE_HINT, DynamicSize
from compiler.ir.symbolic.index_expr import Dim, dynamic_sizes, interval, substitute
from compiler.ir.tile.dynamic_sizes import kernel_dynamic_sizes, program_dynamic_sizes
from compiler.ir.tile.kernel import Block, Kernel, Range, stmt_body, stmt_ranges, walk
from compiler.ir.tile.program import Launch, Program, execution_counts

SizeValues: TypeAlias = Mapping[str, int]

FIRST_KERNEL_SIZE = 9
"""First sample of the first size with a large hint in a kernel or program; each further size is one larger."""

FIRST_GRAPH_SIZE, SECOND_GRAPH_SIZE = 2, 13
"""First and second sample of the first size of a graph; each further size is one larger."""

PARTIAL_TILE_SIZE = 5
"""Size of the partial tile, if the loop can have one, in samples that fill tiles."""

MAX_STATEMENTS, MAX_ELEMENTS = 20_000, 4_000_000
"""Largest number of statements, and of elements they compute, that the interpreter runs in samples that fill tiles.

Chosen empirically, for the run time of the tests.
"""


def sample_sizes(*irs: Graph | Kernel | Program) -> Iterator[dict[str, int]]:
    """Yield the values of dynamic sizes at which to compare several versions of one IR, small values first."""
    dynamic = sorted(frozenset().union(*map(dynamic_sizes_of, irs)), key=lambda s: s.name)
    if isinstance(irs[0], Graph):
        for start in (FIRST_GRAPH_SIZE, SECOND_GRAPH_SIZE)[: len(dynamic) + 1]:
            yield {s.name: s.clamp(start + k) for k, s in enumerate(dynamic)}
        return
    first_sizes = small_sizes(dynamic)
    yield first_sizes
    bodies = [ir.body for ir in irs if isinstance(ir, Kernel)]
    sizes = tile_filling_sizes([ir for ir in irs if isinstance(ir, Kernel)], dynamic)
    if (
        sizes != first_sizes
        and all(executed_statements(b, sizes) <= MAX_STATEMENTS for b in bodies)
        and all(executed_elements(b, sizes) <= MAX_ELEMENTS for b in bodies)
    ):
        yield sizes


def dynamic_sizes_of(ir: Graph | Kernel | Program) -> frozenset[DynamicSize]:
    """Return the dynamic sizes in `ir`."""
    if isinstance(ir, Graph):
        return frozenset().union(*(dynamic_sizes(d) for n in ir.inputs for d in n.shape))
    return frozenset(kernel_dynamic_sizes(ir) if isinstance(ir, Kernel) else program_dynamic_sizes(ir))


def small_sizes(dynamic: Sequence[DynamicSize]) -> dict[str, int]:
    """Return a small value for each size: its hint if that is below the default hint, else `FIRST_KERNEL_SIZE` + k."""
    return {
        s.name: s.hint if s.hint < DEFAULT_SIZE_HINT else s.clamp(FIRST_KERNEL_SIZE + k) for k, s in enumerate(dynamic)
    }


def tile_filling_sizes(kernels: Iterable[Kernel], dynamic: Sequence[DynamicSize]) -> dict[str, int]:
    """Return sizes at which most dynamic loops have a full and a partial tile; `small_sizes` elsewhere."""
    sizes = small_sizes(dynamic)
    ranges = [r for k in kernels for stmt in walk(k.body) for r in stmt_ranges(stmt)]
    for s in dynamic:
        loops = [r for r in ranges if r.tile > 1 and s in dynamic_sizes(r.extent)]
        if not loops or s.hint < DEFAULT_SIZE_HINT:
            continue
        tile = max(r.tile for r in loops)
        filling = (tile * k + PARTIAL_TILE_SIZE for k in (1, 2, 4, 8))
        candidates = sorted({sizes[s.name], *(n for n in filling if s.low <= n <= s.high)})
        covered = [sum(_covers_full_and_partial(r, {**sizes, s.name: n}) for r in loops) for n in candidates]
        sizes[s.name] = candidates[covered.index(max(covered))]
    return sizes


def _covers_full_and_partial(r: Range, sizes: SizeValues) -> bool:
    """Return True if a loop has a full and a partial tile, as far as it can have them at any size."""
    extent, limits = _upper_bound(r.extent, sizes), interval(r.extent, {})
    has_full = extent >= r.tile or (limits is not None and limits[1] < r.tile)
    return has_full and (extent % r.tile > 0 or r.extent % r.tile == 0)


def _upper_bound(d: Dim, sizes: SizeValues) -> int:
    """Return the upper bound of `d`, or 1 if it depends on loop variables."""
    limits = interval(substitute(d, sizes), None)
    return limits[1] if limits else 1


def interpreted_statements(ir: Graph | Kernel | Program, sizes: SizeValues) -> int:
    """Return the number of statements that the interpreter runs; 0 for a graph, whose ops PyTorch runs."""
    if isinstance(ir, Program):
        launches = ((times, ir.kernels[s.kernel]) for s, times in execution_counts(ir.steps) if isinstance(s, Launch))
        return sum(times * executed_statements(kernel.body, sizes) for times, kernel in launches)
    return 0 if isinstance(ir, Graph) else executed_statements(ir.body, sizes)


def executed_statements(body: Block, sizes: SizeValues) -> int:
    """Return the number of statements that the interpreter runs for `body`, a tile at a time."""
    total = 0
    for stmt in body:
        trips = prod(-(-_upper_bound(r.extent, sizes) // r.tile) for r in stmt_ranges(stmt))
        total += 1 + trips * (1 + executed_statements(stmt_body(stmt), sizes))
    return total


def executed_elements(body: Block, sizes: SizeValues) -> int:
    """Return the number of elements, over all statements of `body`, that the interpreter computes."""
    total = 0
    for stmt in body:
        iterations = prod(_upper_bound(r.extent, sizes) for r in stmt_ranges(stmt))
        total += 1 + iterations * executed_elements(stmt_body(stmt), sizes)
    return total
