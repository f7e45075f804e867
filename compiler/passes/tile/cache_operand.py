"""Copy an operand of a contraction into a local buffer, turned so that it can be read across lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.analysis.accesses import Access, Accesses, is_contraction
from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load
from compiler.ir.symbolic.index_expr import Dim, interval, product, substitute, var, variables
from compiler.ir.tile.kernel import Block, For, Kernel, Local, Range, Reduce, Stmt, Store, dim_hint, map_exprs, walk
from compiler.ir.tile.substitution import NameSupply, with_unique_names
from compiler.ir.types import TensorType
from compiler.lowering.kernel import MAX_DYNAMIC_LOCAL_ELEMENTS
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class CacheOperand(TilePass):
    """for %i { for %j { reduce %r { x[%i, %r] * k[%j, %r] } } }
    ->  local %t  for %r { for %j { store k[%j, %r], %t[%r, %j] } }  for %i { for %j { reduce %r { x[%i, %r] * %t[%r, %j] } } }

    Pays where the operand is read again in every step of a loop it does not follow (%i), and its neighbours in memory lie along the
    reduced index, which would make lanes gather.  Constants are packed instead, for nothing.
    """

    name = "cache-operand"
    exact = True
    min_reuse: int = 16
    max_elements: int = 1 << 16

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir = with_unique_names(ir)
        for s in [s for s in walk(ir.body) if is_contraction(s)]:
            assert isinstance(s, Reduce)
            table = context.accesses(ir)
            for a in table.all:
                if a.stmt.__class__ is Reduce and getattr(a.stmt, "name", "") == s.name and not a.is_store:
                    loop = self.reuse_loop(table, a, s)
                    if loop is not None:
                        ir = ir.with_body(self.insert_copy(ir.body, table, a, s, loop, NameSupply(ir)("turned")))
                        context.applied(self, f"%{a.buffer} turned once for every %{loop.var}")
                        context.propose(self, None)
                        break
        return ir

    def reuse_loop(self, table: Accesses, a: Access, s: Reduce) -> Range | None:
        """The outermost long loop that the operand does not follow and a copy made before it fits, if turning it pays."""
        if table.roles[a.buffer] != "in" or not any(table.stride(a, r.var) == 1 for r in s.ranges):
            return None
        if any(
            e.mask is not None
            for e in s.value.subexprs
            if isinstance(e, Load) and (e.buffer, e.index) == (a.buffer, a.index)
        ):
            return None  # the copy would read what the mask guards
        enclosing_loops = [r for r in a.loops if r not in s.ranges]
        loops = [r for r in enclosing_loops if isinstance(table.loops[r.var][1], For)]
        reuse_loops = [r for r in loops if not table.depends_on(a, r.var) and dim_hint(r.extent, 0) >= self.min_reuse]
        strided_loops = [
            r for r in enclosing_loops if table.depends_on(a, r.var) and table.stride(a, r.var) not in (0, 1)
        ]
        if (
            not reuse_loops
            or not strided_loops
            or any(n not in {r.var for r in a.loops} for d in a.index for n in variables(d))
        ):
            return None
        others = [b for b in table.all if b.stmt is a.stmt and not b.is_store and b is not a]
        lane = strided_loops[-1]
        if any(table.depends_on(b, lane.var) or table.roles[b.buffer] == "const" for b in others):
            return None  # the other operand moves along the lanes
        if loops == enclosing_loops and any(self.are_others_contiguous(table, a, others, r) for r in loops):
            return None  # lanes of this loop read the others as they lie, and this operand not at all
        return next(
            (r for r in reuse_loops if self.fits_limit(table, a, enclosing_loops[enclosing_loops.index(r) + 1 :], s)),
            None,
        )

    def are_others_contiguous(self, table: Accesses, a: Access, others: list[Access], r: Range) -> bool:
        """Whether the other operands lie along a loop of whole lanes that this one does not follow."""
        if table.depends_on(a, r.var) or dim_hint(r.extent, 0) < self.min_reuse:
            return False
        return all(table.stride(b, r.var) == 1 and table.roles[b.buffer] != "local" for b in others)

    def fits_limit(self, table: Accesses, a: Access, inside: list[Range], s: Reduce) -> bool:
        """Whether what loops `inside` and the reduction read of the operand can be copied whole."""
        copied_loops = [r for r in (*inside, *s.ranges) if table.depends_on(a, r.var)]
        if any(v in variables(r.lo) for v in (x.var for x in copied_loops) for r in copied_loops):
            return False
        elements = product(r.extent for r in copied_loops)
        most = interval(elements, table.loop_bounds)
        return most is not None and dim_hint(elements, 0) <= self.max_elements and most[1] <= MAX_DYNAMIC_LOCAL_ELEMENTS

    def insert_copy(self, body: Block, table: Accesses, a: Access, s: Reduce, loop: Range, name: str) -> Block:
        """`body` with the copy made before `loop` and read inside it; the copy counts from where its loops start."""
        inner = [r for r in a.loops[a.loops.index(loop) + 1 :] if table.depends_on(a, r.var)]
        ordered = [r for r in inner if r in s.ranges] + [r for r in inner if r not in s.ranges]
        rename = {r.var: f"{name}.{r.var}" for r in ordered}
        index_map = {v: var(n) for v, n in rename.items()}
        dtype = table.types[a.buffer].dtype
        source = Load(dtype, a.buffer, tuple(substitute(d, index_map) for d in a.index))
        place = tuple(var(rename[r.var]) - r.lo for r in ordered)
        fill: Stmt = Store(name, place, source)
        for r in reversed(ordered):
            fill = For(Range(rename[r.var], r.lo, r.hi), (fill,))
        shape = tuple(max_extent(r.extent, table) for r in ordered)
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


def max_extent(d: Dim, table: Accesses) -> Dim:
    """`d`, or the most that it may be where it follows loops."""
    most = interval(d, table.loop_bounds) if variables(d) else None
    return most[1] if most else d
