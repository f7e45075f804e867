"""Simplifications of Tile IR for the reducer: fewer statements, and smaller sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from compiler.errors import TilewrightError
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.tile_printer import print_kernel
from compiler.ir.tile.kernel import Block, For, Kernel, Reduce, copied_buffers, loaded_buffers, stored_buffers
from compiler.ir.verify.kernel import verify_kernel


def tile_simplifications(kernel: Kernel) -> Iterator[Kernel]:
    """Yield valid kernels that are one step simpler than `kernel`, the largest simplifications first."""
    for build in (fewer_statements, smaller_extents, fewer_params):
        for simpler in build(kernel):
            try:
                verify_kernel(simpler)
            except TilewrightError:
                continue
            yield simpler


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


def smaller_extents(kernel: Kernel) -> Iterator[Kernel]:
    """Replace one size by a smaller one wherever the kernel's text has it."""
    text = print_kernel(kernel)
    sizes = {n for p in kernel.params for n in p.type.shape if isinstance(n, int)}
    for old in sorted(sizes, reverse=True):
        for new in dict.fromkeys((1, 2, 3, old // 4, old // 2, old - 1)):
            if 0 < new < old:
                try:
                    yield parse_kernel(re.sub(rf"(?<![\w%])(?<!\d\.){old}(?!\w|\.\d)", str(new), text))
                except TilewrightError:
                    continue


def fewer_params(kernel: Kernel) -> Iterator[Kernel]:
    """Remove buffers that no statement reads or writes."""
    used = loaded_buffers(kernel.body) | stored_buffers(kernel.body) | copied_buffers(kernel.body)
    params = tuple(p for p in kernel.params if p.name in used)
    if params != kernel.params:
        yield replace(kernel, params=params)
