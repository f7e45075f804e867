"""Size hints of dynamic sizes, capped for passes that compare alternatives at small batches or images too."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from compiler.ir.symbolic.index_atoms import DynamicSize
from compiler.ir.symbolic.index_expr import Dim, dynamic_size, substitute
from compiler.ir.tile.dynamic_sizes import program_dynamic_sizes
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.ir.tile.substitution import map_indices
from compiler.ir.types import TensorType

W = TypeVar("W", bound=Hashable)


def capped_hints(sizes: Iterable[DynamicSize], max_hint: int) -> dict[str, int]:
    """Return the hint of each size, at most `max_hint` unless the lower bound of the size exceeds it."""
    return {s.name: min(s.hint, max(s.low, max_hint)) for s in sizes}


def minimize_max_regret(
    estimate_times: Callable[[dict[str, int]], Mapping[W, float]], sizes: Iterable[DynamicSize], max_hint: int
) -> W:
    """Return the alternative whose worst slowdown against the best one is smallest over the sampled sizes.

    `estimate_times` maps the values of `sizes` to the time of each alternative, in any unit.
    """
    slowdowns = dict[W, float]()  # worst ratio to the fastest alternative
    for values in hint_samples(sizes, max_hint):
        times = estimate_times(values)
        slowdowns = {way: max(slowdowns.get(way, 1.0), t / min(times.values())) for way, t in times.items()}
    return min(slowdowns, key=lambda way: slowdowns[way])


def hint_samples(sizes: Iterable[DynamicSize], max_hint: int) -> list[dict[str, int]]:
    """Return the values of `sizes` at which alternatives are compared: the capped hints and half of them."""
    sizes = tuple(sizes)
    hints = capped_hints(sizes, max_hint)
    halves = {s.name: max(s.low, hints[s.name] // 2) for s in sizes}
    return [hints, halves] if sizes else [{}]


def with_capped_hints(program: Program, max_hint: int) -> Program:
    """Return `program` with its size hints capped by `max_hint` in buffers and kernels; itself if none changes."""
    sizes = program_dynamic_sizes(program)
    hints = capped_hints(sizes, max_hint)
    changed: dict[str, Dim] = {
        s.name: dynamic_size(s.name, s.low, s.high, hints[s.name]) for s in sizes if hints[s.name] != s.hint
    }
    if not changed:
        return program

    def dim(d: Dim) -> Dim:
        return substitute(d, changed)

    def retyped(t: TensorType) -> TensorType:
        return replace(t, shape=tuple(map(dim, t.shape)))

    def resized(k: Kernel) -> Kernel:
        params = tuple(replace(p, type=retyped(p.type)) for p in k.params)
        body = tuple(map_indices(s, dim) for s in k.body)
        return replace(k, params=params, body=body, max_chunks=None if k.max_chunks is None else dim(k.max_chunks))

    buffers = {name: retyped(t) for name, t in program.buffers.items()}
    return replace(program, buffers=buffers, kernels={name: resized(k) for name, k in program.kernels.items()})
