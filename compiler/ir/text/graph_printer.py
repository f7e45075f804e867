"""Graph IR as text.

    graph @name(%x: f32[4, 8], %w: f32[8]) {
      %s: f32[4, 8] = sigmoid %x
      %y: f32[4, 8] = mul %s, 2.0
      return %y, %s -> %x
    }

A small constant is written as numbers, a large one as `@name` with its contents elsewhere: in a `resources` section
behind the graph, or in the mapping given to the parser.  An attribute equal to its default is left out.  Open sizes are
declared before the inputs: `graph(size s0 in 2..513 hint 100, %x: f32[s0, 8])`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from compiler.errors import Loc
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph, unique_names
from compiler.ir.graph.node import CONSTANT, INPUT, Node, freeze, scalar_constant, scalar_value
from compiler.ir.symbolic.index_atoms import DynamicSize
from compiler.ir.symbolic.index_expr import IndexExpr, dynamic_sizes
from compiler.ir.text.lexer import format_name, quote
from compiler.ir.text.literal import write_array, write_number, write_value
from compiler.ir.text.resources import write_resources
from compiler.ir.types import DType, TensorType, boolean

MAX_HEADER_WIDTH = 110
"""A header that is longer gives each parameter a line of its own."""

format_value_name: Callable[[str], str] = partial(format_name, "%")
format_global_name: Callable[[str], str] = partial(format_name, "@")


def print_graph(graph: Graph, *, locations: bool = False, types: bool = True, full: bool = False) -> str:
    """`graph` as text; `full` appends the contents of large constants."""
    printer = _Printer(locations, types)
    text = printer.graph(graph, _dynamic_sizes_in(graph))
    return f"{text}\n{write_resources(printer.resources)}" if full and printer.resources else text


def graph_resources(graph: Graph) -> dict[str, ConstantData]:
    """The constants that `print_graph` names without writing them out: what `parse_graph` needs beside the text."""
    printer = _Printer()
    printer.graph(graph)
    return printer.resources


def write_dynamic_size(s: DynamicSize) -> str:
    """The declaration of an open size."""
    return f"size {s.name} in {s.low}..{s.high + 1} hint {s.hint}"


def write_header(head: str, params: list[str], suffix: str = "") -> str:
    """`head(params)more {`, on several lines where it is long."""
    line = f"{head}({', '.join(params)}){suffix} {{"
    return (
        line
        if len(line) <= MAX_HEADER_WIDTH or not params
        else f"{head}(\n    " + ",\n    ".join(params) + f"\n){suffix} {{"
    )


@dataclass
class _Printer:
    locations: bool = False
    types: bool = True
    resources: dict[str, ConstantData] = field(default_factory=dict)

    def graph(self, graph: Graph, declared_sizes: Iterable[DynamicSize] = ()) -> str:
        """`graph`, which declares the sizes `open`: those of a graph inside another stand at the outer one."""
        literals = _inline_literals(graph)
        shown = [n for n in graph.nodes if n not in literals]
        spelled = {n: format_value_name(name) for n, name in unique_names(shown).items()}
        spelled |= {n: _format_literal(n) for n in literals}
        head = "graph" if graph.name == "graph" else f"graph {format_global_name(graph.name)}"
        inputs = [write_dynamic_size(s) for s in sorted(declared_sizes, key=str)]
        inputs += [f"{spelled[n]}: {n.result_type}{self.loc(n.loc)}" for n in graph.inputs]
        lines = [self.statement(n, spelled) for n in shown if n.op is not INPUT]
        lines.append(" ".join(["return", ", ".join(_format_outputs(graph, spelled))]).rstrip())
        return "\n".join([write_header(head, inputs), *(indent(line) for line in lines), "}"])

    def statement(self, n: Node, spelled: Mapping[Node, str]) -> str:
        if n.op is CONSTANT:
            return f"{spelled[n]} = constant {n.result_type} {self.contents(n, spelled[n][1:])}{self.loc(n.loc)}"
        type_text = f": {_format_result_type(n.result_type)}" if self.types else ""
        attrs = [f"{k}={write_value(v, self.graph)}" for k, v in n.attrs.items() if not _is_default(n, k, v)]
        words = [n.op.name, ", ".join(spelled[o] for o in n.operands), "{" + ", ".join(attrs) + "}" if attrs else ""]
        return f"{spelled[n]}{type_text} = {' '.join(filter(None, words))}{self.loc(n.loc)}"

    def contents(self, n: Node, name: str) -> str:
        data: ConstantData = n.attrs["value"]
        numbers = write_array(data)
        if numbers is None:
            return format_global_name(self.resource(data, name))
        return f"{numbers} {format_global_name(data.name)}" if data.name else numbers

    def resource(self, data: ConstantData, name: str) -> str:
        """The name under which `data` is kept: its own if no other data has it."""
        base = data.name or name.strip('"')
        candidates = (base if k == 0 else f"{base}_{k}" for k in range(len(self.resources) + 1))
        free = next(c for c in candidates if self.resources.get(c, data) is data)
        self.resources[free] = data
        return free

    def loc(self, loc: Loc | None) -> str:
        if loc is None or not self.locations:
            return ""
        return f" loc({quote(loc.file)}:{loc.line}" + (f", {quote(loc.code)})" if loc.code else ")")


def _dynamic_sizes_in(value: object) -> frozenset[DynamicSize]:
    """The sizes that a graph, or anything in one, leaves open."""
    if isinstance(value, Graph):
        return _dynamic_sizes_in(value.nodes)
    if isinstance(value, Node):
        return _dynamic_sizes_in((value.result_type, *value.attrs.values()))
    if isinstance(value, TensorType):
        return _dynamic_sizes_in(value.shape)
    if isinstance(value, tuple):
        return frozenset().union(*map(_dynamic_sizes_in, value))
    return dynamic_sizes(value) if isinstance(value, IndexExpr) else frozenset()


def indent(text: str) -> str:
    """`text` two columns to the right."""
    return "\n".join("  " + line for line in text.split("\n"))


def _format_result_type(result: TensorType | tuple[TensorType, ...]) -> str:
    return str(result) if isinstance(result, TensorType) else f"({', '.join(map(str, result))})"


def _is_default(n: Node, name: str, value: Any) -> bool:
    default = freeze(n.op.attr_defaults.get(name))
    return name in n.op.attr_defaults and type(default) is type(value) and repr(default) == repr(value)


def _format_outputs(graph: Graph, spelled: Mapping[Node, str]) -> Iterator[str]:
    for k, n in enumerate(graph.outputs):
        target = graph.output_aliases.get(k)
        yield spelled[n] if target is None else f"{spelled[n]} -> {spelled[graph.inputs[target]]}"


def _inline_literals(graph: Graph) -> set[Node]:
    """The scalar constants that can stand as numbers wherever they are used.

    A number takes the dtype of the operands beside it, so a constant qualifies where that gives its dtype back.
    """
    outputs = set(graph.outputs)
    found = {n for n in graph.constants if n not in outputs and not n.name and not n.shape and _is_exactly_printable(n)}
    changed = True
    while changed:
        wrong = {
            o for n in graph.nodes for o in n.operands if o in found and o.dtype != _inferred_literal_dtype(n, found)
        }
        found -= wrong
        changed = bool(wrong)
    return found


def _inferred_literal_dtype(n: Node, literals: set[Node]) -> DType | None:
    """The dtype that `Op.__call__` gives to a number among the operands of `n`."""
    typed = [o.dtype for o in n.operands if o not in literals and isinstance(o.result_type, TensorType)]
    return next((d for d in typed if d != boolean), typed[0] if typed else None)


def _is_exactly_printable(n: Node) -> bool:
    data: ConstantData = n.attrs["value"]
    if data.name or n.type.layout or n.dtype.kind == "complex" or write_array(data) is None:
        return False
    value = scalar_value(n)
    assert value is not None
    again: ConstantData = scalar_constant(value, data.dtype).attrs["value"]
    return again.array.tobytes() == data.array.tobytes()


def _format_literal(n: Node) -> str:
    data: ConstantData = n.attrs["value"]
    return write_number(data.numpy_values[()], data.dtype)
