"""Size of straight-line code: what tiles and unrolled loops repeat, before any code is written."""

from __future__ import annotations

from math import prod

from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.ir.scalar import PRIMITIVES, Expr, PrimitiveCall
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, Range, Stmt, Store


def code_size(body: Block) -> int:
    """Return the operations on vectors or scalars that the code of `body` contains; loops count one iteration."""
    return sum(map(stmt_size, body))


def code_lines(body: Block, machine: Machine) -> float:
    """Return the cache lines that the code of `body` takes, with the ends of its loops."""
    loops = sum(len(tile.stmt_ranges(s)) for s in tile.walk(body))
    instructions = code_size(body) + loops * 2 * machine.loop_end_instructions  # they begin with as many
    return instructions * machine.instruction_bytes / CACHE_LINE_BYTES


def stmt_size(stmt: Stmt) -> int:
    """Return `code_size` of one statement."""
    own = sum(map(expr_size, tile.stmt_exprs(stmt))) + isinstance(stmt, Store)
    return (own + code_size(tile.stmt_body(stmt))) * prod(map(copies, tile.stmt_ranges(stmt)))


def expr_size(e: Expr) -> int:
    """Return the loads of an expression, and its operations in multiply-adds."""
    calls = (PRIMITIVES[c.primitive].cost for c in e.subexprs if isinstance(c, PrimitiveCall))
    return sum(1 for _ in e.loads) + sum(calls)


def copies(r: Range) -> int:
    """Return how often the code of a loop contains its body: once for each vector, or scalar, of a tile and unrolled step."""
    return max(1, r.tile // max(r.lanes, 1)) * max(r.unroll, 1)
