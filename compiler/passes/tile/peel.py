"""Split loops whose tile does not divide them, so that every tile is full."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.index import interval
from compiler.ir.scalar import Call, Expr, Ref
from compiler.ir.tile import Block, For, Kernel, Let, Range, Reduce, Stmt
from compiler.passes.base import Context, TilePass, register
from compiler.passes.rename import Fresh, renamed


@register
@dataclass(frozen=True)
class Peel(TilePass):
    """for %i in 0..100 tile 8 { ... }  ->  for %i in 0..96 tile 8 { ... }  for %i in 96..100 tile 4 { ... }

    for %i in 0..s0 tile 32 lanes 16 { ... }
    ->  for %i in 0..s0//32*32 tile 32 lanes 16 { ... }  for %i in s0//32*32..s0 tile 32 lanes 16 { ... }

    A reduction becomes several, whose results are combined.  Of an open length only vectors are left partial.
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
            whole: Expr = names[0]
            for name in names[1:]:
                whole = Call(stmt.value.dtype, stmt.op, (whole, name))
            return (*out, Let(stmt.name, whole))
        return (stmt,)


def with_range(stmt: Reduce, k: int, r: Range) -> Reduce:
    """`stmt` with its range number `k` replaced."""
    return replace(stmt, ranges=(*stmt.ranges[:k], r, *stmt.ranges[k + 1 :]))


def split(r: Range) -> list[Range]:
    """Full tiles, then the rest as one smaller tile."""
    if r.extent % r.tile == 0:
        return [r]
    if not isinstance(r.extent, int):
        return open_parts(r)
    middle = r.lo + r.extent // r.tile * r.tile
    rest = r.with_(lo=middle, tile=r.extent % r.tile)
    return [rest] if r.extent < r.tile else [r.with_(hi=middle), rest]


def open_parts(r: Range) -> list[Range]:
    """Full tiles of a loop of open length, then what is left: as one partial tile of vectors, or in tiles of powers of two."""
    most = interval(r.extent, {})
    if r.lanes and most and most[1] < r.tile:
        return [r]
    parts: list[Range] = []
    start, wide = r.lo, r.tile
    while wide:
        base = r.lo if r.tile % wide == 0 else start
        end = base + (r.hi - base) // wide * wide
        parts.append(r.with_(lo=start, hi=end, tile=wide))
        start, wide = end, 0 if r.lanes else smaller(wide)
    if r.lanes:
        parts.append(r.with_(lo=start))
    return [p for p in parts if p.extent != 0]


def smaller(tile: int) -> int:
    """The largest power of two in two thirds of a tile, so that few steps take what such tiles leave over; 0 below one."""
    return 1 << (2 * tile // 3).bit_length() - 1 if tile > 1 else 0
