"""Code size: repeat less of a long body, so that its compilation stays short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.cost.code_size import code_size, copies, stmt_size
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Stmt
from compiler.passes.base import Context, TilePass, from_machine, register


@register
@dataclass(frozen=True)
class LimitCodeSize(TilePass):
    """Halve tiles, down to one vector or scalar, where the code would be longer than `max_ops` operations.

    for %i in 0..12 tile 12 { 16 long statements }  ->  for %i in 0..12 tile 6 { 16 long statements }

    The loops that repeat most go first, then the unrolled steps of contractions.  Loops around a contraction stay, because its
    accumulators need them.  The limit counts operations on vectors and scalars before tiles are peeled: see
    `compiler.cost.code_size`.
    """

    name = "limit-code-size"
    max_ops: int = from_machine("max_code_ops")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        body, before = ir.body, code_size(ir.body)
        size = before
        while size > self.max_ops and (savings := dict(possible_savings(body)) or dict(unrolled_steps(body))):
            body = with_half_range(body, max(savings, key=savings.__getitem__))
            size = code_size(body)
        if body is ir.body:
            if before > self.max_ops:
                context.missed(self, f"{before} operations of code: its tiles hold accumulators")
            return ir
        message = f"{size} operations of code instead of {before}: smaller tiles, fewer unrolled steps"
        return ir.with_body(body) if context.may_apply(self, message) else ir


def possible_savings(body: Block, around: int = 1) -> Iterator[tuple[str, int]]:
    """Yield each loop that repeats code without a contraction, and the operations that one copy of it saves."""
    for stmt in body:
        if isinstance(stmt, For):
            size, repeated = stmt_size(stmt), copies(stmt.range)
            if repeated > 1 and not any(map(is_contraction, tile.walk(stmt.body))):
                yield stmt.range.var, around * (size - size // repeated)
            yield from possible_savings(stmt.body, around * repeated)


def unrolled_steps(body: Block) -> Iterator[tuple[str, int]]:
    """Yield each unrolled range of a contraction, and how often its code is repeated."""
    for stmt in filter(is_contraction, tile.walk(body)):
        yield from ((r.var, r.unroll) for r in stmt.ranges if r.unroll > 1)


def with_half_range(body: Block, v: str) -> Block:
    """Return `body` with half as many vectors, or scalars, at a time in the loop over `v`, which is not unrolled any more."""

    def rule(r: Range, _: Stmt) -> Range:
        unit = max(r.lanes, 1)
        return r.with_(tile=max(1, r.tile // unit // 2) * unit, unroll=1, balanced=False) if r.var == v else r

    return tile.map_ranges(body, rule)
