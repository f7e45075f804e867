"""What keeps the house in order: one way through it, small files, code generation without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "compiler").rglob("*.py"))

STAGES = {
    "errors": 0,
    "options": 0,
    "ir": 1,
    "perf": 2,
    "passes": 3,
    "frontend": 3,
    "codegen": 3,
    "runtime": 4,
}
"""A module may import those of a lower number and its own stage; what is not named here is the public face above all of them."""

NEIGHBOURS = {
    ("passes", "codegen"),
    ("codegen", "passes"),
    ("frontend", "passes"),
    ("passes", "frontend"),
    ("frontend", "codegen"),
}
"""Stages of one number that must not know each other either."""


def imports(path: Path) -> set[str]:
    """The modules of this package that a file imports when it runs."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(a.name for a in node.names if a.name.startswith("compiler."))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "compiler":
            found.update([node.module] if node.module != "compiler" else [f"compiler.{a.name}" for a in node.names])
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def stage(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    here = stage(".".join(path.relative_to(ROOT).with_suffix("").parts))
    if here not in STAGES:
        return
    for module in imports(path):
        there = stage(module)
        assert there in STAGES, f"{path} imports {module}, which stands above every stage"
        assert STAGES[there] <= STAGES[here], f"{path} imports {module}, a later stage"
        assert (here, there) not in NEIGHBOURS, f"{path} imports {module}, a neighbouring stage"


@pytest.mark.parametrize("path", [*SOURCES, *(ROOT / "tests").rglob("*.py")], ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_small(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines <= 500, f"{path} has {lines} lines: split it by subject"


def test_no_grab_bags() -> None:
    names = {"util.py", "utils.py", "helper.py", "helpers.py", "misc.py", "common.py"}
    assert not [p for p in SOURCES if p.name in names]


def test_code_generation_needs_no_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object import to_object
from compiler.codegen.target import Target
from compiler.ir.tile_parser import parse_kernel

kernel = parse_kernel("kernel @double(in %x: f32[8], out %y: f32[8]) { for %i in 0..8 tile 8 lanes 8 { store %x[%i] * 2.0, %y[%i] } }")
assert to_object(emit_kernel(kernel, Target.host()), Target.host())
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
