"""Dynamic sizes of kernels and programs: integers that they get as arguments at run time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from compiler.ir.scalar import IndexValue
from compiler.ir.symbolic.binding import bind_symbols, substitute_symbols
from compiler.ir.symbolic.index_atoms import DynamicSize
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, dynamic_sizes, substitute
from compiler.ir.tile.kernel import Block, Kernel, stmt_dims, stmt_exprs, walk
from compiler.ir.tile.program import OpaqueCall, Program, Repeat, Step, View
from compiler.ir.types import TensorType


def kernel_dynamic_sizes(kernel: Kernel) -> tuple[DynamicSize, ...]:
    """Return the dynamic sizes of `kernel`, sorted by name."""
    param_dims = (d for p in kernel.params for d in (*p.type.shape, *p.type.physical_shape))
    dims = (kernel.max_chunks or 0, *param_dims, *_index_exprs(kernel.body))
    return _sorted_by_name(frozenset().union(*map(dynamic_sizes, dims)))


def program_dynamic_sizes(program: Program) -> tuple[DynamicSize, ...]:
    """Return the dynamic sizes of `program`, sorted by name."""
    buffers = frozenset[DynamicSize]().union(*(dynamic_sizes(d) for t in program.buffers.values() for d in t.shape))
    return _sorted_by_name(buffers.union(*map(kernel_dynamic_sizes, program.kernels.values())))


def _sorted_by_name(sizes: Iterable[DynamicSize]) -> tuple[DynamicSize, ...]:
    return tuple(sorted(sizes, key=lambda s: s.name))


def _index_exprs(body: Block) -> Iterator[Dim]:
    """Yield every index expression in a kernel's body."""
    for stmt in walk(body):
        yield from stmt_dims(stmt)
        for value in stmt_exprs(stmt):
            yield from (d for e in value.loads for d in e.index)
            yield from (e.index for e in value.subexprs if isinstance(e, IndexValue))


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
