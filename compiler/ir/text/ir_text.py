"""Text of IR of every kind: graphs, kernels and programs, recognised by their first word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.text.lexer import Cursor
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from compiler.ir.text.tile_printer import print_kernel, print_program
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program

AnyIR: TypeAlias = Graph | Kernel | Program


def parse_ir(text: str, resources: Mapping[str, ConstantData] | None = None) -> AnyIR:
    """Parse a graph, a kernel or a program; `resources` gives the contents of `@name` constants.  Raises ParseError."""
    first = Cursor(text).next.text
    if first == "kernel":
        return parse_kernel(text)
    return (parse_program if first == "program" else parse_graph)(text, resources)


def print_ir(ir: AnyIR, full: bool = False) -> str:
    """Print IR; with `full`, with the contents of its constants, so that `parse_ir` reads the text back."""
    if isinstance(ir, Kernel):
        return print_kernel(ir)
    return print_graph(ir, full=full) if isinstance(ir, Graph) else print_program(ir, full=full)
