"""Simplifications of Tile IR for the reducer: fewer statements, and smaller sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from compiler.errors import TilewrightError
from compiler.ir.text.ir_text import parse_ir, print_ir
from compiler.ir.tile.kernel import Block, For, Kernel, Reduce, copied_buffers, loaded_buffers, stored_buffers
from compiler.ir.tile.program import Program
from compiler.ir.types import TensorType
from compiler.passes.instrument import verify

T = TypeVar("T", Kernel, Program)


def kernel_simplifications(kernel: Kernel) -> Iterator[Kernel]:
    """Yield valid kernels that are one step simpler than `kernel`, the largest simplifications first."""
    types = [p.type for p in kernel.params]
    yield from valid(fewer_statements(kernel))
    yield from valid(smaller_extents(kernel, types))
    yield from valid(fewer_params(kernel))


def program_simplifications(program: Program) -> Iterator[Program]:
    """Yield valid programs that are one step simpler than `program`, the largest simplifications first."""
    steps = program.steps
    yield from valid(replace(program, steps=(*steps[:k], *steps[k + 1 :])) for k in range(len(steps)))
    launched = {s.kernel for s in program.launches}
    yield from valid(
        replace(program, kernels={n: k for n, k in program.kernels.items() if n != name})
        for name in program.kernels.keys() - launched
    )
    for name, kernel in program.kernels.items():
        yield from valid(replace(program, kernels={**program.kernels, name: k}) for k in fewer_statements(kernel))
    yield from valid(smaller_extents(program, list(program.buffers.values())))


def valid(candidates: Iterator[T]) -> Iterator[T]:
    """Yield the candidates that the verifier accepts."""
    for candidate in candidates:
        try:
            verify(candidate)
        except TilewrightError:
            continue
        yield candidate


def fewer_statements(kernel: Kernel) -> Iterator[Kernel]:
    """Remove one statement, the outermost first."""
    yield from (kernel.with_body(body) for body in without_statement(kernel.body) if body)


def without_statement(body: Block) -> Iterator[Block]:
    """Yield a block without each of its statements, then without each statement inside of these."""
    for k in range(len(body)):
        yield (*body[:k], *body[k + 1 :])
    for k, stmt in enumerate(body):
        if isinstance(stmt, (For, Reduce)):
            for inner in without_statement(stmt.body):
                if inner or isinstance(stmt, Reduce):
                    yield (*body[:k], replace(stmt, body=inner), *body[k + 1 :])


def smaller_extents(ir: T, types: list[TensorType]) -> Iterator[T]:
    """Replace one size of `types` by a smaller one wherever the text of the IR has it."""
    text, sizes = print_ir(ir, full=True), {n for t in types for n in t.shape if isinstance(n, int)}
    for old in sorted(sizes, reverse=True):
        for new in dict.fromkeys((1, 2, 3, old // 4, old // 2, old - 1)):
            if 0 < new < old:
                try:
                    smaller = parse_ir(re.sub(rf"(?<![\w%])(?<!\d\.){old}(?!\w|\.\d)", str(new), text))
                except TilewrightError:
                    continue
                assert isinstance(smaller, type(ir))
                yield smaller


def fewer_params(kernel: Kernel) -> Iterator[Kernel]:
    """Remove buffers that no statement reads or writes."""
    used = loaded_buffers(kernel.body) | stored_buffers(kernel.body) | copied_buffers(kernel.body)
    params = tuple(p for p in kernel.params if p.name in used)
    if params != kernel.params:
        yield replace(kernel, params=params)
