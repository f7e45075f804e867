"""Split loops whose tile does not divide them, so that every tile is full."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import prod

from compiler.analysis.accesses import is_contraction
from compiler.cost.machine import Machine
from compiler.ir import scalar
from compiler.ir.scalar import Expr, PrimitiveCall, Ref
from compiler.ir.symbolic.index_expr import interval
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Prefetch, Range, Reduce, Stmt, has_partial_rows
from compiler.ir.tile.substitution import NameSupply, with_fresh_names
from compiler.passes.base import Context, TilePass, register

MAX_EXPANDED_OPS = 3000
"""How many operations the code for every number of rows that may be left over is at most."""

CODE_SHARE_FACTOR = 8
"""How many times as much as a loop another one computes where it is worth less code, in proportion, as at the edge of an image."""


@register
@dataclass(frozen=True)
class Peel(TilePass):
    """for %i in 0..100 tile 8 { ... }  ->  for %i in 0..96 tile 8 { ... }  for %i in 96..100 tile 4 { ... }

    for %i in 0..s0 tile 32 lanes 16 { ... }
    ->  for %i in 0..s0//32*32 tile 32 lanes 16 { ... }  for %i in s0//32*32..s0 tile 32 lanes 16 { ... }

    A reduction becomes several, whose results are combined.  Of an open length a tile of a loop is left partial, for which code
    generation writes out every number of vectors; and every number of rows in the loops that compute most, as long as that is at most
    `written` operations, else of those that smaller tiles leave over, in half as many.  Few of those that keep accumulators add in
    `chains`, so that one sum need not wait for the other.
    """

    name = "peel"
    max_expanded_ops: int = MAX_EXPANDED_OPS

    def run(self, ir: Kernel, context: Context) -> Kernel:
        fresh, accumulators = NameSupply(ir), (context.machine or Machine()).registers // 2
        code_shares = self.code_shares(ir, context)

        def rule(stmt: Stmt) -> Block:
            if isinstance(stmt, For):
                allowed = self.max_expanded_ops * code_shares[stmt.range.var] if has_partial_rows(stmt.range) else -1
                if remainder_code_ops(stmt.range, stmt.body) <= allowed:
                    return (replace(stmt, body=with_accumulators(stmt.body, accumulators)),)
                parts = peel_range(stmt.range, True, allowed / 2 / max(1, unrolled_ops(stmt.body)))
                *full, last = (replace(stmt, range=r) for r in parts)
                return (
                    *full,
                    replace(last, body=with_accumulators(last.body, accumulators))
                    if has_partial_rows(last.range)
                    else last,
                )
            if isinstance(stmt, Reduce):
                return self.peel_reduction(stmt, fresh)
            return (stmt,)

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def code_shares(self, ir: Kernel, context: Context) -> dict[str, float]:
        """How much of the code that there may be the loops over each variable are worth that leave rows over."""
        loop_ops = Counter[str]()
        for loops, calls in context.accesses(ir).arithmetic:
            loop_ops.update(dict.fromkeys((r.var for r in loops), calls * tile.iteration_count_hint(loops)))
        found = {s.range.var for s in tile.walk(ir.body) if isinstance(s, For) and has_partial_rows(s.range)}
        most = max((loop_ops[v] for v in found), default=0)
        return {v: min(1.0, CODE_SHARE_FACTOR * loop_ops[v] / most) if most else 1.0 for v in found}

    def peel_reduction(self, stmt: Reduce, fresh: NameSupply) -> Block:
        """The parts of a reduction, then their combination under the old name."""
        for k, r in enumerate(stmt.ranges):
            parts = peel_range(r)
            if parts == [r]:
                continue
            if len(parts) == 1:
                return self.peel_reduction(with_range(stmt, k, parts[0]), fresh)
            out: list[Stmt] = []
            names: list[Ref] = []
            for part in parts:
                piece = with_fresh_names(with_range(stmt, k, part), fresh)
                out += self.peel_reduction(piece, fresh)
                names.append(Ref(stmt.value.dtype, piece.name))
            combined: Expr = names[0]
            for name in names[1:]:
                combined = PrimitiveCall(stmt.value.dtype, stmt.op, (combined, name))
            return (*out, Let(stmt.name, combined))
        return (stmt,)


def with_range(stmt: Reduce, k: int, r: Range) -> Reduce:
    """`stmt` with its range number `k` replaced."""
    return replace(stmt, ranges=(*stmt.ranges[:k], r, *stmt.ranges[k + 1 :]))


def with_accumulators(body: Block, accumulators: int) -> Block:
    """`body` with the steps of its products in so many chains."""

    def rule(r: Range, stmt: Stmt) -> Range:
        plain = r.tile == 1 and is_contraction(stmt) and r is tile.stmt_ranges(stmt)[-1]
        return (
            r.with_(accumulators=accumulators)
            if plain and all(isinstance(s, (Let, Prefetch)) for s in tile.stmt_body(stmt))
            else r
        )

    return tile.map_ranges(body, rule)


def remainder_code_ops(rows: Range, body: Block) -> int:
    """How many operations code for every number of `rows` less than a tile has."""
    return rows.tile * (rows.tile - 1) // 2 * unrolled_ops(body)


def unrolled_ops(body: Block) -> int:
    """How many operations a block is written out to for each row of the tiles around it."""
    total = 0
    for s in body:
        times = prod(-(-r.tile // max(1, r.lanes)) * r.unroll for r in tile.stmt_ranges(s))
        calls = (e for v in tile.stmt_exprs(s) for e in v.subexprs if isinstance(e, PrimitiveCall))
        total += times * (sum(scalar.PRIMITIVES[e.primitive].cost for e in calls) + unrolled_ops(tile.stmt_body(s)))
    return total


def peel_range(r: Range, is_loop: bool = False, max_rows: float = 0) -> list[Range]:
    """Full tiles, then the rest as one smaller tile; of an open length as `open_parts` has it."""
    if r.extent % r.tile == 0:
        return [r]
    if not isinstance(r.extent, int):
        return peel_dynamic_range(r, is_loop, max_rows)
    middle = r.lo + r.extent // r.tile * r.tile
    rest = r.with_(lo=middle, tile=r.extent % r.tile)
    return [rest] if r.extent < r.tile else [r.with_(hi=middle), rest]


def peel_dynamic_range(r: Range, is_loop: bool, max_rows: float) -> list[Range]:
    """Full tiles of an open length, then what is left: rows in tiles of powers of two, until code for every number of them has at
    most so many `rows`; vectors of a `loop` all in one tile, and those of a reduction one by one, the last one partial.
    """
    unit, parts, start = min(r.lanes, r.tile) or 1, list[Range](), r.lo
    most, count = interval(r.extent, {}), -(-r.tile // unit)
    if r.lanes and most and most[1] <= (r.tile if is_loop else unit):
        return [r.with_(tile=min(r.tile, -(-most[1] // unit) * unit))]
    if r.lanes and is_loop:
        middle = r.lo + r.extent // r.tile * r.tile
        rest = r.hi - middle
        return [r.with_(hi=middle), r.with_(lo=middle, tile=rest if isinstance(rest, int) else r.tile)]
    tile_size = r.tile
    while tile_size:
        if not r.lanes and 1 < tile_size < r.tile and tile_size * (tile_size + 1) // 2 <= max_rows:
            parts.append(r.with_(lo=start, tile=tile_size))
            break
        base = r.lo if r.tile % tile_size == 0 else start
        end = base + (r.hi - base) // tile_size * tile_size
        parts.append(r.with_(lo=start, hi=end, tile=tile_size))
        start, count = end, min(1, count - 1) if r.lanes else remainder_tile(count)
        tile_size = count * unit
    rest = r.hi - start  # known where the sizes in it are multiples of a vector
    parts += [r.with_(lo=start, tile=rest if isinstance(rest, int) and rest else unit)] if r.lanes else []
    return [p for p in parts if p.extent != 0]


def remainder_tile(tile: int) -> int:
    """The largest power of two in two thirds of a tile, so that few steps take what such tiles leave over; 0 below one."""
    return 1 << (2 * tile // 3).bit_length() - 1 if tile > 1 else 0
