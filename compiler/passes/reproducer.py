"""Reproducers: the IR before a pass that failed, in a file that `tilewright opt` takes."""

from __future__ import annotations

import re
import shlex
import tempfile
from math import prod

from compiler.ir.graph.graph import Graph
from compiler.ir.text.ir_text import AnyIR, print_ir
from compiler.ir.tile.kernel import Kernel

MAX_ELEMENTS = 1 << 20
"""Elements of constants up to which a reproducer holds them."""


def write_reproducer(ir: AnyIR, passes: str) -> tuple[str, str]:
    """Write IR to a file in the folder of temporary files; return its name, and the command that runs `passes` on it."""
    name = re.sub(r"\W+", "_", ir.name)
    with tempfile.NamedTemporaryFile("w", prefix=f"tilewright-{name}-", suffix=".ir", delete=False) as file:
        command = shlex.join(["tilewright", "opt", file.name, "-p", passes, "--verify", "--check"])
        file.write(f"# {command}\n{print_ir(ir, full=_constant_elements(ir) <= MAX_ELEMENTS)}\n")
    return file.name, command


def _constant_elements(ir: AnyIR) -> int:
    if isinstance(ir, Kernel):
        return 0
    shapes = [c.shape for c in ir.constants] if isinstance(ir, Graph) else [c.shape for c in ir.constants.values()]
    return sum(prod(shape) if all(isinstance(n, int) for n in shape) else 0 for shape in shapes)
