"""Compute an operand of a contraction once for all its rows, where every row tile would compute it again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from compiler.analysis.accesses import Accesses
from compiler.cost.issue import accessed, computed, recomputed
from compiler.cost.machine import Machine
from compiler.ir.scalar import Expr, PrimitiveCall
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import For, Kernel, Range, Reduce, dim_hint, stored_buffers, walk
from compiler.ir.tile.substitution import NameSupply, bound_names, with_unique_names
from compiler.passes.base import Context, TilePass, register
from compiler.transforms.cache_operand import cache_operand_at, with_inlined_values


@register
@dataclass(frozen=True)
class HoistOperand(TilePass):
    """Hoist the arithmetic of an operand out of the loop over row tiles, into a local buffer.

    for %j lanes 16 { for %i tile 8 { reduce %r { x[%i, %r] * (cast(w[%j, %r]) * s[%j]) } } }
    ->  for %j lanes 16 { local %u  for %r { store cast(w[%j, %r]) * s[%j], %u[%r] }
          for %i tile 8 { reduce %r { x[%i, %r] * %u[%r] } } }

    Applies where a panel of the operand stays in the second-level cache, and the operations that are saved cost more than
    reading it from there.
    """

    name = "hoist-operand"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir = with_unique_names(ir)
        for s in [s for s in walk(ir.body) if isinstance(s, Reduce)]:
            table = context.accesses(ir)
            for operand, loop, dims in self.candidates(table, s, context.machine):
                if context.may_apply(self, f"an operand of %{s.name} computed once per %{loop.var}"):
                    name, bounds = NameSupply(ir)("unpacked"), table.loop_bounds
                    ir = ir.with_body(cache_operand_at(ir.body, loop, operand, dims, name, bounds))
                break
        return ir

    def candidates(self, table: Accesses, s: Reduce, machine: Machine) -> Iterator[tuple[Expr, Range, list[Range]]]:
        """Yield an operand of a contraction, the loop to hoist it out of, and the loops that its local buffer covers."""
        contraction, around = contraction_of(s), table.loops[s.ranges[0].var][2]
        lane = next((r for r in around if r.lanes), None)
        if contraction is None or lane is None or s.body or any(r.lanes for r in s.ranges):
            return
        inside = around[around.index(lane) + 1 :]
        for operand in (contraction.lhs, contraction.rhs):
            varying = table.varying_loops(operand)
            loop = next((r for r in inside if isinstance(table.loops[r.var][1], For) and r.var not in varying), None)
            if loop is None or lane.var not in varying or not isinstance(operand, PrimitiveCall):
                continue
            if is_widened_integer(operand):  # its product is one instruction where LLVM sees how narrow it is
                continue
            dims = [r for r in (*inside[inside.index(loop) + 1 :], *s.ranges) if r.var in varying]
            rows = [r for r in around if not r.lanes]
            if not is_box(dims) or not stays_in_l2(operand, lane, dims, rows, machine):
                continue
            statement = table.loops[loop.var][1]
            assert isinstance(statement, For)
            value, stored = with_inlined_values(operand, (statement,)), stored_buffers((statement,))
            if any(load.mask is not None or load.buffer in stored for load in value.loads):
                continue
            if not value.used_names & bound_names((statement,)) <= {r.var for r in dims}:
                continue
            if saved_cycles(table, operand, lane, loop, rows, machine) > 0:
                yield operand, loop, dims


def is_widened_integer(operand: PrimitiveCall) -> bool:
    """Return True for an integer that is converted from fewer bits, and for nothing else."""
    (x, *_) = operand.operands
    return (
        operand.primitive == "cast"
        and all(d.is_integer for d in (operand.dtype, x.dtype))
        and x.dtype.bits < operand.dtype.bits
    )


def is_box(dims: list[Range]) -> bool:
    """Return True if no bound of a range depends on another one, and every extent is known."""
    return all(isinstance(r.extent, int) and not variables(r.lo) for r in dims)


def stays_in_l2(operand: Expr, lane: Range, dims: list[Range], rows: list[Range], machine: Machine) -> bool:
    """Return True if a panel of the operand, and the rows that it is multiplied by, stay in the second-level cache."""
    depth = prod(dim_hint(r.extent) for r in dims)
    elements = depth * (lane.tile + prod(r.tile for r in rows))
    is_on_stack = depth * lane.tile <= machine.max_stack_elements
    return is_on_stack and elements * operand.dtype.bytes <= machine.kept_share * machine.l2


def saved_cycles(
    table: Accesses, operand: Expr, lane: Range, loop: Range, rows: list[Range], machine: Machine
) -> float:
    """Return the cycles saved for one step of the reduction and a tile of columns, over all row tiles."""
    varying = (e for e in operand.subexprs if lane.var in table.varying_loops(e))
    vectors, height = lane.tile / lane.lanes, prod(r.tile for r in rows)
    products = computed(vectors * height)
    unpacking = recomputed(varying, vectors, machine)
    from_l2 = lane.tile * operand.dtype.bytes / machine.l2_bytes_per_cycle * machine.panel_stall_share
    again = (products + unpacking).cycles(machine)
    read = (products + accessed(vectors, False)).cycles(machine) + from_l2
    once = (unpacking + accessed(vectors, True)).cycles(machine) + machine.loop_overhead
    return max(1, dim_hint(loop.extent) // loop.tile) * (again - read) - once
