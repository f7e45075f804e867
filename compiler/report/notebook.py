"""HTML of IR in notebooks: the text of graphs, kernels and programs with colours.  IR itself imports no reports."""

from __future__ import annotations

import sys

from compiler.ir.graph.graph import Graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.text.tile_printer import print_kernel, print_program
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.report.page import ir_html


def register_formatters() -> None:
    """Tell IPython, if it runs here, how to show IR as HTML."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None:
        html = shell.display_formatter.formatters["text/html"]
        html.for_type(Graph, lambda graph: ir_html(print_graph(graph)))
        html.for_type(Kernel, lambda kernel: ir_html(print_kernel(kernel)))
        html.for_type(Program, lambda program: ir_html(print_program(program)))
