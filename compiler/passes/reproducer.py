"""Reproducers: the IR before a pass that failed, in a file that `tilewright opt` takes."""

from __future__ import annotations

import re
import shlex
import tempfile
from contextlib import suppress
from hashlib import sha256
from math import prod
from pathlib import Path

import compiler
from compiler.ir.graph.graph import Graph
from compiler.ir.text.ir_text import AnyIR, print_ir
from compiler.ir.tile.kernel import Kernel
from compiler.passes.base import PASSES, declaring_module
from compiler.passes.pipeline_text import Pipeline, print_pipeline

FOLDER = Path(tempfile.gettempdir())
"""Directory of the reproducers."""

MAX_ELEMENTS = 1 << 20
"""Elements of constants up to which a reproducer holds them."""


def write_reproducer(ir: AnyIR, passes: Pipeline, target: str, emit: bool = False) -> tuple[str, str]:
    """Write IR to a file in FOLDER, the same for the same failure; return its name, and the command that runs `passes` on it.

    The command loads the plugins that declare the passes, and generates code if `emit`.
    """
    text, name = print_ir(ir, full=_constant_elements(ir) <= MAX_ELEMENTS), re.sub(r"\W+", "_", ir.name)
    options = ["-p", print_pipeline(passes), *_load_options(passes)]
    options += ["--target", target] if target != "host" else []
    options += ["--emit"] if emit else ["--verify", "--check"]
    digest = sha256(f"{options}\n{text}".encode()).hexdigest()
    file = FOLDER / f"tilewright-{name}-{digest[:12]}.ir"
    command = shlex.join(["tilewright", "opt", str(file), *options])
    with suppress(FileExistsError), file.open("x", encoding="utf-8") as new:
        new.write(f"# {command}\n{text}\n")
    return str(file), command


def _load_options(passes: Pipeline) -> list[str]:
    """Return the options that load the modules outside the compiler in which `passes` are declared."""
    modules = {declaring_module(PASSES[p.name]) for p in passes if p.name in PASSES}
    outside = sorted(m for m in modules if m.split(".")[0] not in (compiler.__name__, "__main__"))
    return [word for module in outside for word in ("--load", module)]


def _constant_elements(ir: AnyIR) -> int:
    if isinstance(ir, Kernel):
        return 0
    shapes = [c.shape for c in ir.constants] if isinstance(ir, Graph) else [c.shape for c in ir.constants.values()]
    return sum(prod(shape) if all(isinstance(n, int) for n in shape) else 0 for shape in shapes)
