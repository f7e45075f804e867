"""Loops of a contraction that copy blocks of its operands to dense local buffers, as a library packs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from compiler.ir.scalar import Load
from compiler.ir.symbolic.index_expr import Bounds, interval
from compiler.ir.tile.kernel import Block, For, Range, extent_hint
from compiler.ir.tile.loop_nest import wrap_in_nest
from compiler.ir.tile.substitution import NameSupply
from compiler.transforms.cache_operand import cache_operand
from compiler.transforms.split import equal_strips, strip_mine


@dataclass(frozen=True)
class BlockCopies:
    """Operands of a contraction to copy for each block of its reduction; None for one that is read in place.

    `by_row` is copied for as many rows as `max_elements` hold, `by_column` for `panel` columns at a time, in a parallel loop
    with `parallel_panels`.  `bounds` are those of the loops around.  A block whose copy would have no static bound is read in place.

    Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.
    """

    by_row: Load | None
    by_column: Load | None
    panel: int
    parallel_panels: bool
    max_elements: int
    bounds: Bounds
    fresh: NameSupply

    def nest(self, rows: Range, columns: Range, depth: Range, body: Block) -> Block:
        """Return the loops over rows and columns around `body`, which adds the products of one block of the reduction.

        for %j { for %i { body } }
        ->  for %i.block { local %a  copy of x[%r, %i..]
              for %j.panel { local %b  copy of w[%r, %j..]  for %i { for %j { body } } } }
        """
        if self.by_row is None:
            return self.panels(rows, columns, depth, body)
        longest = max(1, self.max_elements // extent_hint(depth))
        size = equal_strips(extent_hint(rows), longest)
        return in_strips(rows, size, self.fresh(f"{rows.var}.block"), lambda r: self.row_block(r, columns, depth, body))

    def row_block(self, rows: Range, columns: Range, depth: Range, body: Block) -> Block:
        """Return these loops behind a copy of all rows."""
        return self.copied(self.panels(rows, columns, depth, body), self.by_row, [depth, rows])

    def panels(self, rows: Range, columns: Range, depth: Range, body: Block) -> Block:
        """Return these loops with copies of panels of columns."""
        if self.by_column is None:
            return wrap_in_nest([columns, rows], body)

        def panel(c: Range) -> Block:
            return self.copied(wrap_in_nest([rows, c], body), self.by_column, [depth, c])

        return in_strips(columns, self.panel, self.fresh(f"{columns.var}.panel"), panel, self.parallel_panels)

    def copied(self, body: Block, operand: Load | None, dims: Sequence[Range]) -> Block:
        """Return `body` behind a copy of the operand."""
        bounds = [b for r in dims if (b := interval(r.extent, self.bounds)) is not None]
        if operand is None or len(bounds) < len(dims) or prod(high for _, high in bounds) > self.max_elements:
            return body
        return cache_operand(body, operand, dims, self.fresh(f"{operand.buffer}.copy"), self.bounds)


def in_strips(r: Range, size: int, name: str, strip: Callable[[Range], Block], parallel: bool = False) -> Block:
    """Return `strip` of the full strips of `r`, in a loop, and of the indices after them; of `r` itself if it is no longer.

    With `parallel` the strip of the remaining indices is a parallel loop of one iteration, which one thread executes.
    """
    if extent_hint(r) <= size:
        return strip(r)
    strips = strip_mine(r, size, name)
    remainder = strip(strips.remainder) if strips.remainder else ()
    if parallel and remainder:
        remainder = (For(Range(f"{name}.remainder", 0, 1), remainder, parallel=True),)
    return (For(strips.outer, strip(strips.inner), parallel=parallel), *remainder)
