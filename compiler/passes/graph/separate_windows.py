"""Reductions over rectangular windows, one dimension after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod

from compiler.analysis.windows import Window, match_windows, unfolded
from compiler.cost.machine import Machine
from compiler.cost.windows import WindowStep, window_seconds
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Reduction
from compiler.ir.tile.kernel import dim_hint
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.two_level_scan import reduce_op


@register
@dataclass(frozen=True)
class SeparateWindows(GraphPass):
    """Reduce rectangular windows along one dimension after the other.

    %y = max_pool %x {size=[5, 5]}
    ->  %r = unfold %x {dim=3, size=5}   %m = amax %r {dims=[4]}   %c = unfold %m {dim=2, size=5}   %y = amax %c {dims=[4]}

    25 maxima become 10 where windows overlap: what neighbours share is combined once.  Applies to any associative reduction
    where the cost model predicts less than `max_time_ratio` of the time, with results between the steps in memory.  Sums are
    added in another order.
    """

    name = "separate-windows"
    max_time_ratio: float = 1.0

    def run(self, ir: Graph, context: Context) -> Graph:
        chosen = {n: order for n in ir.nodes if (order := best_order(n, context.machine, self.max_time_ratio))}
        chosen = {n: o for n, o in chosen.items() if context.may_apply(self, f"windows reduced along {describe(o)}", n)}
        return ir.replace_nodes({n: reduce_windows(n, order).with_name(n.name) for n, order in chosen.items()})


def describe(order: Sequence[Window]) -> str:
    """Return the dimensions of windows in words."""
    return ", then ".join(f"dimension {w.dim}" for w in order)


def best_order(n: Node, machine: Machine, max_time_ratio: float) -> tuple[Window, ...]:
    """Return the windows of `n` in the fastest order of dimensions; none if it takes `max_time_ratio` of one step or more."""
    windows = match_windows(n)
    if len(windows) < 2:
        return ()
    assert isinstance(n.structure, Reduction)
    combine, dtype = n.structure.combine, n.dtype
    if dtype.is_reduced_float and combine not in ("max", "min"):  # rounded after each step
        return ()
    shape, results = [dim_hint(d) for d in n.operands[0].shape], [dim_hint(d) for d in n.shape]

    def steps(order: Sequence[Window]) -> list[WindowStep]:
        """Return the steps along the dimensions of `order`."""
        done = [
            [results[d] if d in {w.dim for w in order[: k + 1]} else size for d, size in enumerate(shape)]
            for k in range(len(order))
        ]
        return [WindowStep(prod(sizes), w.size) for sizes, w in zip(done, order, strict=True)]

    def seconds(steps: Sequence[WindowStep]) -> float:
        return window_seconds(steps, combine, dtype.bits, machine)

    times = {order: seconds(steps(order)) for order in permutations(windows)}
    best = min(times, key=times.__getitem__)
    one_step = seconds([WindowStep(prod(results), prod(w.size for w in windows))])
    return best if times[best] < max_time_ratio * one_step else ()


def reduce_windows(n: Node, order: Sequence[Window]) -> Node:
    """Build reduction `n` of windows along the dimensions of `order`, one after the other."""
    assert isinstance(n.structure, Reduction)
    x, reduce = n.operands[0], reduce_op(n.structure.combine, n.dtype)
    for w in order:
        x = reduce(unfolded(x, w), dims=(n.type.rank,)).with_loc(n.loc)
    return x
