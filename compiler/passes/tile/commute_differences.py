"""Order of subtractions whose sign does not count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from compiler.analysis.accesses import Accesses
from compiler.ir.scalar import Expr, PrimitiveCall, Ref
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, Kernel, Let, Reduce, Stmt
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class CommuteDifferences(TilePass):
    """Subtract a number that all lanes share from a vector, not the vector from it, where only the size of the difference counts.

    reduce add %r in 0..125 { %d = %x[%i, %r] - %y[%r, %j]  yield %d * %d }    %j lanes 16
    ->  reduce add %r in 0..125 { %d = %y[%r, %j] - %x[%i, %r]  yield %d * %d }

    An instruction of AVX-512 reads its last operand from memory for all lanes at once; a broadcast of its own takes as long as the
    subtraction.  Applies to squares and absolute values in reductions.
    """

    name = "commute-differences"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table = context.accesses(ir)

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, Reduce) or not all(isinstance(s, Let) for s in stmt.body):
                return (stmt,)
            around = table.loops[stmt.ranges[0].var][2]
            lanes = {r.var for r in (*around, *stmt.ranges) if r.lanes}
            unsigned = names_without_sign(stmt)

            def bound(s: Stmt) -> Block:
                if not isinstance(s, Let) or s.name not in unsigned:
                    return (s,)
                new = commuted(table, s.value, lanes)
                if new is None or not context.may_apply(self, f"%{s.name} has its broadcast operand last"):
                    return (s,)
                return (replace(s, value=new),)

            body = tile.expand_stmts(stmt.body, bound)
            return (stmt if body is stmt.body else replace(stmt, body=body),)

        return ir.with_body(tile.expand_stmts(ir.body, rule))


def commuted(table: Accesses, e: Expr, lanes: set[str]) -> Expr | None:
    """Return a difference of a number and a vector along `lanes` with its operands exchanged; None for anything else."""
    if not isinstance(e, PrimitiveCall) or e.primitive != "sub":
        return None
    x, y = e.operands
    return y - x if varies(table, y, lanes) and not varies(table, x, lanes) else None


def varies(table: Accesses, e: Expr, loops: set[str]) -> bool:
    """Return True if `e` differs between iterations of one of `loops`, each of which has its own local buffers."""
    own = {v for load in e.loads for v in table.local_scopes.get(load.buffer, ())}
    return not loops.isdisjoint(table.varying_loops(e) | own)


def names_without_sign(s: Reduce) -> set[str]:
    """Return the values bound in a reduction that it only squares, or takes the absolute value of."""
    values = [*(t.value for t in s.body if isinstance(t, Let)), s.value]
    uses = Counter(a.name for value in values for e in value.subexprs for a in e.args if isinstance(a, Ref))
    uses.update(value.name for value in values if isinstance(value, Ref))
    even = Counter(name for value in values for e in value.calls for name in even_operands(e))
    return {name for name, count in uses.items() if even[name] == count}


def even_operands(e: PrimitiveCall) -> Iterator[str]:
    """Yield the names that a call takes whatever their sign, once for each operand."""
    names = [a.name for a in e.operands if isinstance(a, Ref)]
    is_square = e.primitive == "mul" and len(names) == 2 and names[0] == names[1]
    if is_square or e.primitive == "abs":
        yield from names
