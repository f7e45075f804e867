"""Scans of contiguous rows: blocks of their elements are transposed in registers, so that lanes are rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from compiler.analysis.scanned_rows import is_scan_of_rows
from compiler.cost.vectorization import lane_count
from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load
from compiler.ir.symbolic.index_expr import var, variables
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Local, Range, Stmt, Store, expand_stmts
from compiler.ir.tile.substitution import NameSupply, substitute_indices, with_fresh_names, with_unique_names
from compiler.ir.types import DType, TensorType
from compiler.passes.base import Context, TilePass, register
from compiler.transforms.split import strip_mine


@register
@dataclass(frozen=True)
class TransposeScans(TilePass):
    """Load and store the elements of a scan in blocks of its rows.

    parallel %i in 0..64 { local %c  for %k in 0..100 { store %c[] + %x[%i, %k], %c[]  store %c[], %y[%i, %k] } }
    ->  parallel %i in 0..64 { local %c  for %b in 0..6 {
          local %u  for %j in 0..16 { store %x[%i, %b*16 + %j], %u[%j] }
          local %v  for %j in 0..16 { store %c[] + %u[%j], %c[]  store %c[], %v[%j] }
          for %j in 0..16 { store %v[%j], %y[%i, %b*16 + %j] }
        } ... }

    Lanes along the rows (%i) would gather and scatter; the new loops have independent steps, so `tile` transposes
    blocks.  Applies where there are as many rows as lanes.  The last elements of a row make a shorter block, as do all of a row
    shorter than a vector, which fills half of one at least.
    """

    name = "transpose-scans"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir = with_unique_names(ir)
        table, fresh, size = context.accesses(ir), NameSupply(ir), lane_count(ir, context.machine)

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, For) or not is_scan_of_rows(table, stmt, size):
                return (stmt,)
            if not context.may_apply(self, f"%{stmt.range.var} in blocks of {size} elements of {size} rows"):
                return (stmt,)
            if isinstance(stmt.range.extent, int) and stmt.range.extent <= size:
                return stage_block(stmt.range, stmt.body, table.roles, fresh)
            strips = strip_mine(stmt.range, size, fresh(f"{stmt.range.var}.block"))
            blocks: Block = (For(strips.outer, stage_block(strips.inner, stmt.body, table.roles, fresh)),)
            if strips.remainder is None:
                return blocks
            last = with_fresh_names(replace(stmt, range=strips.remainder), fresh)
            is_block = isinstance(strips.remainder.extent, int)
            return (*blocks, *(stage_block(last.range, last.body, table.roles, fresh) if is_block else (last,)))

        return ir.with_body(expand_stmts(ir.body, rule))


def stage_block(r: Range, body: Block, roles: Mapping[str, str], fresh: NameSupply) -> Block:
    """Return the steps `r` of a scan between loops that load elements of its row and loops that store results."""
    steps, index = Range(r.var, 0, r.extent), (var(r.var),)
    copies: dict[Expr, Load] = {}
    before: list[Stmt] = []
    after: list[Stmt] = []

    def is_row(e: Load | Store) -> bool:
        return roles.get(e.buffer, "local") != "local" and any(r.var in variables(d) for d in e.index)

    def copy_of(e: Load | Store, dtype: DType) -> Load:
        """Declare a local buffer for the elements of a load or store."""
        local = Local(fresh(f"{e.buffer}.block"), TensorType(dtype, (steps.hi,)))
        before.append(local)
        return Load(dtype, local.buffer, index)

    def loop(s: Stmt) -> For:
        return with_fresh_names(For(steps, (s,)), fresh)

    def read(e: Expr) -> Expr:
        if not isinstance(e, Load) or not is_row(e):
            return e
        if e not in copies:
            copies[e] = copy_of(e, e.dtype)
            before.append(loop(Store(copies[e].buffer, index, e)))
        return copies[e]

    def step(s: Stmt) -> Stmt:
        assert isinstance(s, (Let, Store))
        s = replace(s, value=scalar.transform(s.value, read))
        if isinstance(s, Let) or not is_row(s):
            return s
        copy = copy_of(s, s.value.dtype)
        after.append(loop(replace(s, value=copy)))
        return Store(copy.buffer, index, s.value)

    moved = (substitute_indices(s, {r.var: r.lo + var(r.var)}) for s in body)
    scan = For(steps, tuple(map(step, moved)))
    return (*before, scan, *after)
