"""The sizes at which open IR is tried: small ones, as interpreters take their time, and such as fill its tiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from compiler.ir.atoms import MANY, Size
from compiler.ir.graph import Graph
from compiler.ir.index import Dim, interval, sizes, substitute
from compiler.ir.sizes import kernel_sizes, program_sizes
from compiler.ir.tile import Block, Kernel, Launch, Program, Range, blocks, ranges, runs, walk

Sizes: TypeAlias = Mapping[str, int]

TRIED = 9
"""What the first of the sizes of which only much is expected is where a program is tried first; others are larger by one each."""

FEW, SOME = 2, 13
"""The same for graphs, which are tried twice."""

REST = 5
"""How much is left over, if it can be, where a tile is filled."""

STEPS, ELEMENTS = 20_000, 4_000_000
"""How many statements, and on how many elements, the interpreter may run where tiles are filled."""


def trials(*irs: Graph | Kernel | Program) -> Iterator[dict[str, int]]:
    """The sizes at which to compare several forms of one thing: one dictionary after the other, the first of small sizes."""
    found = sorted(frozenset().union(*map(open_sizes, irs)), key=lambda s: s.name)
    if isinstance(irs[0], Graph):
        yield from (
            {s.name: _within(s, start + k) for k, s in enumerate(found)} for start in (FEW, SOME)[: len(found) + 1]
        )
        return
    first = small(found)
    yield first
    kernels = [ir for ir in irs if isinstance(ir, Kernel)]
    filled = filling(kernels, found)
    if filled != first and all(
        steps(k.body, filled) <= STEPS and elements(k.body, filled) <= ELEMENTS for k in kernels
    ):
        yield filled


def open_sizes(ir: Graph | Kernel | Program) -> frozenset[Size]:
    """The sizes that IR leaves open."""
    if isinstance(ir, Graph):
        return frozenset().union(*(sizes(d) for n in ir.inputs for d in n.shape))
    return frozenset(kernel_sizes(ir) if isinstance(ir, Kernel) else program_sizes(ir))


def small(found: Sequence[Size]) -> dict[str, int]:
    """Sizes as they are likely to be if that is little, else small ones."""
    return {s.name: s.likely if s.likely < MANY else _within(s, TRIED + k) for k, s in enumerate(found)}


def _within(s: Size, n: int) -> int:
    return min(max(n, s.low), s.high)


def filling(kernels: Iterable[Kernel], found: Sequence[Size]) -> dict[str, int]:
    """Sizes, beginning with small ones, at which the most open loops have a full tile and some steps left over."""
    chosen = small(found)
    tiled = [r for k in kernels for stmt in walk(k.body) for r in ranges(stmt) if r.tile > 1 and sizes(r.extent)]
    for s in found:
        loops = [r for r in tiled if s in sizes(r.extent)]
        tile = max((r.tile for r in loops), default=0)
        tried = {chosen[s.name], *(n for k in (1, 2, 4, 8) if s.low <= (n := tile * k + REST) <= s.high)}
        if loops and s.likely >= MANY:
            chosen[s.name] = max(sorted(tried), key=lambda n: sum(_is_filled(r, {**chosen, s.name: n}) for r in loops))
    return chosen


def _is_filled(r: Range, chosen: Sizes) -> bool:
    """Whether a loop has a full tile, unless it is what another one leaves over, and steps besides, unless it leaves none over."""
    extent, most = _at_most(r.extent, chosen), interval(r.extent, {})
    full = extent >= r.tile or (most is not None and most[1] < r.tile)
    return full and (extent % r.tile > 0 or r.extent % r.tile == 0)


def _at_most(d: Dim, chosen: Sizes) -> int:
    """What `d` is at most; 1 where it follows loops."""
    known = interval(substitute(d, chosen), None)
    return known[1] if known else 1


def interpreted_steps(ir: Graph | Kernel | Program, chosen: Sizes) -> int:
    """How many statements the interpreter runs; 0 for a graph, whose ops PyTorch runs."""
    if isinstance(ir, Program):
        launched = ((times, ir.kernels[s.kernel]) for s, times in runs(ir.steps) if isinstance(s, Launch))
        return sum(times * steps(kernel.body, chosen) for times, kernel in launched)
    return 0 if isinstance(ir, Graph) else steps(ir.body, chosen)


def steps(body: Block, chosen: Sizes) -> int:
    """How many statements the interpreter runs for `body`."""
    total = 0
    for stmt in body:
        trips = 1
        for r in ranges(stmt):
            trips *= -(-_at_most(r.extent, chosen) // r.tile)
        total += 1 + trips * (1 + steps(blocks(stmt), chosen))
    return total


def elements(body: Block, chosen: Sizes) -> int:
    """For how many indices of the loops around them the statements of `body` are run."""
    total = 0
    for stmt in body:
        trips = 1
        for r in ranges(stmt):
            trips *= _at_most(r.extent, chosen)
        total += 1 + trips * elements(blocks(stmt), chosen)
    return total
