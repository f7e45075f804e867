"""Copy an operand of a contraction to a local buffer, transposed so that lanes read it contiguously."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.accesses import Access, Accesses
from compiler.cost.machine import Machine
from compiler.ir.scalar import Load
from compiler.ir.symbolic.index_expr import interval, product, variables
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Reduce, dim_hint, walk
from compiler.ir.tile.substitution import NameSupply, with_unique_names
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.transforms.cache_operand import cache_operand_at


@register
@dataclass(frozen=True)
class CacheOperand(TilePass):
    """Copy a reused operand to a local buffer with the reduced index outermost.

    for %i { for %j { reduce %r { x[%i, %r] * k[%j, %r] } } }
    ->  local %t  for %r { for %j { store k[%j, %r], %t[%r, %j] } }
        for %i { for %j { reduce %r { x[%i, %r] * %t[%r, %j] } } }

    Applies if the operand is contiguous along the reduction, so that lanes would gather, and is reread in a loop (%i) of
    at least `min_reuse` steps that it does not depend on.  The copy has at most `max_elements`.  Constants are excluded,
    because `pack` reorders them at compile time.
    """

    name = "cache-operand"
    exact = True
    min_reuse: int = from_machine("min_operand_reuse")
    max_elements: int = from_machine("max_local_elements")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir = with_unique_names(ir)
        for s in [s for s in walk(ir.body) if is_contraction(s)]:
            assert isinstance(s, Reduce)
            table = context.accesses(ir)
            for a in table.all:
                if isinstance(a.stmt, Reduce) and a.stmt.name == s.name:
                    loop = self.reuse_loop(table, a, s, context.machine)
                    message = "" if loop is None else f"%{a.buffer} cached transposed per %{loop.var}"
                    if loop is not None and context.may_apply(self, message):
                        ir = ir.with_body(self.insert_copy(ir.body, table, a, s, loop, NameSupply(ir)("transposed")))
                        context.propose(self, None)
                        break
        return ir

    def reuse_loop(self, table: Accesses, a: Access, s: Reduce, machine: Machine) -> Range | None:
        """Return the outermost long loop that does not change the operand and before which its copy fits, or None."""
        if table.roles[a.buffer] != "in" or not any(table.stride(a, r.var) == 1 for r in s.ranges):
            return None
        loads = [e for e in s.value.subexprs if isinstance(e, Load) and (e.buffer, e.index) == (a.buffer, a.index)]
        if any(e.mask is not None for e in loads):
            return None  # the copy would read out of bounds
        enclosing_loops = [r for r in a.loops if r not in s.ranges]
        loops = [r for r in enclosing_loops if isinstance(table.loops[r.var][1], For)]
        reuse_loops = [r for r in loops if not table.depends_on(a, r.var) and dim_hint(r.extent, 0) >= self.min_reuse]
        dependent_loops = [r for r in enclosing_loops if table.depends_on(a, r.var)]
        strided_loops = [r for r in dependent_loops if table.stride(a, r.var) not in (0, 1)]
        index_vars = {n for d in a.index for n in variables(d)}
        if not reuse_loops or not strided_loops or not index_vars <= {r.var for r in a.loops}:
            return None
        others = [b for b in table.loads_of(a.stmt) if b is not a]
        lane = strided_loops[-1]
        lanes = machine.lanes(8 * table.types[a.buffer].dtype.bytes)
        last = s.ranges[-1]
        are_along = all(table.stride(b, last.var) in (0, 1) or table.roles[b.buffer] == "const" for b in others)
        if are_along and dim_hint(lane.extent, 0) < lanes <= dim_hint(last.extent, 0):
            return None  # lanes run along the reduction, where the operands are contiguous
        if any(table.depends_on(b, lane.var) or table.roles[b.buffer] == "const" for b in others):
            return None  # the other operand varies across lanes too
        if loops == enclosing_loops and any(self.are_others_contiguous(table, a, others, r) for r in loops):
            return None  # lanes along this loop read the others contiguously and broadcast this operand
        inner_loops = {r.var: enclosing_loops[k + 1 :] for k, r in enumerate(enclosing_loops)}
        return next((r for r in reuse_loops if self.fits_limit(table, a, inner_loops[r.var], s, machine)), None)

    def are_others_contiguous(self, table: Accesses, a: Access, others: list[Access], r: Range) -> bool:
        """Return True if the others are contiguous along `r`, which is long and does not change this operand."""
        if table.depends_on(a, r.var) or dim_hint(r.extent, 0) < self.min_reuse:
            return False
        return all(table.stride(b, r.var) == 1 and table.roles[b.buffer] != "local" for b in others)

    def fits_limit(self, table: Accesses, a: Access, inside: list[Range], s: Reduce, machine: Machine) -> bool:
        """Return True if loops `inside` and the reduction read a box of at most `max_elements`."""
        copied_loops = [r for r in (*inside, *s.ranges) if table.depends_on(a, r.var)]
        if any(x.var in variables(r.lo) for x in copied_loops for r in copied_loops):
            return False
        elements = product(r.extent for r in copied_loops)
        bounds = interval(elements, table.loop_bounds)
        if bounds is None or bounds[1] > machine.max_stack_elements:
            return False
        return dim_hint(elements, 0) <= self.max_elements

    def insert_copy(self, body: Block, table: Accesses, a: Access, s: Reduce, loop: Range, name: str) -> Block:
        """Copy what `a` reads in `loop` before it, with the reduced indices outermost."""
        inner = [r for r in a.loops[a.loops.index(loop) + 1 :] if table.depends_on(a, r.var)]
        ordered = [r for r in inner if r in s.ranges] + [r for r in inner if r not in s.ranges]
        load = Load(table.types[a.buffer].dtype, a.buffer, a.index)
        return cache_operand_at(body, loop, load, ordered, name, table.loop_bounds)
