"""Blocks split along an axis in Triton source, where each thread keeps what it has.

y_1, y_2 = tl.split(tl.permute(tl.reshape(y, (128, 2, 128)), (0, 2, 1)))      the left and the right half of 256 columns
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from compiler.codegen.triton.expressions import BlockValue, TritonExprEmitter
from compiler.codegen.triton.source_scopes import INNERMOST
from compiler.ir.tile.kernel import Block, stmt_exprs, walk


def split_read_blocks(
    exprs: TritonExprEmitter,
    column: str,
    body: Block,
    count: int,
    fresh_name: Callable[[str], str],
    write: Callable[[str], None],
) -> list[dict[str, BlockValue]]:
    """Write the statements that split what `body` reads along the loop `column` in `count` parts; return the blocks of each."""

    def parts(block: BlockValue, shape: Sequence[int], axis: int, count: int) -> Iterator[BlockValue]:
        if count == 1:
            yield block
            return
        halves = [replace(block, name=fresh_name(block.name), depth=INNERMOST) for _ in range(2)]
        write(f"{', '.join(h.name for h in halves)} = {split_text(block.name, shape, axis)}")
        half_shape = [n // 2 if k == axis else n for k, n in enumerate(shape)]
        for half in halves:
            yield from parts(half, half_shape, axis, count // 2)

    read = {name for s in walk(body) for e in stmt_exprs(s) for name in e.used_names} - {column}
    found: list[dict[str, BlockValue]] = [{} for _ in range(count)]
    for name in sorted(read & exprs.names.keys()):
        block = exprs.names[name]
        if column in block.axes:
            shape = [exprs.loops[v].tile for v in block.axes]
            for k, part in enumerate(parts(block, shape, block.axes.index(column), count)):
                found[k][name] = part
    return found


def split_text(name: str, shape: Sequence[int], axis: int) -> str:
    """Return the two halves of a block along an axis, in each of which neighbours stay neighbours."""
    halved = (*shape[:axis], 2, shape[axis] // 2, *shape[axis + 1 :])
    order = (*(k for k in range(len(halved)) if k != axis), axis)
    return f"tl.split(tl.permute(tl.reshape({name}, {halved}), {order}))"
