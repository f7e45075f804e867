"""The steps of nested parallel loops, of which threads take shares: what number means which step, and where a thread works.

scratch %w: f32[96, s]                     a thread with the steps 48..96 keeps all that it writes there in the part of step 48,
parallel %i in 0..96 { ... %w[%i, %k] }     which stays in its cache
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.codegen.llvm.builder import IRBuilder
from compiler.codegen.llvm.scope import CodegenScope, trip_count
from compiler.ir.symbolic.index_expr import Dim, var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, Param, Range


def delinearize_step(
    b: IRBuilder, scope: CodegenScope, nest: Sequence[Range], counts: Sequence[str], step_number: str
) -> list[Dim]:
    """Which tile of each loop comes in step `number` of all of them, `counts` of each; bound in `scope`."""
    found, rest = list[Dim](), step_number
    for r, count in reversed(list(zip(nest, counts, strict=True))):
        name = f"{r.var}#{b.fresh_name('n')[1:]}"
        digit = b.emit(f"urem i64 {rest}, {count}") if r is not nest[0] else rest
        rest = b.emit(f"udiv i64 {rest}, {count}") if r is not nest[0] else rest
        scope.ssa_names[name], scope.bounds[name] = digit, (0, trip_count(r) - 1)
        found.insert(0, var(name))
    return found


def reuse_thread_scratch(
    scope: CodegenScope,
    p: Param,
    body: Block,
    nest: Sequence[Range],
    tile_numbers: Sequence[Dim],
    first_tile_numbers: Sequence[Dim],
) -> None:
    """Let the step of these `numbers` work in the part of buffer `p` that the first step of its thread has, if each loop has its own
    dimension of the buffer: the parts of two threads then differ.
    """
    distance = {
        var(r.var): (here - there) * r.tile
        for r, here, there in zip(nest, tile_numbers, first_tile_numbers, strict=True)
    }
    places = zip(*tile.access_indices(body, p.name), strict=True)
    loop_indices = [along[0] if len(set(along)) == 1 else None for along in places]
    if distance.keys() <= set(loop_indices):
        shift = tuple(0 if d is None else distance.get(d, 0) for d in loop_indices)
        scope.buffers[p.name] = replace(scope.buffers[p.name], index_shift=shift)
