"""Unroll-and-jam of short rows whose reductions wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Range, Reduce, Stmt, extent_hint
from compiler.ir.tile.uses import used_names
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.transforms.unroll_and_jam import unroll_and_jam


@register
@dataclass(frozen=True)
class JamReductions(TilePass):
    """Unroll and jam a parallel loop around reductions over lanes.

    parallel %i in 0..64 { %m = reduce max %k lanes 16  %s = reduce add %l lanes 16 { ... %m ... }  for %j lanes 16 { ... %s ... } }
    ->  parallel %i in 0..64 tile 2 { ... }

    Combining the lanes of a register is a chain of shuffles, and a short row ends before it: the steps of other rows hide it.
    Applies where a reduction waits for another one.  Up to `factor` rows are interleaved, of at most `max_vectors` vectors together.
    Rows stay apart where a divided sum is waited for behind divided vectors: a core divides one at a time, the oldest first.
    """

    name = "jam-reductions"
    exact = True
    factor: int = from_machine("jammed_reductions")
    max_vectors: int = from_machine("jammed_vectors")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        def rule(stmt: Stmt) -> Block:
            rows = self.row_count(stmt, context.machine.threads) if isinstance(stmt, For) and stmt.parallel else 1
            if rows < 2 or not context.may_apply(self, f"{rows} rows of reductions interleaved"):
                return (stmt,)
            assert isinstance(stmt, For)
            return (unroll_and_jam(stmt, rows),)

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def row_count(self, rows: For, threads: int) -> int:
        """Return how many iterations of a loop to interleave, at least 1."""
        ranges = [r for s in rows.body for r in tile.stmt_ranges(s)]
        if rows.range.tile > 1 or not are_innermost_lanes(rows.body, ranges):
            return 1
        chain = list(waiting_statements(rows.body))
        if not any(isinstance(s, Reduce) for s in chain) or waits_for_divisions(rows.body, chain):
            return 1
        vectors = max(1, *(-(-extent_hint(r) // r.lanes) for r in ranges))
        return max(1, min(self.factor, self.max_vectors // vectors, extent_hint(rows.range) // threads))


def are_innermost_lanes(body: Block, ranges: list[Range]) -> bool:
    """Return True if `ranges`, those of the statements in `body`, have lanes, and no loop is inside them."""
    inside = (r for s in body for t in tile.stmt_body(s) for r in tile.stmt_ranges(t))
    return bool(ranges) and all(r.lanes for r in ranges) and not any(inside)


def waiting_statements(body: Block) -> Iterator[Stmt]:
    """Yield the statements that read what a reduction before them yields."""
    sums: set[str] = set()
    for s in body:
        waits = not sums.isdisjoint(used_names(s))
        if waits:
            yield s
        if isinstance(s, Reduce) or (waits and isinstance(s, Let)):
            sums.add(s.name)


def waits_for_divisions(body: Block, chain: list[Stmt]) -> bool:
    """Return True if loops divide vectors, and a reduction waits for a division too."""
    loops = [s for s in body if tile.stmt_ranges(s)]
    between = chain[: max(k for k, s in enumerate(chain) if isinstance(s, Reduce))]
    return any(divides(t) for s in loops for t in (s, *tile.stmt_body(s))) and any(
        divides(s) for s in between if isinstance(s, Let)
    )


def divides(s: Stmt) -> bool:
    """Return True if a statement itself divides floats."""
    return any(e.primitive == "div" and e.dtype.is_float for value in tile.stmt_exprs(s) for e in value.calls)
