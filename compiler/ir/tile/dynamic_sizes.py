"""Dynamic sizes of kernels and programs: integers that they get as arguments at run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from compiler.ir.symbolic.binding import bind_symbols, substitute_symbols
from compiler.ir.symbolic.index_atoms import DynamicSize
from compiler.ir.symbolic.index_expr import IndexExpr, dynamic_sizes, substitute
from compiler.ir.tile.program import OpaqueCall, Program, Repeat, Step, View
from compiler.ir.types import TensorType


def program_dynamic_sizes(program: Program) -> tuple[DynamicSize, ...]:
    """Return the dynamic sizes of `program`, sorted by name."""
    buffers = frozenset[DynamicSize]().union(*(dynamic_sizes(d) for t in program.buffers.values() for d in t.shape))
    sizes = buffers.union(*(k.dynamic_sizes for k in program.kernels.values()))
    return tuple(sorted(sizes, key=lambda s: s.name))


def bind_sizes(types: Iterable[TensorType], shapes: Iterable[tuple[int, ...]]) -> dict[str, int]:
    """Solve for the sizes by which tensors of `types` have these shapes; raises ArgumentError if there are none."""
    return bind_symbols(
        (d, n)
        for t, shape in zip(types, shapes, strict=True)
        if t.rank == len(shape)
        for d, n in zip(t.shape, shape, strict=True)
        if isinstance(d, IndexExpr)
    )


def specialize_buffers(program: Program, values: Mapping[str, int]) -> Program:
    """Substitute sizes in buffer types and steps of a program; its kernels keep their dynamic sizes."""
    steps = tuple(_specialize_step(s, values) for s in program.steps)
    return replace(program, buffers={n: t.specialize(values) for n, t in program.buffers.items()}, steps=steps)


def _specialize_step(step: Step, values: Mapping[str, int]) -> Step:
    """Substitute sizes in a step."""
    if isinstance(step, View):
        return replace(step, index=substitute(step.index, values))
    if isinstance(step, Repeat):
        count, steps = substitute(step.count, values), tuple(_specialize_step(s, values) for s in step.steps)
        return replace(step, count=count, steps=steps)
    if isinstance(step, OpaqueCall):
        return replace(step, attrs=tuple((k, substitute_symbols(v, values)) for k, v in step.attrs))
    return step
