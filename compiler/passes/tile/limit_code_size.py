"""Code size: repeat less of a long body, so that its compilation stays short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.cost.code_size import code_size, copies, stmt_size
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, For, Kernel, Range
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class LimitCodeSize(TilePass):
    """Shrink tiles to one vector or scalar where the code would be longer than `max_ops` operations.

    for %i in 0..12 tile 12 { 16 long statements }  ->  for %i in 0..12 { 16 long statements }

    The loops that repeat most go first.  Those around a contraction stay, because its accumulators need them.  The limit, chosen
    empirically, counts operations on vectors and scalars before tiles are peeled: see `compiler.cost.code_size`.
    """

    name = "limit-code-size"
    max_ops: int = 3072

    def run(self, ir: Kernel, context: Context) -> Kernel:
        before, body = code_size(ir.body), ir.body
        while code_size(body) > self.max_ops and (savings := dict(possible_savings(body))):
            most = max(savings, key=savings.__getitem__)
            body = tile.map_ranges(body, lambda r, _, v=most: plain_range(r) if r.var == v else r)  # type: ignore[misc]
        if before > self.max_ops and body is ir.body:
            context.missed(self, f"{before} operations of code: its tiles hold accumulators")
        message = f"{code_size(body)} operations of code instead of {before}: smaller tiles"
        return ir.with_body(body) if body is not ir.body and context.may_apply(self, message) else ir


def possible_savings(body: Block, around: int = 1) -> Iterator[tuple[str, int]]:
    """Yield each loop that repeats code without a contraction, and the operations that one copy of it saves."""
    for stmt in body:
        if isinstance(stmt, For):
            size, repeated = stmt_size(stmt), copies(stmt.range)
            if repeated > 1 and not any(map(is_contraction, tile.walk(stmt.body))):
                yield stmt.range.var, around * (size - size // repeated)
            yield from possible_savings(stmt.body, around * repeated)


def plain_range(r: Range) -> Range:
    """Return the range with one vector, or one scalar, at a time."""
    return r.with_(tile=max(r.lanes, 1), unroll=1, balanced=False)
