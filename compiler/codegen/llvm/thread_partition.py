"""Iterations of nested parallel loops: delinearize their numbers, and give each thread one slice of a scratch buffer.

scratch %w: f32[96, s]                      a thread that runs the iterations 48..95 writes only row 48 of %w,
parallel %i in 0..96 { ... %w[%i, %k] }     which stays in its cache
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        digit = b.emit(f"urem i64 {quotient}, {count}") if r is not nest[0] else quotient
        quotient = b.emit(f"udiv i64 {quotient}, {count}") if r is not nest[0] else quotient
        tile_numbers.insert(0, bind_tile_number(b, scope, r, digit))
    return tile_numbers


def bind_tile_number(b: IRBuilder, scope: CodegenScope, r: Range, value: str) -> Dim:
    """Return a new variable for the tile number of loop `r`, bound to `value` in `scope`."""
    name = f"{r.var}#{b.fresh_name('n')[1:]}"
    scope.ssa_names[name], scope.bounds[name] = value, (0, trip_count(r) - 1)
    return var(name)


def emit_iterations(
    b: IRBuilder,
    scope: CodegenScope,
    nest: Sequence[Range],
    counts: Sequence[str],
    start: str,
    stop: str,
    body: Callable[[CodegenScope, list[Dim]], None],
) -> None:
    """Emit `body` for the iterations `start` to `stop` of a nest, in a scope of its own and with the tile number of each loop.

    One loop goes through the iterations of the innermost loop, another through its runs, so that indices of the outer
    loops are found once for each run.
    """

    def emit_run(first: str, last: str, outer: list[Dim], scope: CodegenScope, may_be_empty: bool) -> None:
        def step(counter: str, _: list[str]) -> list[str]:
            inner = scope.inner()
            body(inner, [*outer, bind_tile_number(b, inner, nest[-1], counter)])
            return []

        b.loop(first, last, 1, [], step, may_be_empty=may_be_empty)

    def next_run(carried: list[str]) -> tuple[str, list[str]]:
        (number,), inner = carried, scope.inner()
        run_number = b.emit(f"udiv i64 {number}, {counts[-1]}")
        run_start = b.emit(f"mul nsw i64 {run_number}, {counts[-1]}")
        run_stop = b.emit(f"add nsw i64 {run_start}, {counts[-1]}")
        run_stop = b.intrinsic("i64", "llvm.smin.i64", ("i64", run_stop), ("i64", stop))
        first, last = (b.emit(f"sub nsw i64 {n}, {run_start}") for n in (number, run_stop))
        emit_run(first, last, delinearize_step(b, inner, nest[:-1], counts[:-1], run_number), inner, may_be_empty=False)
        return b.emit(f"icmp slt i64 {run_stop}, {stop}"), [run_stop]

    if len(nest) == 1:
        emit_run(start, stop, [], scope, may_be_empty=True)
    else:
        has_work = b.emit(f"icmp slt i64 {start}, {stop}")
        b.conditional(has_work, [], lambda: b.do_while([("i64", start)], next_run)[1:])


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
