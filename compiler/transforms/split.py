"""Loop splitting: strips of equal size with an explicit remainder, pieces of an index set, residue classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from compiler.errors import TransformError
from compiler.ir.symbolic.index_expr import Dim, ceildiv, minimum, var, variables
from compiler.ir.tile.kernel import Block, For, Range, has_partial_rows
from compiler.ir.tile.loop_nest import perfect_nest, wrap_in_nest
from compiler.ir.tile.substitution import NameSupply, substitute_indices


@dataclass(frozen=True)
class Strips:
    """A range in strips: the loop over strips, the one inside a strip, and the indices after the last full strip."""

    outer: Range
    inner: Range
    remainder: Range | None = None


def strip_mine(r: Range, size: int, name: str) -> Strips:
    """Split a range into full strips of `size` indices and a remainder.

    for %i in 0..100  ->  for %name in 0..12 { for %i in %name*8..%name*8 + 8 }   for %i in 96..100
    """
    start, count = r.lo + var(name) * size, r.extent // size
    remainder = None if r.extent % size == 0 else r.with_(lo=r.lo + count * size)
    return Strips(Range(name, 0, count), r.with_(lo=start, hi=start + size), remainder)


def strip_mine_to_end(r: Range, size: int, name: str) -> Strips:
    """Split a range into strips of `size` indices, of which the last one ends with the range.

    for %i in 0..100  ->  for %name in 0..13 { for %i in %name*8..%name*8 + min(8, 100 - %name*8) }
    """
    start, count = r.lo + var(name) * size, ceildiv(r.extent, size)
    length = minimum(size, r.hi - start, {name: (0, count - 1)})
    return Strips(Range(name, 0, count), r.with_(lo=start, hi=start + length))


def equal_strips(extent: int, longest: int) -> int:
    """Return the size of the fewest strips of at most `longest` indices, equal but for the last: 34 for 100 and 40."""
    return -(-extent // max(1, -(-extent // longest)))


def in_tiles(rows: For, fresh: NameSupply, body: Callable[[For], Block], remainder: Callable[[For], Block]) -> Block:
    """Loop over the tiles of `rows` around the `body` of each, with the `remainder` of a static extent after it."""
    r, size = rows.range, rows.range.tile
    if isinstance(r.extent, int) and r.extent <= size:
        return body(replace(rows, range=r.with_(tile=r.extent)))
    split = strip_mine_to_end if has_partial_rows(r) else strip_mine
    strips = split(r, size, fresh(f"{r.var}.tile"))
    tiles = replace(rows, range=strips.outer, body=body(replace(rows, range=strips.inner)))
    if strips.remainder is None or not isinstance(strips.remainder.extent, int):
        return (tiles,)
    return (tiles, *remainder(replace(rows, range=strips.remainder.with_(tile=strips.remainder.extent))))


def split_at(r: Range, point: Dim) -> list[Range]:
    """Split a range in two before index `point`; a part that is provably empty is left out.

    for %i in 0..100  ->  for %i in 0..96   for %i in 96..100
    """
    return [part for part in (r.with_(hi=point), r.with_(lo=point)) if part.extent != 0]


def map_loop(body: Block, v: str, rule: Callable[[For], Block]) -> Block:
    """Replace loop `v` of a perfect nest by `rule(loop)`; TransformError if the nest has no such loop."""
    nest = perfect_nest(body)
    depth = next((k for k, f in enumerate(nest) if f.range.var == v), None)
    if depth is None:
        raise TransformError(f"%{v} is not a loop of a perfect nest")
    return wrap_in_nest(nest[:depth], rule(nest[depth]))


def split_index(body: Block, v: str, n: int, inner: str) -> Block:
    """Replace the index of loop `v` by quotient and remainder of a division by `n`.

    parallel %i in 0..8 { x[%i//2, %i%2] }  ->  parallel %i in 0..4 { parallel %inner in 0..2 { x[%i, %inner] } }

    TransformError if `n` does not divide the extent, or the loop does not start at 0.
    """

    def rule(loop: For) -> Block:
        if loop.range.lo != 0 or loop.range.hi % n != 0:
            raise TransformError(f"{n} does not divide the {loop.range.extent} steps of %{v}")
        index, bounds = var(v) * n + var(inner), {inner: (0, n - 1)}
        moved = tuple(substitute_indices(s, {v: index}, bounds) for s in loop.body)
        strip = For(Range(inner, 0, n), moved, loop.parallel)
        return (replace(loop, range=loop.range.with_(hi=ceildiv(loop.range.hi, n)), body=(strip,)),)

    return map_loop(body, v, rule)


def split_by_remainder(body: Block, v: str, n: int, starts: Iterable[int], inner: str) -> list[Block]:
    """Split the index of loop `v` by `n`, into one copy of the nest for all remainders from one of `starts` to the next.

    parallel %i in 0..8 { x[(%i + 3)//4] }
    ->  parallel %i in 0..2 { x[%i] }   parallel %i in 0..2 { parallel %inner in 0..3 { x[%i + 1] } }   for 4 and [1]

    Remainders that fewer indices have get a copy of their own.  TransformError if the loop does not start at 0, or is serial.
    """

    def keep(start: int, size: int) -> Callable[[For], Block]:
        def rule(loop: For) -> Block:
            index, bounds = var(v) * n + start, dict[str, tuple[Dim, Dim]]()
            if size > 1:
                index, bounds = index + var(inner), {inner: (0, size - 1)}
            moved = tuple(substitute_indices(s, {v: index}, bounds) for s in loop.body)
            strip = moved if size == 1 else (For(Range(inner, 0, size), moved, loop.parallel),)
            return (replace(loop, range=loop.range.with_(hi=ceildiv(loop.range.hi - start, n)), body=strip),)

        return rule

    loop = next((f for f in perfect_nest(body) if f.range.var == v), None)
    if loop is None or loop.range.lo != 0 or variables(loop.range.hi) or not loop.parallel:
        raise TransformError(f"%{v} does not start at 0, or its order matters")
    extent = loop.range.hi
    if isinstance(extent, int):
        points = sorted({0, *starts, extent % n}) if extent > n else sorted({0, *starts})
        last = min(n, extent)
    else:  # any remainder may be the one that fewer indices have
        points, last = list(range(n)), n
    ends = pairwise((*(k for k in points if k < last), last))
    return [map_loop(body, v, keep(start, end - start)) for start, end in ends]
