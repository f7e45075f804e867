"""Packing: store constants, scratch and local buffers in the order in which a kernel reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from compiler.analysis.accesses import Access, Accesses
from compiler.ir.symbolic.affine import contiguous_width
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile.kernel import Block, Kernel, Local, Range, Stmt, dim_hint, expand_stmts
from compiler.ir.types import Layout, PhysicalDim, TensorType
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class Pack(TilePass):
    """Store constants, scratch and local buffers in panels as wide as the lane tile.

    const %w: f32[3072, 768] read as %w[%j, %k] with %j tile 48 lanes 16  ->  const %w: f32[3072, 768]{0/48, 1, 0%48}

    Panels are read contiguously, after the dimensions that loops around the lane loop index; only types change.  Rows
    that are read in order stay, if they consist of whole vectors.  Free at run time: constants are packed when the program
    is built, the other buffers are private to the kernel.  Applies if all reads of a buffer by lanes prefer the same panels, and
    none of its vectors is stored across two.
    """

    name = "pack"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table = context.accesses(ir)

        def packed(name: str, stored: TensorType) -> TensorType:
            """Return the type of a buffer, with another layout if its reads prefer panels."""
            layout = self.packed_layout(table, name) if stored.rank >= 2 else None
            if layout is None or not context.may_apply(self, f"%{name}: {stored} stored as {layout}"):
                return stored
            return replace(stored, layout=layout)

        def rule(stmt: Stmt) -> Block:
            return (replace(stmt, type=packed(stmt.buffer, stmt.type)) if isinstance(stmt, Local) else stmt,)

        params = (replace(p, type=packed(p.name, p.type)) if p.role in ("const", "scratch") else p for p in ir.params)
        return replace(ir, params=tuple(params), body=expand_stmts(ir.body, rule))

    def packed_layout(self, table: Accesses, name: str) -> Layout | None:
        """Return the layout in which all reads of a buffer by lanes are contiguous, or None."""
        found = ((a, lane_loop(table, a)) for a in table.all if a.buffer == name and not a.is_store)
        reads = [(a, lane) for a, lane in found if lane is not None]
        panels = {self.panel(table, a, lane) for a, lane in reads}
        if len(panels) != 1 or (panel := panels.pop()) is None:
            return None
        outer, inner = dims_around(table, reads, panel.dim)
        is_row = not inner and all(table.stride(a, lane.var) == 1 for a, lane in reads)
        if is_row and all(table.types[name].shape[panel.dim] % lane.lanes == 0 for _, lane in reads):
            return None  # rows are read as they are stored, in whole vectors
        stored = {n for a in table.all if a.buffer == name for n in stored_together(a, panel.dim)}
        if any(panel.block_size % n for n in stored):
            return None
        return Layout((*outer, panel, *inner, replace(panel, is_inner=True)))

    def panel(self, table: Accesses, a: Access, lane: Range) -> PhysicalDim | None:
        """Return the panels in which one read is contiguous over the tile of `lane`, or None if none are better."""
        lane_dims = [k for k, d in enumerate(a.index) if lane.var in variables(d)]
        if len(lane_dims) != 1:
            return None
        dim, width = lane_dims[0], contiguous_width(a.index[lane_dims[0]], lane.var, lane.tile)
        if width is None or (width != lane.tile and width % lane.lanes):
            return None
        if table.stride(a, lane.var) == 1 and lane.tile >= dim_hint(table.types[a.buffer].shape[dim], 0):
            return None
        return PhysicalDim(dim, width)


def stored_together(a: Access, dim: int) -> Iterator[int]:
    """Yield the neighbours along a dimension that a store writes at once."""
    for r in a.loops if a.is_store else ():
        if r.tile > 1 and r.var in variables(a.index[dim]):
            yield r.lanes or r.tile


def dims_around(
    table: Accesses, reads: Sequence[tuple[Access, Range]], dim: int
) -> tuple[list[PhysicalDim], list[PhysicalDim]]:
    """Return the dimensions but `dim`, those indexed by outer loops first: what only loops around the lanes index, and the rest."""

    def depth(k: int) -> int:
        """Return the loops inside the one with lanes, up to the innermost of those that index dimension `k`."""
        return max(loop_depth(table, a, lane, k) for a, lane in reads)

    others = sorted((k for k in range(len(reads[0][0].index)) if k != dim), key=depth)
    split = sum(depth(k) < 0 for k in others)
    dims = [PhysicalDim(k) for k in others]
    return dims[:split], dims[split:]


def loop_depth(table: Accesses, a: Access, lane: Range, k: int) -> int:
    """Return the position of the innermost loop that indexes dimension `k` of an access, less that of `lane`."""
    order = [r.var for r in a.loops]
    loops = (table.loops_by_name.get(v, frozenset({v})) for v in variables(a.index[k]))
    positions = (order.index(v) for v in frozenset().union(*loops) if v in order)
    return max(positions, default=-1) - order.index(lane.var)


def lane_loop(table: Accesses, a: Access) -> Range | None:
    """Return the loop over whose lanes an access varies; None if it is of one element."""
    return next((r for r in a.loops if r.lanes and table.depends_on(a, r.var)), None)
