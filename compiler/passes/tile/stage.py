"""Copy an operand of a contraction into a local buffer, turned so that it can be read across lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import scalar
from compiler.ir.index import Dim, interval, product, substitute, var, variables
from compiler.ir.scalar import Expr, Load
from compiler.ir.tile import Block, For, Kernel, Local, Range, Reduce, Stmt, Store, known, map_exprs, walk
from compiler.ir.types import TensorType
from compiler.passes.access import Access, Accesses, contraction
from compiler.passes.base import Context, TilePass, register
from compiler.passes.lower_kernel import OPEN_LIMIT
from compiler.passes.rename import Fresh, with_unique_names


@register
@dataclass(frozen=True)
class Stage(TilePass):
    """for %i { for %j { reduce %r { x[%i, %r] * k[%j, %r] } } }
    ->  local %t  for %r { for %j { store k[%j, %r], %t[%r, %j] } }  for %i { for %j { reduce %r { x[%i, %r] * %t[%r, %j] } } }

    Pays where the operand is read again in every step of a loop it does not follow (%i), and its neighbours in memory lie along the
    reduced index, which would make lanes gather.  Constants are packed instead, for nothing.
    """

    name = "stage"
    exact = True
    reuse: int = 16
    limit: int = 1 << 16

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir = with_unique_names(ir)
        for s in [s for s in walk(ir.body) if contraction(s)]:
            assert isinstance(s, Reduce)
            table = context.accesses(ir)
            for a in table.all:
                if a.stmt.__class__ is Reduce and getattr(a.stmt, "name", "") == s.name and not a.is_store:
                    loop = self.reuse_loop(table, a, s)
                    if loop is not None:
                        ir = ir.with_body(self.insert(ir.body, table, a, s, loop, Fresh(ir)("turned")))
                        context.applied(self, f"%{a.buffer} turned once for every %{loop.var}")
                        context.offer(self, None)
                        break
        return ir

    def reuse_loop(self, table: Accesses, a: Access, s: Reduce) -> Range | None:
        """The outermost long loop that the operand does not follow and a copy made before it fits, if turning it pays."""
        if table.roles[a.buffer] != "in" or not any(table.step(a, r.var) == 1 for r in s.ranges):
            return None
        if any(
            e.mask is not None
            for e in s.value.parts
            if isinstance(e, Load) and (e.buffer, e.index) == (a.buffer, a.index)
        ):
            return None  # the copy would read what the mask guards
        around = [r for r in a.loops if r not in s.ranges]
        loops = [r for r in around if isinstance(table.loops[r.var][1], For)]
        free = [r for r in loops if not table.follows(a, r.var) and known(r.extent, 0) >= self.reuse]
        across = [r for r in around if table.follows(a, r.var) and table.step(a, r.var) not in (0, 1)]
        if not free or not across or any(n not in {r.var for r in a.loops} for d in a.index for n in variables(d)):
            return None
        others = [b for b in table.all if b.stmt is a.stmt and not b.is_store and b is not a]
        lane = across[-1]
        if any(table.follows(b, lane.var) or table.roles[b.buffer] == "const" for b in others):
            return None  # the other operand moves along the lanes
        if loops == around and any(self.is_across(table, a, others, r) for r in loops):
            return None  # lanes of this loop read the others as they lie, and this operand not at all
        return next((r for r in free if self.fits(table, a, around[around.index(r) + 1 :], s)), None)

    def is_across(self, table: Accesses, a: Access, others: list[Access], r: Range) -> bool:
        """Whether the other operands lie along a loop of whole lanes that this one does not follow."""
        if table.follows(a, r.var) or known(r.extent, 0) < self.reuse:
            return False
        return all(table.step(b, r.var) == 1 and table.roles[b.buffer] != "local" for b in others)

    def fits(self, table: Accesses, a: Access, inside: list[Range], s: Reduce) -> bool:
        """Whether what loops `inside` and the reduction read of the operand can be copied whole."""
        turned = [r for r in (*inside, *s.ranges) if table.follows(a, r.var)]
        if any(v in variables(r.lo) for v in (x.var for x in turned) for r in turned):
            return False
        elements = product(r.extent for r in turned)
        most = interval(elements, table.bounds)
        return most is not None and known(elements, 0) <= self.limit and most[1] <= OPEN_LIMIT

    def insert(self, body: Block, table: Accesses, a: Access, s: Reduce, loop: Range, name: str) -> Block:
        """`body` with the copy made before `loop` and read inside it; the copy counts from where its loops start."""
        inner = [r for r in a.loops[a.loops.index(loop) + 1 :] if table.follows(a, r.var)]
        ordered = [r for r in inner if r in s.ranges] + [r for r in inner if r not in s.ranges]
        rename = {r.var: f"{name}.{r.var}" for r in ordered}
        moved = {v: var(n) for v, n in rename.items()}
        dtype = table.types[a.buffer].dtype
        source = Load(dtype, a.buffer, tuple(substitute(d, moved) for d in a.index))
        place = tuple(var(rename[r.var]) - r.lo for r in ordered)
        fill: Stmt = Store(name, place, source)
        for r in reversed(ordered):
            fill = For(Range(rename[r.var], r.lo, r.hi), (fill,))
        shape = tuple(greatest(r.extent, table) for r in ordered)
        read = Load(dtype, name, tuple(var(r.var) - r.lo for r in ordered))

        def swap(e: Expr) -> Expr:
            return scalar.transform(
                e, lambda x: read if isinstance(x, Load) and (x.buffer, x.index) == (a.buffer, a.index) else x
            )

        def block(b: Block) -> Block:
            out: list[Stmt] = []
            for stmt in b:
                if isinstance(stmt, For) and stmt.range.var == loop.var:
                    out += [Local(name, TensorType(dtype, shape)), fill, replace(stmt, body=map_exprs(stmt.body, swap))]
                elif isinstance(stmt, For):
                    out.append(replace(stmt, body=block(stmt.body)))
                else:
                    out.append(stmt)
            return tuple(out)

        return block(body)


def greatest(d: Dim, table: Accesses) -> Dim:
    """`d`, or the most that it may be where it follows loops."""
    most = interval(d, table.bounds) if variables(d) else None
    return most[1] if most else d
