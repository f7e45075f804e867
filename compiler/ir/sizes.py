"""The sizes that kernels and programs leave open until they run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from compiler.ir.atoms import Size
from compiler.ir.binding import bind_symbols
from compiler.ir.index import Dim, Index, sizes, substitute, with_sizes
from compiler.ir.scalar import IndexValue
from compiler.ir.tile import (
    Block,
    Check,
    Kernel,
    Local,
    OpaqueCall,
    Prefetch,
    Program,
    Repeat,
    Slice,
    Step,
    Store,
    ranges,
    values,
    walk,
)
from compiler.ir.types import TensorType


def kernel_sizes(kernel: Kernel) -> tuple[Size, ...]:
    """The sizes that `kernel` is told, by name."""
    dims = (
        kernel.surplus,
        *(d for p in kernel.params for d in (*p.type.shape, *p.type.physical_shape)),
        *_dims(kernel.body),
    )
    return _by_name(frozenset().union(*map(sizes, dims)))


def program_sizes(program: Program) -> tuple[Size, ...]:
    """The sizes that `program` is told, by name."""
    buffers = frozenset[Size]().union(*(sizes(d) for t in program.buffers.values() for d in t.shape))
    return _by_name(buffers.union(*map(kernel_sizes, program.kernels.values())))


def _by_name(found: Iterable[Size]) -> tuple[Size, ...]:
    return tuple(sorted(found, key=lambda s: s.name))


def _dims(body: Block) -> Iterator[Dim]:
    """Every index expression in a kernel's body."""
    for stmt in walk(body):
        yield from (d for r in ranges(stmt) for d in (r.lo, r.hi))
        if isinstance(stmt, Store) and stmt.stream is not None:
            yield stmt.stream
        if isinstance(stmt, (Store, Prefetch)):
            yield from stmt.index
        elif isinstance(stmt, Local):
            yield from stmt.type.shape
        elif isinstance(stmt, Check):
            yield from (stmt.low, stmt.high)
        for value in values(stmt):
            yield from (d for e in value.loads for d in e.index)
            yield from (e.index for e in value.parts if isinstance(e, IndexValue))


def bind_sizes(types: Iterable[TensorType], shapes: Iterable[tuple[int, ...]]) -> dict[str, int]:
    """The sizes for which tensors of `types` have these shapes; ArgumentError where there are none."""
    return bind_symbols(
        (d, n)
        for t, shape in zip(types, shapes, strict=True)
        if t.rank == len(shape)
        for d, n in zip(t.shape, shape, strict=True)
        if isinstance(d, Index)
    )


def with_buffers_of(program: Program, values: Mapping[str, int]) -> Program:
    """The program with its buffers as large as the sizes `values` make them; kernels stay open."""
    steps = tuple(_step(s, values) for s in program.steps)
    return replace(program, buffers={n: t.specialize(values) for n, t in program.buffers.items()}, steps=steps)


def _step(step: Step, values: Mapping[str, int]) -> Step:
    """A step with its sizes replaced."""
    if isinstance(step, Slice):
        return replace(step, index=substitute(step.index, values))
    if isinstance(step, Repeat):
        count, steps = substitute(step.count, values), tuple(_step(s, values) for s in step.steps)
        return replace(step, count=count, steps=steps)
    if isinstance(step, OpaqueCall):
        return replace(step, attrs=tuple((k, with_sizes(v, values)) for k, v in step.attrs))
    return step
