"""Loop distribution around rows: values of columns are computed first, so that memory is walked row by row."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.analysis.accesses import Accesses
from compiler.analysis.row_walk import walked_bytes
from compiler.cost.machine import Machine
from compiler.errors import TransformError
from compiler.ir.scalar import Expr, Load, Ref, transform
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Reduce, Stmt, is_parallel_loop, iteration_count_hint
from compiler.ir.tile.loop_nest import perfect_parallel_nest
from compiler.ir.tile.substitution import NameSupply, with_unique_names
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.transforms.distribute import distribute_at
from compiler.transforms.interchange import interchange


@register
@dataclass(frozen=True)
class DistributeBindings(TilePass):
    """Bind the values of all columns before a loop over rows.

    parallel %c in 0..512 { %v = rsqrt(%s[%c])  parallel %r in 0..900 { store %x[%r, %c] * %v, %y[%r, %c] } }
    ->  local %v.each: f32[512]
        for %c in 0..512 { %v = rsqrt(%s[%c])  store %v, %v.each[%c] }
        parallel %r in 0..900 { parallel %c in 0..512 { %v = %v.each[%c]  store %x[%r, %c] * %v, %y[%r, %c] } }

    Applies where the rows fill the first-level cache, or exceed the second-level one if the values are reductions, which have read these
    rows; threads would repeat those of a loop that they share.
    """

    name = "distribute-bindings"
    exact = True
    min_bytes: int = from_machine("l1")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir = with_unique_names(ir)
        fresh, table = NameSupply(ir), context.accesses(ir)

        def rule(stmt: Stmt) -> Block:
            if not is_parallel_loop(stmt) or not self.pays(table, stmt, context.machine):
                return (stmt,)
            stmt = with_bound_gathers(table, stmt, fresh)
            try:
                *first, rows = distribute_at(stmt, [len(stmt.body) - 1], fresh)
                assert isinstance(rows, For)
                *read, last = rows.body
                nest = perfect_parallel_nest((last,))
                walk = interchange([*nest, rows], (*read, *nest[-1].body))
            except TransformError:
                return (stmt,)
            message = f"values of %{stmt.range.var} bound before the loop over %{nest[0].range.var}"
            if not context.may_apply(self, message):
                return (stmt,)
            return (*(For(s.range, s.body) if isinstance(s, For) else s for s in first), *walk)

        return with_unique_names(ir.with_body(tile.expand_stmts(ir.body, rule)))

    def pays(self, table: Accesses, columns: For, machine: Machine) -> bool:
        """Return True if a loop binds values of columns before a loop over more rows than a cache holds."""
        *bindings, last = columns.body
        if not bindings or not all(isinstance(s, (Let, Reduce)) for s in bindings) or not is_parallel_loop(last):
            return False
        if not isinstance(columns.range.extent, int):
            return False  # its buffers might not fit the stack
        if not any(isinstance(s, Reduce) for s in bindings):
            return walked_bytes(table, columns.range, last) >= self.min_bytes
        around = iteration_count_hint(table.loops[columns.range.var][2])
        return around >= machine.threads and walked_bytes(table, columns.range, last) > machine.l2


def with_bound_gathers(table: Accesses, columns: For, fresh: NameSupply) -> For:
    """Bind what loops over rows, the last statement of a loop, load in each row alike, and not contiguously."""
    *bindings, last = columns.body
    inside = {r.var for s in tile.walk((last,)) for r in tile.stmt_ranges(s)}
    gathers = dict.fromkeys(
        Load(table.types[a.buffer].dtype, a.buffer, a.index)
        for a in table.all
        if not a.is_store and not a.is_masked and columns.range in a.loops and table.stride(a, columns.range.var) is None
        and not any(table.depends_on(a, v) for v in inside)
    )  # fmt: skip
    lets = {load: Let(fresh(f"{load.buffer}.column"), load) for load in gathers}

    def bound(e: Expr) -> Expr:
        return Ref(e.dtype, lets[e].name) if isinstance(e, Load) and e in lets else e

    (last,) = tile.map_exprs((last,), lambda e: transform(e, bound))
    return replace(columns, body=(*bindings, *lets.values(), last))
