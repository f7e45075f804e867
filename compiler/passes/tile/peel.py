"""Loop peeling: split loops whose tile does not divide them, so that every tile is full."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import prod

from compiler.ir import scalar
from compiler.ir.scalar import Expr, PrimitiveCall, Ref
from compiler.ir.symbolic.index_expr import interval
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Prefetch, Range, Reduce, Stmt, has_partial_rows
from compiler.ir.tile.substitution import NameSupply, with_fresh_names
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.transforms.split import split_at


@register
@dataclass(frozen=True)
class Peel(TilePass):
    """Split off the last, partial tile of a loop.

    for %i in 0..100 tile 8 { ... }  ->  for %i in 0..96 tile 8 { ... }  for %i in 96..100 tile 4 { ... }

    for %i in 0..s0 tile 32 lanes 16 { ... }
    ->  for %i in 0..s0//32*32 tile 32 lanes 16 { ... }  for %i in s0//32*32..s0 tile 32 lanes 16 { ... }

    A reduction becomes several, whose results are combined.  In a loop of dynamic extent the last tile stays partial: code
    generation expands every number of vectors, and of rows while that is at most `max_expanded_ops` (scaled by the
    loop's share of operations).  Else smaller tiles of powers of two precede a partial one of half that budget.
    Contractions in partial tiles get several accumulators, to hide the latency of dependent additions.
    """

    name = "peel"
    max_expanded_ops: int = from_machine("max_expanded_ops")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        fresh, accumulators = NameSupply(ir), context.machine.registers // 2
        code_shares = self.code_shares(ir, context)

        def peel_loop(stmt: For) -> Block:
            allowed = self.max_expanded_ops * code_shares[stmt.range.var] if has_partial_rows(stmt.range) else -1
            if remainder_code_ops(stmt.range, stmt.body) <= allowed:
                return (balanced(stmt, accumulators),)
            parts = peel_range(stmt.range, True, allowed / 2 / max(1, unrolled_ops(stmt.body)))
            *full, last = (replace(stmt, range=r) for r in parts)
            return (*full, balanced(last, accumulators))

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, (For, Reduce)):
                return (stmt,)
            new = peel_loop(stmt) if isinstance(stmt, For) else self.peel_reduction(stmt, fresh)
            if new == (stmt,):
                return new
            message = f"partial tiles of {', '.join(f'%{r.var}' for r in tile.stmt_ranges(stmt))} split off"
            return new if context.may_apply(self, message, required=True, remark=False) else (stmt,)

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def code_shares(self, ir: Kernel, context: Context) -> dict[str, float]:
        """Return for each loop variable with partial rows the fraction of `max_expanded_ops` that its loops may use."""
        loop_ops = Counter[str]()
        for around, count, calls in context.accesses(ir).operation_counts:
            loop_ops.update(dict.fromkeys(around, calls * count))
        loop_vars = {s.range.var for s in tile.walk(ir.body) if isinstance(s, For) and has_partial_rows(s.range)}
        most = max((loop_ops[v] for v in loop_vars), default=0)
        return {v: min(1.0, context.machine.code_share * loop_ops[v] / most) if most else 1.0 for v in loop_vars}

    def peel_reduction(self, stmt: Reduce, fresh: NameSupply) -> Block:
        """Split a reduction into parts, then combine them under the old name."""
        for k, r in enumerate(stmt.ranges):
            parts = peel_range(r)
            if parts == [r]:
                continue
            if len(parts) == 1:
                return self.peel_reduction(with_range(stmt, k, parts[0]), fresh)
            out: list[Stmt] = []
            partials: list[Ref] = []
            for part in parts:
                reduction = with_fresh_names(with_range(stmt, k, part), fresh)
                out += self.peel_reduction(reduction, fresh)
                partials.append(Ref(stmt.value.dtype, reduction.name))
            combined: Expr = partials[0]
            for partial in partials[1:]:
                combined = PrimitiveCall(stmt.value.dtype, stmt.op, (combined, partial))
            return (*out, Let(stmt.name, combined))
        return (stmt,)


def with_range(stmt: Reduce, k: int, r: Range) -> Reduce:
    """Replace range number `k` of a reduction."""
    return replace(stmt, ranges=(*stmt.ranges[:k], r, *stmt.ranges[k + 1 :]))


def balanced(loop: For, accumulators: int) -> For:
    """Balance the last tiles of a loop that may be partial, and give contractions in it several accumulators.

    A tile of few rows reuses its loads less.
    """
    if not has_partial_rows(loop.range):
        return loop
    return replace(loop, range=loop.range.with_(balanced=True), body=with_accumulators(loop.body, accumulators))


def with_accumulators(body: Block, accumulators: int) -> Block:
    """Give the untiled innermost ranges of contractions in `body` several accumulators."""

    def rule(r: Range, stmt: Stmt) -> Range:
        if r.tile != 1 or not is_contraction(stmt) or r is not tile.stmt_ranges(stmt)[-1]:
            return r
        is_plain = all(isinstance(s, (Let, Prefetch)) for s in tile.stmt_body(stmt))
        return r.with_(accumulators=accumulators) if is_plain else r

    return tile.map_ranges(body, rule)


def remainder_code_ops(rows: Range, body: Block) -> int:
    """Return the operations in code that is expanded for every number of rows below a tile."""
    return rows.tile * (rows.tile - 1) // 2 * unrolled_ops(body)


def unrolled_ops(body: Block) -> int:
    """Return the operations of a block after unrolling, for each row of the tiles around it."""
    total = 0
    for s in body:
        times = prod(-(-r.tile // max(1, r.lanes)) * r.unroll for r in tile.stmt_ranges(s))
        calls = (e for v in tile.stmt_exprs(s) for e in v.subexprs if isinstance(e, PrimitiveCall))
        total += times * (sum(scalar.PRIMITIVES[e.primitive].cost for e in calls) + unrolled_ops(tile.stmt_body(s)))
    return total


def peel_range(r: Range, is_loop: bool = False, max_rows: float = 0) -> list[Range]:
    """Split a range into full tiles and one smaller tile; see `peel_dynamic_range` for dynamic extents."""
    if r.extent % r.tile == 0:
        return [r]
    if not isinstance(r.extent, int):
        return peel_dynamic_range(r, is_loop, max_rows)
    *full, remainder = split_at(r, r.lo + r.extent // r.tile * r.tile)
    return [*full, remainder.with_(tile=r.extent % r.tile)]


def peel_dynamic_range(r: Range, is_loop: bool, max_rows: float) -> list[Range]:
    """Split a dynamic range into full tiles and the remainder.

    Remaining rows get tiles of powers of two, until a partial tile expands to at most `max_rows` rows of code.  Remaining
    vectors of a loop get one partial tile, those of a reduction one tile each, of which the last is partial.
    """
    unit, parts, start = min(r.lanes, r.tile) or 1, list[Range](), r.lo
    bounds, count = interval(r.extent, {}), -(-r.tile // unit)
    if r.lanes and bounds and bounds[1] <= (r.tile if is_loop else unit):
        return [r.with_(tile=min(r.tile, -(-bounds[1] // unit) * unit))]
    if r.lanes and is_loop:
        full, rest = split_at(r, r.lo + r.extent // r.tile * r.tile)
        return [full, rest.with_(tile=rest.extent) if isinstance(rest.extent, int) else rest]
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
    remainder = r.hi - start  # static if the sizes in it are multiples of a vector
    parts += (
        [r.with_(lo=start, tile=remainder if isinstance(remainder, int) and remainder else unit)] if r.lanes else []
    )
    return [p for p in parts if p.extent != 0]


def remainder_tile(tile: int) -> int:
    """Return the largest power of two of at most 2/3 of a tile, to cover remainders in few steps; 0 if `tile` is 1."""
    return 1 << (2 * tile // 3).bit_length() - 1 if tile > 1 else 0
