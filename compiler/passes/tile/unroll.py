"""Unrolling of short reduction ranges, and partial unrolling of long ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from compiler.cost.contraction import RegisterTile, hides_loop_overhead
from compiler.ir.scalar import IndexValue, Load
from compiler.ir.symbolic.index_atoms import FloorDiv, Mod
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Reduce, Stmt, Store
from compiler.passes.base import Context, TilePass, from_machine, register


@register
@dataclass(frozen=True)
class Unroll(TilePass):
    """Unroll the innermost ranges of reductions.

    reduce %c in 0..64, %y in 0..3, %x in 0..3 { ... }  ->  reduce %c in 0..64, %y in 0..3 unroll 3, %x in 0..3 unroll 3 { ... }

    Ranges without inner loops are unrolled fully while they have at most `max_steps` steps together, as windows of
    convolutions and poolings, whose addresses become constants.  A range of lanes must also expand to at most
    `max_vectors`, with the tiles around it.

    for %i tile 6 { reduce %k in 0..768 { ... } }  ->  for %i tile 6 { reduce %k in 0..768 unroll 4 { ... } }

    A longer range is unrolled by `partial_factor` if one step has too few multiply-adds to hide the loop overhead.

    reduce %k in 0..768 { yield %w[%j, %k//8] >> (%k%8)*4 ... }  ->  reduce %k in 0..768 unroll 8 { ... }

    One whose number is divided by a constant is unrolled by that: steps share what is read, and remainders are constants.

    for %i { for %j in 0..12 { store %x[%i, %k[%j]], %y[%i, %j] } }  ->  for %i { for %j in 0..12 unroll 9 { ... } }

    An innermost loop without lanes is unrolled while its steps together have at most `max_vectors` operations.  One that
    threads share is tiled instead, as they take its iterations one by one.
    """

    name = "unroll"
    exact = True
    max_steps: int = from_machine("max_unrolled_steps")
    max_vectors: int = from_machine("max_unrolled_vectors")
    partial_factor: int = from_machine("partial_unroll")
    max_period: int = from_machine("max_unrolled_periods")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        machine = context.machine
        accesses = context.accesses(ir)
        accumulator_tiles = {
            id(a.consumer): accumulator_tile(a.loops) for a in accesses.all if is_contraction(a.consumer)
        }

        def rule(stmt: Stmt) -> Block:
            if any(tile.stmt_ranges(s) for s in tile.stmt_body(stmt)):
                return (stmt,)
            if isinstance(stmt, For):
                r = self.unrolled_scalars(stmt, accesses.loops[stmt.range.var][2])
                is_wanted = r != stmt.range and context.may_apply(self, f"%{r.var} unrolled")
                return (replace(stmt, range=r),) if is_wanted else (stmt,)
            if not isinstance(stmt, Reduce):
                return (stmt,)
            around = accesses.loops[stmt.ranges[0].var][2]
            ranges, last = self.fully_unroll(stmt.ranges, vector_count(around)), stmt.ranges[-1]
            accumulators = accumulator_tiles.get(id(stmt)) if ranges[-1] == last else None
            if accumulators is not None and not hides_loop_overhead(accumulators, machine):
                ranges = (*stmt.ranges[:-1], last.with_(unroll=max(last.unroll, self.partial_factor)))
            period = division_period(stmt, self.max_period // max(1, vector_count(around)))
            if period > ranges[-1].unroll:
                ranges = (*ranges[:-1], ranges[-1].with_(unroll=period))
            if ranges == stmt.ranges or not context.may_apply(self, f"%{stmt.name} unrolled"):
                return (stmt,)
            context.propose(self, None)
            return (replace(stmt, ranges=ranges),)

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def unrolled_scalars(self, stmt: For, around: Sequence[Range]) -> Range:
        """Return the range of an innermost loop inside those `around`: unrolled or tiled if none of them has a tile."""
        r, limit = stmt.range, min(self.max_steps, self.max_vectors // operation_count(stmt.body))
        if (
            not isinstance(r.extent, int)
            or min(limit, r.extent) < 2
            or any(x.lanes or x.tile > 1 for x in (*around, r))
        ):
            return r
        if stmt.parallel and not around:
            return r.with_(tile=1 << (min(limit, r.extent).bit_length() - 1))
        return r.with_(unroll=max(r.unroll, min(limit, r.extent)))

    def fully_unroll(self, ranges: tuple[Range, ...], copies: int) -> tuple[Range, ...]:
        """Unroll the last ranges fully within the limits; `copies` is the number of vectors in the tiles around them."""
        out: list[Range] = []
        remaining = self.max_steps
        for r in reversed(ranges):
            steps = -(-r.extent // r.tile) if isinstance(r.extent, int) else remaining + 1
            remaining = remaining // max(steps, 1)
            fits = remaining and (not r.lanes or copies * vector_count([r]) * steps <= self.max_vectors)
            out.append(r.with_(unroll=max(steps, 1)) if fits else r)
        return tuple(reversed(out))


def operation_count(body: Block) -> int:
    """Return the operations of statements without loops, at least 1: calls of primitives, loads and stores."""
    values = [e for s in body for e in tile.stmt_exprs(s)]
    return max(1, sum(len(e.calls) + len(e.loads) for e in values) + sum(isinstance(s, Store) for s in body))


def division_period(stmt: Reduce, limit: int) -> int:
    """Return the largest constant up to `limit` by which a reduction divides the number of its last step, 1 if there is none."""
    r = stmt.ranges[-1]
    indices: list[Dim] = [e.index for e in stmt.value.subexprs if isinstance(e, IndexValue)]
    indices += [d for e in stmt.value.subexprs if isinstance(e, Load) for d in e.index]
    atoms = [a for d in indices if isinstance(d, IndexExpr) for mono, _ in d.terms for a in mono]
    divided = (a.den for a in atoms if isinstance(a, (FloorDiv, Mod)) and a.num == var(r.var))
    if r.tile > 1 or not isinstance(r.extent, int):
        return 1
    return max((n for n in divided if isinstance(n, int) and n <= limit and r.extent % n == 0), default=1)


def accumulator_tile(loops: Sequence[Range]) -> RegisterTile:
    """Return the accumulators of a contraction inside `loops`."""
    rows, registers = ([r for r in loops if bool(r.lanes) == lanes] for lanes in (False, True))
    return RegisterTile(rows=vector_count(rows), registers=vector_count(registers))


def vector_count(loops: Sequence[Range]) -> int:
    """Return the number of vectors, or of scalars without lanes, in one step of all `loops`."""
    return prod(r.tile // max(r.lanes, 1) for r in loops)
