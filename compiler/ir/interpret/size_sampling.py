"""The sizes at which open IR is tried: small ones, as interpreters take their time, and such as fill its tiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from compiler.ir.graph.graph import Graph
from compiler.ir.symbolic.index_atoms import DEFAULT_SIZE_HINT, DynamicSize
from compiler.ir.symbolic.index_expr import Dim, dynamic_sizes, interval, substitute
from compiler.ir.tile.dynamic_sizes import kernel_dynamic_sizes, program_dynamic_sizes
from compiler.ir.tile.kernel import Block, Kernel, Range, stmt_body, stmt_ranges, walk
from compiler.ir.tile.program import Launch, Program, execution_counts

SizeValues: TypeAlias = Mapping[str, int]

FIRST_KERNEL_SIZE = 9
"""What the first of the sizes of which only much is expected is where a program is tried first; others are larger by one each."""

FIRST_GRAPH_SIZE, SECOND_GRAPH_SIZE = 2, 13
"""The same for graphs, which are tried twice."""

PARTIAL_TILE_SIZE = 5
"""How much is left over, if it can be, where a tile is filled."""

MAX_STATEMENTS, MAX_ELEMENTS = 20_000, 4_000_000
"""How many statements, and on how many elements, the interpreter may run where tiles are filled."""


def sample_sizes(*irs: Graph | Kernel | Program) -> Iterator[dict[str, int]]:
    """The sizes at which to compare several forms of one thing: one dictionary after the other, the first of small sizes."""
    dynamic = sorted(frozenset().union(*map(dynamic_sizes_of, irs)), key=lambda s: s.name)
    if isinstance(irs[0], Graph):
        yield from (
            {s.name: _clamp_to_range(s, start + k) for k, s in enumerate(dynamic)}
            for start in (FIRST_GRAPH_SIZE, SECOND_GRAPH_SIZE)[: len(dynamic) + 1]
        )
        return
    first_sizes = small_sizes(dynamic)
    yield first_sizes
    kernels = [ir for ir in irs if isinstance(ir, Kernel)]
    filling_sizes = tile_filling_sizes(kernels, dynamic)
    if filling_sizes != first_sizes and all(
        executed_statements(k.body, filling_sizes) <= MAX_STATEMENTS
        and executed_elements(k.body, filling_sizes) <= MAX_ELEMENTS
        for k in kernels
    ):
        yield filling_sizes


def dynamic_sizes_of(ir: Graph | Kernel | Program) -> frozenset[DynamicSize]:
    """The sizes that IR leaves open."""
    if isinstance(ir, Graph):
        return frozenset().union(*(dynamic_sizes(d) for n in ir.inputs for d in n.shape))
    return frozenset(kernel_dynamic_sizes(ir) if isinstance(ir, Kernel) else program_dynamic_sizes(ir))


def small_sizes(dynamic: Sequence[DynamicSize]) -> dict[str, int]:
    """Sizes as they are likely to be if that is little, else small ones."""
    return {
        s.name: s.hint if s.hint < DEFAULT_SIZE_HINT else _clamp_to_range(s, FIRST_KERNEL_SIZE + k)
        for k, s in enumerate(dynamic)
    }


def _clamp_to_range(s: DynamicSize, n: int) -> int:
    return min(max(n, s.low), s.high)


def tile_filling_sizes(kernels: Iterable[Kernel], dynamic: Sequence[DynamicSize]) -> dict[str, int]:
    """Sizes, beginning with small ones, at which the most open loops have a full tile and some steps left over."""
    chosen = small_sizes(dynamic)
    tiled = [
        r for k in kernels for stmt in walk(k.body) for r in stmt_ranges(stmt) if r.tile > 1 and dynamic_sizes(r.extent)
    ]
    for s in dynamic:
        loops = [r for r in tiled if s in dynamic_sizes(r.extent)]
        tile = max((r.tile for r in loops), default=0)
        candidates = {
            chosen[s.name],
            *(n for k in (1, 2, 4, 8) if s.low <= (n := tile * k + PARTIAL_TILE_SIZE) <= s.high),
        }
        if loops and s.hint >= DEFAULT_SIZE_HINT:
            chosen[s.name] = max(
                sorted(candidates), key=lambda n: sum(_covers_full_and_partial(r, {**chosen, s.name: n}) for r in loops)
            )
    return chosen


def _covers_full_and_partial(r: Range, chosen: SizeValues) -> bool:
    """Whether a loop has a full tile, unless it is what another one leaves over, and steps besides, unless it leaves none over."""
    extent, most = _upper_bound(r.extent, chosen), interval(r.extent, {})
    full = extent >= r.tile or (most is not None and most[1] < r.tile)
    return full and (extent % r.tile > 0 or r.extent % r.tile == 0)


def _upper_bound(d: Dim, chosen: SizeValues) -> int:
    """What `d` is at most; 1 where it follows loops."""
    bounds = interval(substitute(d, chosen), None)
    return bounds[1] if bounds else 1


def interpreted_statements(ir: Graph | Kernel | Program, chosen: SizeValues) -> int:
    """How many statements the interpreter runs; 0 for a graph, whose ops PyTorch runs."""
    if isinstance(ir, Program):
        launched = ((times, ir.kernels[s.kernel]) for s, times in execution_counts(ir.steps) if isinstance(s, Launch))
        return sum(times * executed_statements(kernel.body, chosen) for times, kernel in launched)
    return 0 if isinstance(ir, Graph) else executed_statements(ir.body, chosen)


def executed_statements(body: Block, chosen: SizeValues) -> int:
    """How many statements the interpreter runs for `body`."""
    total = 0
    for stmt in body:
        trips = 1
        for r in stmt_ranges(stmt):
            trips *= -(-_upper_bound(r.extent, chosen) // r.tile)
        total += 1 + trips * (1 + executed_statements(stmt_body(stmt), chosen))
    return total


def executed_elements(body: Block, chosen: SizeValues) -> int:
    """For how many indices of the loops around them the statements of `body` are run."""
    total = 0
    for stmt in body:
        trips = 1
        for r in stmt_ranges(stmt):
            trips *= _upper_bound(r.extent, chosen)
        total += 1 + trips * executed_elements(stmt_body(stmt), chosen)
    return total
