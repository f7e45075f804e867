"""Printer of Graph IR; the grammar is in compiler.ir.text.graph_parser.

    graph @name(%x: f32[4, 8], %w: f32[8]) {
      %s: f32[4, 8] = sigmoid %x
      %y: f32[4, 8] = mul %s, 2.0
      return %y, %s -> %x
    }

A small constant is written as numbers, a large one as `@name`, with its contents in a `resources` section after the
graph or in a mapping given to the parser.  Attributes equal to their defaults are omitted.  Dynamic sizes are declared
before the inputs: `graph(size s0 in 2..513 hint 100, %x: f32[s0, 8])`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from compiler.errors import Loc
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph, own_name, unique_names
from compiler.ir.graph.node import CONSTANT, INPUT, Node, freeze, scalar_constant, scalar_value
from compiler.ir.symbolic.index_atoms import DynamicSize
from compiler.ir.text.lexer import format_name, quote
from compiler.ir.text.literal import write_array, write_number, write_value
from compiler.ir.text.resources import write_resources
from compiler.ir.types import DType, ResultType, TensorType, boolean

MAX_HEADER_WIDTH = 110
"""Longest header, in characters, that is written on one line; a longer one has a line per parameter."""

format_value_name: Callable[[str], str] = partial(format_name, "%")
format_global_name: Callable[[str], str] = partial(format_name, "@")


def print_graph(graph: Graph, *, locations: bool = False, types: bool = True, full: bool = False) -> str:
    """Return `graph` as text, with `locations` and result `types`; `full` appends the contents of large constants."""
    text, resources = print_with_resources(graph, locations=locations, types=types)
    return f"{text}\n{write_resources(resources)}" if full and resources else text


def graph_resources(graph: Graph) -> dict[str, ConstantData]:
    """Return the constants that `print_graph` writes as `@name`; `parse_graph` takes them as `resources`."""
    return print_with_resources(graph)[1]


def print_with_resources(
    graph: Graph, *, locations: bool = False, types: bool = True
) -> tuple[str, dict[str, ConstantData]]:
    """Return the text of `print_graph`, and `graph_resources`."""
    printer = GraphPrinter(locations, types)
    return printer.print(graph), printer.resources


def write_dynamic_size(s: DynamicSize) -> str:
    """Return the declaration of a dynamic size; its upper end is exclusive."""
    return f"size {s.name} in {s.low}..{s.high + 1} hint {s.hint}"


def write_header(head: str, params: list[str], suffix: str = "") -> str:
    """Return `head(params)suffix {`, on several lines if it is longer than `MAX_HEADER_WIDTH`."""
    line = f"{head}({', '.join(params)}){suffix} {{"
    if len(line) <= MAX_HEADER_WIDTH or not params:
        return line
    return f"{head}(\n    " + ",\n    ".join(params) + f"\n){suffix} {{"


@dataclass
class GraphPrinter:
    """Printer of graphs whose nodes are called by `name_of`; graphs that share nested graphs share their texts.

    `resources` are those of the last graph.
    """

    locations: bool = False
    types: bool = True
    name_of: Callable[[Node], str] = own_name
    resources: dict[str, ConstantData] = field(default_factory=dict)
    _nested: dict[Graph, str] = field(default_factory=dict)

    def print(self, graph: Graph) -> str:
        """Return the text of a graph, with declarations of its dynamic sizes."""
        self.resources = {}
        return self.graph(graph, graph.dynamic_sizes)

    def nested(self, graph: Graph) -> str:
        """Return the text of a graph inside another one."""
        if graph in self._nested:
            return self._nested[graph]
        known = len(self.resources)
        text = self.graph(graph)
        if len(self.resources) == known:  # names of resources depend on what else is printed
            self._nested[graph] = text
        return text

    def graph(self, graph: Graph, declared_sizes: Iterable[DynamicSize] = ()) -> str:
        """Return the text of `graph`, with declarations of `declared_sizes` (a nested graph declares none)."""
        literals = _inline_literals(graph)
        named = [n for n in graph.nodes if n not in literals]
        texts = {n: format_value_name(name) for n, name in unique_names(named, self.name_of).items()}
        texts |= {n: _format_literal(n) for n in literals}
        head = "graph" if graph.name == "graph" else f"graph {format_global_name(graph.name)}"
        inputs = [write_dynamic_size(s) for s in sorted(declared_sizes, key=str)]
        inputs += [f"{texts[n]}: {n.result_type}{self.loc(n.loc)}" for n in graph.inputs]
        lines = [self.statement(n, texts) for n in named if n.op is not INPUT]
        lines.append(" ".join(["return", ", ".join(_format_outputs(graph, texts))]).rstrip())
        return "\n".join([write_header(head, inputs), *(indent(line) for line in lines), "}"])

    def statement(self, n: Node, texts: Mapping[Node, str]) -> str:
        if n.op is CONSTANT:
            return f"{texts[n]} = constant {n.result_type} {self.contents(n, texts[n][1:])}{self.loc(n.loc)}"
        type_text = f": {_format_result_type(n.result_type)}" if self.types else ""
        attrs = [f"{k}={write_value(v, self.nested)}" for k, v in n.attrs.items() if not _is_default(n, k, v)]
        words = [n.op.name, ", ".join(texts[o] for o in n.operands), "{" + ", ".join(attrs) + "}" if attrs else ""]
        return f"{texts[n]}{type_text} = {' '.join(filter(None, words))}{self.loc(n.loc)}"

    def contents(self, n: Node, name: str) -> str:
        data: ConstantData = n.attrs["value"]
        numbers = write_array(data)
        if numbers is None:
            return format_global_name(self.resource(data, name))
        return f"{numbers} {format_global_name(data.name)}" if data.name else numbers

    def resource(self, data: ConstantData, name: str) -> str:
        """Add `data` to the resources and return its name there: its own unless other data has it."""
        base = data.name or name.strip('"')
        candidates = (base if k == 0 else f"{base}_{k}" for k in range(len(self.resources) + 1))
        free = next(c for c in candidates if self.resources.get(c, data) is data)
        self.resources[free] = data
        return free

    def loc(self, loc: Loc | None) -> str:
        if loc is None or not self.locations:
            return ""
        texts = (loc.code, loc.module) if loc.module else (loc.code,) if loc.code else ()
        return f" loc({', '.join([f'{quote(loc.file)}:{loc.line}', *map(quote, texts)])})"


def indent(text: str) -> str:
    """Indent every line of `text` by two spaces."""
    return "\n".join("  " + line for line in text.split("\n"))


def _format_result_type(result: ResultType) -> str:
    return str(result) if isinstance(result, TensorType) else f"({', '.join(map(str, result))})"


def _is_default(n: Node, name: str, value: Any) -> bool:
    default = freeze(n.op.attr_defaults.get(name))
    return name in n.op.attr_defaults and type(default) is type(value) and repr(default) == repr(value)


def _format_outputs(graph: Graph, texts: Mapping[Node, str]) -> Iterator[str]:
    for k, n in enumerate(graph.outputs):
        target = graph.output_aliases.get(k)
        yield texts[n] if target is None else f"{texts[n]} -> {texts[graph.inputs[target]]}"


def _inline_literals(graph: Graph) -> set[Node]:
    """Return the scalar constants that are written as numbers in their users.

    A number takes the dtype of the other operands, so a constant qualifies if this gives its own dtype in every user.
    """
    scalars = {n for n in graph.constants if not n.name and not n.shape and _is_exactly_printable(n)}
    literals = scalars.difference(graph.outputs)
    while True:
        uses = [(o, n) for n in graph.nodes for o in n.operands if o in literals]
        mistyped = {o for o, n in uses if o.dtype != _inferred_literal_dtype(n, literals)}
        if not mistyped:
            return literals
        literals -= mistyped


def _inferred_literal_dtype(n: Node, literals: set[Node]) -> DType | None:
    """Return the dtype that `Op.__call__` gives to a number among the operands of `n`."""
    typed = [o.dtype for o in n.operands if o not in literals and isinstance(o.result_type, TensorType)]
    return next((d for d in typed if d != boolean), typed[0] if typed else None)


def _is_exactly_printable(n: Node) -> bool:
    data: ConstantData = n.attrs["value"]
    if data.name or n.type.layout or n.dtype.is_opaque or write_array(data) is None:
        return False
    value = scalar_value(n)
    assert value is not None
    reparsed: ConstantData = scalar_constant(value, data.dtype).attrs["value"]
    return reparsed.array.tobytes() == data.array.tobytes()


def _format_literal(n: Node) -> str:
    data: ConstantData = n.attrs["value"]
    return write_number(data.numpy_values[()], data.dtype)
