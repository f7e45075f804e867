"""Non-temporal stores: write large outputs past the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from compiler.cost.tile_strides import TileStrides
from compiler.cost.write_combining import uncombined_buffers
from compiler.ir.symbolic.index_expr import Dim, interval
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.inplace import aliasable_pairs
from compiler.ir.tile.kernel import Block, Kernel, Stmt, Store, dim_hint
from compiler.passes.base import Context, TilePass, from_machine, register


@register
@dataclass(frozen=True)
class NontemporalStores(TilePass):
    """Store large outputs without caching them.

    store v, %y[%i]  ->  store v, %y[%i] nontemporal

    A plain store first reads the line it overwrites; a non-temporal one does not, which saves a third of the traffic of
    y = f(x).  Applies to outputs that the kernel does not read, nor overwrites what it reads, of more than 1/`cache_divisor` of the last-level cache:
    others would be evicted before they are read.  What another kernel reads before the cache is full stays
    there, and so does everything if a call touches no more than a copy of an output of that size.  For a dynamic size each call decides.

    Results that fill more than `combined_lines` lines part by part at once are cached: each part would go to memory by itself.
    """

    name = "nontemporal-stores"
    exact = True
    cache_divisor: int = from_machine("streamed_output")
    combined_lines: int = from_machine("combined_lines")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        max_bytes = self.max_bytes(ir, context)
        sizes = {p.name: p.type.nbytes for p in ir.params if p.role == "out"}
        sizes = {n: size for n, size in sizes.items() if dim_hint(size) > max_bytes.get(n, inf)}
        if not sizes:
            return ir
        accesses = context.accesses(ir)
        read = {a.buffer for a in accesses.all if not a.is_store}
        large = {n: nontemporal_condition(size - max_bytes[n]) for n, size in sizes.items() if n not in read}
        when = {n: "" if isinstance(s, int) else " if large" for n, s in large.items()}
        stores = [a for a in accesses.all if a.is_store and a.buffer in large]
        for name in sorted(uncombined_buffers(TileStrides(accesses), stores, self.combined_lines)):
            context.missed(self, f"%{name}: more than {self.combined_lines} lines filled part by part at once")
            del large[name]
        large = {n: s for n, s in large.items() if context.may_apply(self, f"%{n} stored non-temporally{when[n]}")}
        if not large:
            return ir

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, Store) or stmt.buffer not in large:
                return (stmt,)
            return (replace(stmt, nontemporal=large[stmt.buffer]),)

        context.propose(self, None)
        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def max_bytes(self, ir: Kernel, context: Context) -> dict[str, int]:
        """Return the size from which on each output is stored past the caches, for those that may be."""
        machine, program = context.machine, context.program
        most = {p.name: machine.l3 // self.cache_divisor for p in ir.params if p.role == "out"}
        if program is None or all(dim_hint(p.type.nbytes) <= most.get(p.name, inf) for p in ir.params):
            return most
        if program.touched_bytes() <= 2 * machine.l3 // self.cache_divisor:
            return {}
        reuse = program.reuse_bytes(context.kernel)
        in_place = {out for source, out in aliasable_pairs(ir) if reuse.get(source) == 0}
        stays = {n for n in most if 0 < reuse.get(n, 0) <= machine.l3 * machine.kept_share}
        return {n: size for n, size in most.items() if n not in in_place | stays}


def nontemporal_condition(d: Dim) -> Dim:
    """Return the condition of non-temporal stores, `d` >= 0; 0 if it always holds."""
    bounds = interval(d, {})
    return 0 if bounds and bounds[0] >= 0 else d
