"""What open sizes are expected to be, for passes that weigh what they would do if there were fewer rows or pixels."""

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
    """What is to be expected of sizes that are `usual` at most, if they may be that few."""
    return {s.name: min(s.hint, max(s.low, max_hint)) for s in sizes}


def minimize_max_regret(
    estimate_times: Callable[[dict[str, int]], Mapping[W, float]], sizes: Iterable[DynamicSize], max_hint: int
) -> W:
    """The way that never takes much longer than the best at the sizes that are tried, for which `times` says what each way takes."""
    longest = dict[W, float]()  # how many times as long as the best way
    for values in hint_samples(sizes, max_hint):
        found = estimate_times(values)
        longest = {way: max(longest.get(way, 1.0), t / min(found.values())) for way, t in found.items()}
    return min(longest, key=lambda way: longest[way])


def hint_samples(sizes: Iterable[DynamicSize], max_hint: int) -> list[dict[str, int]]:
    """Sizes to weigh a decision by: those that are likely, none above `usual` that may be less, and half of them."""
    found = tuple(sizes)
    likely = capped_hints(found, max_hint)
    less = {s.name: max(s.low, likely[s.name] // 2) for s in found}
    return [likely, less] if found else [{}]


def with_capped_hints(program: Program, max_hint: int) -> Program:
    """The buffers and kernels of a program whose sizes are expected to be `usual` at most; itself where they are."""
    found = program_dynamic_sizes(program)
    likely = capped_hints(found, max_hint)
    changed: dict[str, Dim] = {
        s.name: dynamic_size(s.name, s.low, s.high, likely[s.name]) for s in found if likely[s.name] != s.hint
    }
    if not changed:
        return program

    def dim(d: Dim) -> Dim:
        return substitute(d, changed)

    def retyped(t: TensorType) -> TensorType:
        return replace(t, shape=tuple(map(dim, t.shape)))

    def resized(k: Kernel) -> Kernel:
        params = tuple(replace(p, type=retyped(p.type)) for p in k.params)
        return replace(
            k,
            params=params,
            body=tuple(map_indices(s, dim) for s in k.body),
            parallel_condition=dim(k.parallel_condition),
        )

    buffers = {name: retyped(t) for name, t in program.buffers.items()}
    return replace(program, buffers=buffers, kernels={name: resized(k) for name, k in program.kernels.items()})
