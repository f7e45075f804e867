"""Compute an operand of a contraction once for all its rows, where every row tile would compute it again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from compiler.analysis.accesses import Accesses
from compiler.cost.issue import accessed, computed, recomputed, shuffled
from compiler.cost.machine import Machine
from compiler.ir.scalar import Expr, PrimitiveCall
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import For, Kernel, Range, Reduce, dim_hint, is_parallel_loop, stored_buffers, walk
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
    reading it from there.  An operand that all lanes share is computed before the loops that it does not depend on.
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
        for operand in (contraction.lhs, contraction.rhs):
            varying = table.varying_loops(operand)
            columns = [lane] if lane.var in varying else [r for r in around if r.var in varying]
            inside = around[around.index(columns[-1]) + 1 :] if columns else ()
            loop = next((r for r in inside if isinstance(table.loops[r.var][1], For) and r.var not in varying), None)
            if loop is None or not isinstance(operand, PrimitiveCall):
                continue
            if is_widened_integer(operand):  # its product is one instruction where LLVM sees how narrow it is
                continue
            dims = [r for r in (*inside[inside.index(loop) + 1 :], *s.ranges) if r.var in varying]
            if not is_box(dims) or not stays_in_l2(operand, columns, dims, around, machine):
                continue
            if is_shared_by_threads(table, loop, machine):
                continue
            statement = table.loops[loop.var][1]
            assert isinstance(statement, For)
            value, stored = with_inlined_values(operand, (statement,)), stored_buffers((statement,))
            if any(load.mask is not None or load.buffer in stored for load in value.loads):
                continue
            if not value.used_names & bound_names((statement,)) <= {r.var for r in dims}:
                continue
            repeats = max(1, prod(-(-dim_hint(r.extent) // r.tile) for r in inside if r.var not in varying))
            if saved_cycles(table, operand, columns, around, repeats, machine) > 0:
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


def is_shared_by_threads(table: Accesses, loop: Range, machine: Machine) -> bool:
    """Return True if the parallel loops around `loop` have too few tiles for all threads, which then share `loop` too."""
    _, stmt, around = table.loops[loop.var]
    tiles = prod(-(-dim_hint(r.extent) // r.tile) for r in around if is_parallel_loop(table.loops[r.var][1]))
    return is_parallel_loop(stmt) and tiles < machine.threads


def stays_in_l2(
    operand: Expr, columns: list[Range], dims: list[Range], around: Sequence[Range], machine: Machine
) -> bool:
    """Return True if a panel of the operand, and what it is multiplied by, stay in the second-level cache."""
    depth, own = prod(dim_hint(r.extent) for r in dims), prod(r.tile for r in columns)
    elements = depth * (own + prod(r.tile for r in around if r not in columns))
    is_on_stack = depth * own <= machine.max_stack_elements
    return is_on_stack and elements * operand.dtype.bytes <= machine.kept_share * machine.l2


def saved_cycles(
    table: Accesses, operand: Expr, columns: list[Range], around: Sequence[Range], repeats: int, machine: Machine
) -> float:
    """Return the cycles saved for one step of the reduction and a tile of `columns`, which `repeats` tiles would compute.

    A value that all lanes share is broadcast: from memory by its load, from a register by a shuffle.
    """
    varying = [e for e in operand.subexprs if any(r.var in table.varying_loops(e) for r in columns)]
    vectors, products = (prod(-(-r.tile // max(1, r.lanes)) for r in rs) for rs in (columns, around))
    has_lanes = any(r.lanes for r in columns)
    loads = vectors * (1.0 if has_lanes else machine.loads_per_broadcast)
    unpacking = recomputed(varying, vectors, machine)
    from_l2 = prod(r.tile for r in columns) * operand.dtype.bytes / machine.l2_bytes_per_cycle
    again = (computed(products) + unpacking + shuffled(0 if has_lanes else vectors)).cycles(machine)
    read = (computed(products) + accessed(loads, False)).cycles(machine) + from_l2 * machine.panel_stall_share
    once = (unpacking + accessed(vectors, True)).cycles(machine) + machine.loop_overhead
    return repeats * (again - read) - once
