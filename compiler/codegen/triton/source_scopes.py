"""Lines of a Python function under construction, each in the body of the loop that it belongs to.

q = x_boxes.load([i, 0])              write(..., depth=0) while the loop is open: a value that does not vary in it
for k in range(0, 64):                open_loop
    w = w_boxes.load([k, 0])          write(..., depth=1)
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TypeAlias

Line: TypeAlias = tuple[str, int]
"""A line of source, and the statement of Tile IR that it comes from."""

INNERMOST = sys.maxsize
"""Depth of a value that may change with every statement, so that what reads it stays where it is."""


@dataclass
class Scope:
    """The function, or one loop that is open: the line that opens it, and its body so far.

    Values leave a loop if it `runs_always`: what they load exists only where the loop has an iteration.
    """

    header: Line
    runs_always: bool
    lines: list[Line] = field(default_factory=list)


class SourceScopes:
    """The open loops of a function, outermost first.  Depth 0 is the body of the function, depth n that of the nth loop."""

    def __init__(self) -> None:
        self.line = 0  # of the statement that is being emitted, in the text of the kernel
        self.scopes = [Scope(("", 0), runs_always=False)]

    @property
    def depth(self) -> int:
        """The number of open loops."""
        return len(self.scopes) - 1

    def outermost_depth(self, known: int) -> int:
        """Return the depth at which to compute a value whose operands are known at depth `known`: it leaves all loops that it may."""
        return max(min(known, self.depth), *(k for k, s in enumerate(self.scopes) if not s.runs_always))

    def write(self, text: str, depth: int = INNERMOST) -> None:
        """Add a line to the body of the loop at `depth`, before the loop in it that is open."""
        self.scopes[min(depth, self.depth)].lines.append((text, self.line))

    def open_loop(self, header: str, runs_always: bool) -> None:
        """Begin the body of a loop."""
        self.scopes.append(Scope((header, self.line), runs_always))

    def close_loop(self) -> None:
        """End the body of the innermost loop, which is left out if it has no lines."""
        scope = self.scopes.pop()
        if scope.lines:
            self.scopes[-1].lines += [scope.header, *((f"    {text}", line) for text, line in scope.lines)]
