"""The order of the packages: imports go down, files are small, code generation works without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "compiler").rglob("*.py"))

FLOORS = (
    ("errors",),
    ("options",),
    ("ir.symbolic", "ir.location"),
    ("ir.float_format", "ir.numpy_primitives"),
    ("ir.types",),
    ("ir.scalar", "ir.torch_types"),
    ("ir.polynomial", "ir.subexpressions"),
    ("ir.graph",),
    ("ir.ops", "ir.tile"),
    ("ir.text",),
    ("ir.verify",),
    ("ir.interpret",),
    ("math",),
    ("cost.machine",),
    ("cost.host", "target"),
    ("analysis",),
    ("cost", "lowering", "transforms"),
    ("passes",),
    ("frontend", "codegen"),
    ("runtime", "pipeline"),
    ("driver",),
    ("report",),
    ("api", "torch_backend"),
    ("testing",),
    ("tools",),
    ("__main__",),
)
"""Packages and modules from the ground up.  A module imports what stands below it, and modules of its own package."""

TOP_MODULES = 8
"""Modules that may lie loose in compiler/."""


def name_of(path: Path) -> str:
    """The dotted name of a file below compiler/, without the name of the package itself."""
    parts = path.relative_to(ROOT / "compiler").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in SOURCES}


def imports(path: Path) -> Iterator[str]:
    """The modules below compiler/ that a file imports, in functions too; those for type checkers alone are left out."""

    def visit(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            yield from (a.name.removeprefix("compiler.") for a in node.names if a.name.startswith("compiler."))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "compiler":
            package = node.module.removeprefix("compiler").removeprefix(".")
            for alias in node.names:
                inner = f"{package}.{alias.name}".removeprefix(".")
                yield inner if inner in MODULES else package
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    yield from visit(ast.parse(path.read_text()))


def floor(module: str) -> tuple[int, str]:
    """The floor of a module, and the entry of `FLOORS` that gives it."""
    for number, names in enumerate(FLOORS):
        for name in names:
            if module == name or module.startswith(f"{name}."):
                return number, name
    raise AssertionError(f"compiler.{module} has no floor: add it to FLOORS")


EMPTY = {name for name, path in MODULES.items() if not path.read_text().strip()}
"""Packages whose __init__.py says nothing: to import one is to name its folder."""


@pytest.mark.parametrize("module", sorted(set(MODULES) - EMPTY - {""}))
def test_imports_go_down(module: str) -> None:
    here, home = floor(module)
    for other in set(imports(MODULES[module])) - EMPTY - {""}:
        there, package = floor(other)
        assert there < here or package == home, f"compiler.{module} imports compiler.{other}, which stands no lower"


def test_there_are_no_import_cycles() -> None:
    """Also not through imports inside functions."""
    edges = [(m, other) for m, path in MODULES.items() for other in imports(path) if other and m]
    cycles = [c for c in networkx.strongly_connected_components(networkx.DiGraph(edges)) if len(c) > 1]
    assert not cycles


def test_few_modules_lie_loose() -> None:
    assert len(list((ROOT / "compiler").glob("*.py"))) <= TOP_MODULES


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
from compiler.codegen.llvm.object_file import emit_object
from compiler.codegen.llvm.targets import host_target
from compiler.ir.text.tile_parser import parse_kernel

kernel = parse_kernel("kernel @double(in %x: f32[8], out %y: f32[8]) { for %i in 0..8 tile 8 lanes 8 { store %x[%i] * 2.0, %y[%i] } }")
assert emit_object(emit_kernel(kernel, host_target()), host_target())
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
