"""A page for each op: its operands, attributes, structure, declaration, samples, and the kernel that a sample becomes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import compiler.ir.ops  # noqa: F401  # fills the registry
from compiler.errors import LoweringError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS, REQUIRED, Op, OperandSpec, SampleInput, input_node
from compiler.ir.graph.structure import ControlFlow, Leaf, Opaque, Recurrence
from compiler.ir.text.ir_text import print_ir
from compiler.ir.text.literal import write_value
from compiler.ir.text.type_parser import parse_type
from compiler.lowering.program import lower
from compiler.passes.manager import run_pipeline
from docs.site.markdown import docstring, fenced, table

ROOT = Path(__file__).parents[2]
STRUCTURES = "../../compiler/ir/graph/structure.py"


@dataclass(frozen=True)
class Declaration:
    """Where an op is declared, and the text."""

    file: Path
    text: str

    @property
    def link(self) -> str:
        name = self.file.relative_to(ROOT)
        return f"[`{name}`](../../{name})"


def op_pages() -> dict[str, str]:
    """Return a page for each op that is declared in compiler/ir/ops, and one that lists them by family."""
    known = {name: OPS[name] for name in sorted(declarations()) if name in OPS}
    pages = {f"docs/ops/{name}.md": op_page(op, declarations()[name]) for name, op in known.items()}
    return pages | {"docs/ops/index.md": index_page(known)}


@cache
def declarations() -> dict[str, Declaration]:
    """Return the declaration of each op: the assignment whose call names it."""
    found = {}
    for path in sorted((ROOT / "compiler" / "ir" / "ops").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        for statement in ast.parse(source).body:
            if isinstance(statement, ast.Assign) and isinstance(call := statement.value, ast.Call) and call.args:
                name = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
                if isinstance(name, str) and name in OPS:
                    lines = source.splitlines()[statement.lineno - 1 : statement.end_lineno]
                    found[name] = Declaration(path, "\n".join(lines))
    return found


def index_page(ops: dict[str, Op]) -> str:
    """Return the page that lists ops by family: the modules of compiler/ir/ops."""
    parts = ["# Ops\n\nEvery op, made from its declaration. [Add an op](../add-an-op.md) shows how to declare one.\n"]
    families: dict[Path, list[Op]] = {}
    for name, op in ops.items():
        families.setdefault(declarations()[name].file, []).append(op)
    for file, members in families.items():
        about = inspect.cleandoc(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
        rows = [(f"[`{o.name}`]({o.name}.md)", signature(o), type(o.structure).__name__) for o in members]
        parts.append(
            f"## {file.stem.replace('_', ' ').capitalize()}\n\n{about}\n\n{table(('op', 'operands', 'structure'), rows)}"
        )
    return "\n".join(parts)


def signature(op: Op) -> str:
    """Return the operands as they are declared."""
    return ", ".join(map(operand_text, op.operand_specs)) or "none"


def operand_text(o: OperandSpec) -> str:
    flags = "?" * o.optional + "*" * o.variadic + "!" * o.independent_dtype
    return f"`{o.name}{flags}: {o.kind}`"


def op_page(op: Op, declaration: Declaration) -> str:
    """Return the page of one op."""
    kind = type(op.structure)
    commutes = " The operands commute." if op.commutative else ""
    parts = [
        f"# {op.name}",
        f"Operands: {signature(op)}.{commutes} Declared in {declaration.link}:",
        fenced(declaration.text, "python"),
        f"## Structure\n\n[`{kind.__name__}`]({STRUCTURES})",
        docstring(kind.__doc__ or ""),
        *function_section(op),
        *attributes_section(op),
        *pytorch_section(op),
        *samples_section(op),
        *kernel_section(op),
    ]
    return "\n\n".join(parts) + "\n"


def function_section(op: Op) -> Iterator[str]:
    """Yield the source of the functions of a structure that have names."""
    functions = [f for f in vars(op.structure).values() if inspect.isfunction(f) and f.__name__ != "<lambda>"]
    own = [f for f in functions if f.__module__.startswith("compiler.ir.ops") and f.__qualname__ == f.__name__]
    for f in dict.fromkeys(own):
        yield fenced(inspect.getsource(f), "python")


def attributes_section(op: Op) -> Iterator[str]:
    """Yield the table of attributes with their defaults, and values that samples have."""
    rows = []
    for name, default in op.attr_defaults.items():
        values = dict.fromkeys(write_value(s.attrs[name]) for s in op.samples if name in s.attrs)
        shown = "required" if default is REQUIRED else f"`{default}`"
        rows.append((f"`{name}`", shown, ", ".join(f"`{v}`" for v in values)))
    if rows:
        yield f"## Attributes\n\n{table(('attribute', 'default', 'in samples'), rows)}"


def pytorch_section(op: Op) -> Iterator[str]:
    """Yield the ATen overloads that are imported as the op, and its reference."""
    overloads = (
        ", ".join(f"`{a}`" for a in op.aten) or "none by itself; conversions in `compiler/frontend` may build it"
    )
    reference = getattr(op.reference, "__qualname__", getattr(op.reference, "__name__", ""))
    tested = (
        f" Tests compare it with `{reference.replace('<lambda>', 'a lambda expression')}` in float64."
        if reference
        else ""
    )
    yield f"## In PyTorch\n\nATen overloads: {overloads}.{tested}"


def sample_text(op: Op, s: SampleInput) -> str:
    """Return a sample as a line of IR."""
    attrs = ", ".join(f"{k}={write_value(v)}" for k, v in s.attrs.items())
    return f"{op.name} {', '.join(s.types)}{f' {{{attrs}}}' if attrs else ''}"


def samples_section(op: Op) -> Iterator[str]:
    """Yield the samples on which tests run the op."""
    if op.samples:
        yield "## Samples\n\nTests run the op on operands of these types: the interpreter, and native code, against the reference."
        yield fenced("\n".join(dict.fromkeys(sample_text(op, s) for s in op.samples)))


def kernel_section(op: Op) -> Iterator[str]:
    """Yield the graph of the first sample that is not empty, and the kernel that it becomes before tile passes."""
    if isinstance(op.structure, (Opaque, ControlFlow, Recurrence, Leaf)):
        return
    for s in op.samples:
        types = [parse_type(t) for t in s.types]
        if all(0 not in t.shape for t in types):
            inputs = tuple(input_node(f"x{k}", t) for k, t in enumerate(types))
            graph = Graph(inputs, (op(*inputs, **s.attrs),))
            yield "## From graph to kernel\n\nThe first sample as a graph:"
            yield fenced(print_ir(graph))
            try:
                program = lower(run_pipeline(graph, "decompose,fuse"))
            except LoweringError as error:
                yield f"It has no kernel of its own: {error}."
                return
            yield "`tilewright opt FILE -p decompose,fuse --lower` makes of it:"
            yield fenced(print_ir(program))
            return
