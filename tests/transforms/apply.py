"""A transformation as a pass, so that `check_pass` compares, verifies and interprets what it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Block, For, Kernel
from compiler.passes.base import Context, TilePass
from compiler.testing.checks import check_pass


@dataclass(frozen=True)
class Apply(TilePass):
    """Replace the body of a kernel by `rule(body)`."""

    rule: Callable[[Block], Block]
    name = "apply"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        return ir.with_body(self.rule(ir.body))


def check_transform(rule: Callable[[Block], Block], before: str, after: str) -> None:
    """Compare the result of `rule` with the text `after` up to names, and what both compute."""
    check_pass([Apply(rule)], before=before, after=after, idempotent=False)


def loop_of(body: Block, depth: int = 0) -> For:
    """The first loop at a depth of a nest."""
    loop = next(s for s in body if isinstance(s, For))
    return loop if not depth else loop_of(loop.body, depth - 1)


def body_of(text: str) -> Block:
    """The body of the kernel in `text`."""
    return parse_kernel(text).body
