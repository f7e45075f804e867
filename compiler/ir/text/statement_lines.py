"""Lines of printed Tile IR: where each statement of a kernel stands in its text.

Line numbers count from 1.  A statement is found by its position: passes may use one object in several places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compiler.ir.text.tile_printer import print_kernel_parts
from compiler.ir.tile.kernel import Block, For, Kernel, Reduce, Stmt


@dataclass(frozen=True)
class StatementLines:
    """Text of a kernel: the line of each statement of its body, and the number of lines of every statement, by `id`."""

    text: str
    outermost: Mapping[int, int]
    heights: Mapping[int, int]

    @staticmethod
    def of(kernel: Kernel) -> StatementLines:
        """Return the lines of the statements of `kernel`."""
        text, header, heights = print_kernel_parts(kernel)
        outermost, line = dict[int, int](), header + 1
        for s in kernel.body:
            outermost[id(s)] = line
            line += heights[id(s)]
        return StatementLines(text, outermost, heights)

    def in_block(self, body: Block, outer: int) -> Iterator[tuple[Stmt, int]]:
        """Yield each statement of the block of a loop in line `outer` with its line; statements of the kernel's body if 0."""
        line = outer + 1
        for s in body:
            yield s, line if outer else self.outermost[id(s)]
            line += self.heights[id(s)]

    def statement_of_line(self, kernel: Kernel) -> list[int]:
        """Return, for each line of the text, that of the innermost statement it belongs to; 1, the kernel, if it is none's."""
        owners = [1] * (1 + self.text.count("\n"))

        def enter(body: Block, outer: int) -> None:
            for s, line in self.in_block(body, outer):
                height = self.heights[id(s)]
                owners[line - 1 : line - 1 + height] = [line] * height
                if isinstance(s, (For, Reduce)):
                    enter(s.body, line)

        enter(kernel.body, 0)
        return owners
