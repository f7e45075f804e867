"""Perfect loop nests: loops with nothing between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

from compiler.ir.symbolic.index_expr import Dim, ceildiv
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Range, is_parallel_loop, stmt_body, stmt_ranges


def perfect_nest(body: Block) -> list[For]:
    """Return the loops of the perfect nest that `body` consists of, outermost first."""
    nest: list[For] = []
    while len(body) == 1 and isinstance(body[0], For):
        nest.append(body[0])
        body = body[0].body
    return nest


def trip_count(r: Range) -> Dim:
    """Return the number of tiles of a loop, at least 0."""
    trips = ceildiv(r.extent, r.tile)
    return max(0, trips) if isinstance(trips, int) else trips


def perfect_parallel_nest(body: Block) -> list[For]:
    """Return the loops of the perfect nest that `body` consists of, down to the first that is not parallel."""
    return list(takewhile(lambda f: f.parallel, perfect_nest(body)))


def wrap_in_nest(nest: Sequence[For | Range], body: Block) -> Block:
    """Return the loops of `nest` around `body` instead of their own bodies; a bare range becomes a serial loop."""
    for f in reversed(nest):
        body = (For(f, body) if isinstance(f, Range) else replace(f, body=body),)
    return body


def top_nests(kernel: Kernel) -> list[Kernel]:
    """Return a kernel for every parallel loop at the top of `kernel`; `kernel` itself if other statements than values stand there."""
    if has_other_statements(kernel):
        return [kernel]
    return [kernel.with_body((s,)) for s in kernel.body if is_parallel_loop(s)]


def has_other_statements(kernel: Kernel) -> bool:
    """Return True if statements other than parallel loops and values stand at the top of `kernel`."""
    return not all(isinstance(s, Let) or is_parallel_loop(s) for s in kernel.body)


def map_nests(kernel: Kernel, rule: Callable[[Kernel], Block]) -> Kernel:
    """Replace every nest of `top_nests` by `rule(nest)`; values beside them stay."""
    if has_other_statements(kernel):
        return kernel.with_body(rule(kernel))
    parts = (rule(kernel.with_body((s,))) if is_parallel_loop(s) else (s,) for s in kernel.body)
    return kernel.with_body(tuple(s for part in parts for s in part))


def has_scalar_loops(body: Block) -> bool:
    """Return True if a loop without inner ones has no lanes, and no loop around it has."""
    loops = [s for s in body if stmt_ranges(s) and not any(r.lanes for r in stmt_ranges(s))]
    return any(has_scalar_loops(stmt_body(s)) or not any(map(stmt_ranges, stmt_body(s))) for s in loops)
