"""Iterations of nested parallel loops: delinearize their numbers, and give each thread one slice of a scratch buffer.

scratch %w: f32[96, s]                      a thread that runs the iterations 48..95 writes only row 48 of %w,
parallel %i in 0..96 { ... %w[%i, %k] }     which stays in its cache
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.codegen.llvm.builder import IRBuilder
from compiler.codegen.llvm.scope import CodegenScope
from compiler.ir.symbolic.index_expr import Dim, var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, Param, Range
from compiler.ir.tile.loop_nest import trip_count


def delinearize_step(
    b: IRBuilder, scope: CodegenScope, nest: Sequence[Range], counts: Sequence[str], step_number: str
) -> list[Dim]:
    """Return the tile number of each loop for iteration `step_number` of the nest, outermost first.

    `counts` holds the SSA trip count of each loop.  The tile numbers are variables, bound in `scope`.
    """
    tile_numbers, quotient = list[Dim](), step_number
    for r, count in reversed(list(zip(nest, counts, strict=True))):
        name = f"{r.var}#{b.fresh_name('n')[1:]}"
        digit = b.emit(f"urem i64 {quotient}, {count}") if r is not nest[0] else quotient
        quotient = b.emit(f"udiv i64 {quotient}, {count}") if r is not nest[0] else quotient
        scope.ssa_names[name], scope.bounds[name] = digit, (0, trip_count(r) - 1)
        tile_numbers.insert(0, var(name))
    return tile_numbers


def reuse_thread_scratch(
    scope: CodegenScope,
    p: Param,
    body: Block,
    nest: Sequence[Range],
    numbers: Sequence[Dim],
    first_numbers: Sequence[Dim],
) -> None:
    """Map all iterations of a thread to the slice of scratch buffer `p` that belongs to its first iteration.

    `numbers` and `first_numbers` are the tile numbers of the current and of the thread's first iteration.
    Done only if each loop of the nest indexes a dimension of its own, so that the slices of two threads are disjoint.
    """
    loops = zip(nest, numbers, first_numbers, strict=True)
    distance = {var(r.var): (number - first) * r.tile for r, number, first in loops}
    indices_by_dim = zip(*tile.access_indices(body, p.name), strict=True)
    loop_indices = [indices[0] if len(set(indices)) == 1 else None for indices in indices_by_dim]
    if distance.keys() <= set(loop_indices):
        shift = tuple(0 if d is None else distance.get(d, 0) for d in loop_indices)
        scope.buffers[p.name] = replace(scope.buffers[p.name], index_shift=shift)
