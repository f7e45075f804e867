"""Row fusion: join loop nests that store neighbouring parts of the same short rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from compiler.analysis.accesses import Accesses
from compiler.ir.tile.kernel import For, Kernel, Local, Stmt
from compiler.ir.tile.substitution import NameSupply, substitute_names, with_unique_names
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.transforms.fuse import fuse, fuse_adjacent


@register
@dataclass(frozen=True)
class FuseRows(TilePass):
    """Fuse parallel loops over short rows of a result of which each nest stores a part.

    parallel %i in 0..9 { for %j in 0..2 { store f(%i, %j), %y[%i, %j] } }   parallel %k in 0..9 { store g(%k), %y[%k, 2] }
    ->  parallel %i in 0..9 { for %j in 0..2 { store f(%i, %j), %y[%i, %j] }  store g(%i), %y[%i, 2] }

    Parts of a concatenation share cache lines, which are then written once.  Applies to rows of at most `max_bytes` in memory,
    after loops have their tiles and lanes, so that no part has others than alone.
    """

    name = "fuse-rows"
    exact = True
    max_bytes: int = from_machine("l1")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        if sum(isinstance(s, For) and s.parallel for s in ir.body) < 2:
            return ir
        ir = with_unique_names(ir)
        fresh = NameSupply(ir)
        local_buffers = tuple(s for s in ir.body if isinstance(s, Local))

        def fuse_pair(first: Stmt, second: Stmt) -> For | None:
            """Fuse two parallel loops over rows of one buffer; None if they are others."""
            if not (isinstance(first, For) and isinstance(second, For) and first.parallel and second.parallel):
                return None
            rows = [stored_rows(Accesses(ir.with_body((*local_buffers, s))), s.range.var) for s in (first, second)]
            if rows[0] is None or rows[0] != rows[1] or rows[0][1] > self.max_bytes:
                return None
            fused = fuse(first, substitute_names(second, {second.range.var: first.range.var}), fresh)
            return fused if context.may_apply(self, f"parts of rows fused into %{fused.range.var}") else None

        return ir.with_body(fuse_adjacent(ir.body, fuse_pair, partial(context.missed, self)))


def stored_rows(table: Accesses, v: str) -> tuple[str, int] | None:
    """Return the only buffer that is stored and the bytes between its elements in steps of `v`; None if these vary."""
    rows = {(a.buffer, table.stride(a, v)) for a in table.all if a.is_store}
    if len(rows) != 1:
        return None
    ((buffer, stride),) = rows
    return (buffer, abs(stride) * table.types[buffer].dtype.bytes) if stride else None
