"""Perfect loop nests: loops with nothing between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.ir.tile.kernel import Block, For, Range


def perfect_nest(body: Block) -> list[For]:
    """Return the loops of the perfect nest that `body` consists of, outermost first."""
    nest: list[For] = []
    while len(body) == 1 and isinstance(body[0], For):
        nest.append(body[0])
        body = body[0].body
    return nest


def wrap_in_nest(nest: Sequence[For | Range], body: Block) -> Block:
    """Return the loops of `nest` around `body` instead of their own bodies; a bare range becomes a serial loop."""
    for f in reversed(nest):
        body = (For(f, body) if isinstance(f, Range) else replace(f, body=body),)
    return body
