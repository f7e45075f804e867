"""Packing: store constants and scratch buffers in the order in which a kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.analysis.accesses import Access, Accesses
from compiler.ir.symbolic.affine import contiguous_width
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile.kernel import Kernel, Range, dim_hint
from compiler.ir.types import Layout, PhysicalDim
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class Pack(TilePass):
    """Store constants and scratch buffers in panels as wide as the lane tile.

    const %w: f32[3072, 768] read as %w[%j, %k] with %j tile 48 lanes 16  ->  const %w: f32[3072, 768]{0/48, 1, 0%48}

    Panels are read contiguously, after the dimensions that loops around the lane loop index; only types change.  Rows
    that are read in order stay, if they consist of whole vectors.  Free at run time: constants are packed when the program
    is built, and scratch buffers are private to the kernel.  Applies if all reads of a buffer by lanes prefer the same layout.
    """

    name = "pack"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table = context.accesses(ir)
        params = []
        for p in ir.params:
            layout = self.packed_layout(table, p.name) if p.role in ("const", "scratch") and p.type.rank >= 2 else None
            if layout is not None and context.may_apply(self, f"%{p.name}: {p.type} stored as {layout}"):
                p = replace(p, type=replace(p.type, layout=layout))
            params.append(p)
        return replace(ir, params=tuple(params))

    def packed_layout(self, table: Accesses, name: str) -> Layout | None:
        """Return the layout that all reads of a buffer by lanes prefer, or None."""
        reads = ((a, lane_loop(table, a)) for a in table.all if a.buffer == name and not a.is_store)
        layouts = {self.preferred_layout(table, a, lane) for a, lane in reads if lane is not None}
        return layouts.pop() if len(layouts) == 1 else None

    def preferred_layout(self, table: Accesses, a: Access, lane: Range) -> Layout | None:
        """Return the layout in which one read is contiguous over the tile of `lane`, or None if no other is better."""
        lane_dims = [k for k, d in enumerate(a.index) if lane.var in variables(d)]
        if len(lane_dims) != 1:
            return None
        dim, width = lane_dims[0], contiguous_width(a.index[lane_dims[0]], lane.var, lane.tile)
        if width is None or (width != lane.tile and width % lane.lanes):
            return None
        if table.stride(a, lane.var) == 1 and lane.tile >= dim_hint(table.types[a.buffer].shape[dim], 0):
            return None
        outer, inner = self.dims_around(table, a, dim, lane)
        if not inner and table.stride(a, lane.var) == 1 and table.types[a.buffer].shape[dim] % lane.lanes == 0:
            return None  # rows are read as they are stored, in whole vectors
        return Layout((*outer, PhysicalDim(dim, width), *inner, PhysicalDim(dim, width, True)))

    @staticmethod
    def dims_around(table: Accesses, a: Access, dim: int, lane: Range) -> tuple[list[PhysicalDim], list[PhysicalDim]]:
        """Return the other dimensions, those indexed by outer loops first: what loops around the lanes index, and the rest."""
        order = [r.var for r in a.loops]

        def depth(k: int) -> int:
            loops = (table.loops_by_name.get(v, frozenset({v})) for v in variables(a.index[k]))
            return max((order.index(v) for v in frozenset().union(*loops) if v in order), default=-1)

        others = sorted((k for k in range(len(a.index)) if k != dim), key=depth)
        split = sum(depth(k) < order.index(lane.var) for k in others)
        dims = [PhysicalDim(k) for k in others]
        return dims[:split], dims[split:]


def lane_loop(table: Accesses, a: Access) -> Range | None:
    """Return the loop over whose lanes an access varies; None if it is of one element."""
    return next((r for r in a.loops if r.lanes and table.depends_on(a, r.var)), None)
