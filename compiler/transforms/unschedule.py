"""The scalar program of a kernel: what it computes, without how."""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Local, Prefetch, Range, Stmt, Store
from compiler.ir.types import TensorType


def unscheduled(kernel: Kernel) -> Kernel:
    """Return the kernel with one element at a time, in order, and row-major buffers; it computes the same.

    for %i in 0..100 tile 8 lanes 8 { ... }  ->  for %i in 0..100 { ... }
    """

    def rule(stmt: Stmt) -> Block:
        match stmt:
            case Prefetch():
                return ()
            case Local():
                return (replace(stmt, type=row_major(stmt.type)),)
            case Store():
                return (replace(stmt, nontemporal=None),)
            case For():
                return (replace(stmt, parallel=False),)
        return (stmt,)

    body = tile.map_ranges(tile.expand_stmts(kernel.body, rule), lambda r, _: Range(r.var, r.lo, r.hi))
    params = tuple(replace(p, type=row_major(p.type)) for p in kernel.params)
    return Kernel(kernel.name, params, body)


def row_major(type_: TensorType) -> TensorType:
    """Return the type without its layout."""
    return TensorType(type_.dtype, type_.shape)
