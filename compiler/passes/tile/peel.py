"""Split loops whose tile does not divide them, so that every tile is full."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.scalar import Call, Expr, Ref
from compiler.ir.tile import Block, For, Kernel, Let, Range, Reduce, Stmt
from compiler.passes.base import Context, TilePass, register
from compiler.passes.rename import Fresh, renamed


@register
@dataclass(frozen=True)
class Peel(TilePass):
    """for %i in 0..100 tile 8 { ... }  ->  for %i in 0..96 tile 8 { ... }  for %i in 96..100 tile 4 { ... }

    A reduction becomes two, whose results are combined.
    """

    name = "peel"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        fresh = Fresh(ir)

        def rule(stmt: Stmt) -> Block:
            if isinstance(stmt, For):
                parts = split(stmt.range)
                return tuple(replace(stmt, range=r) for r in parts)
            if isinstance(stmt, Reduce):
                return self.reduction(stmt, fresh)
            return (stmt,)

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def reduction(self, stmt: Reduce, fresh: Fresh) -> Block:
        """The parts of a reduction, then their combination under the old name."""
        for k, r in enumerate(stmt.ranges):
            parts = split(r)
            if parts == [r]:
                continue
            if len(parts) == 1:
                return self.reduction(with_range(stmt, k, parts[0]), fresh)
            out: list[Stmt] = []
            names: list[Ref] = []
            for part in parts:
                piece = renamed(with_range(stmt, k, part), fresh)
                out += self.reduction(piece, fresh)
                names.append(Ref(stmt.value.dtype, piece.name))
            whole: Expr = Call(stmt.value.dtype, stmt.op, (names[0], names[1]))
            return (*out, Let(stmt.name, whole))
        return (stmt,)


def with_range(stmt: Reduce, k: int, r: Range) -> Reduce:
    """`stmt` with its range number `k` replaced."""
    return replace(stmt, ranges=(*stmt.ranges[:k], r, *stmt.ranges[k + 1 :]))


def split(r: Range) -> list[Range]:
    """Full tiles, then the rest as one smaller tile."""
    if not isinstance(r.extent, int) or r.extent % r.tile == 0:
        return [r]
    middle = r.lo + r.extent // r.tile * r.tile
    rest = r.with_(lo=middle, tile=r.extent % r.tile)
    return [rest] if r.extent < r.tile else [r.with_(hi=middle), rest]
