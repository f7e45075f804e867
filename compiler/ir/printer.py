"""Graph IR as text.

    graph @name(%x: f32[4, 8], %w: f32[8]) {
      %s: f32[4, 8] = sigmoid %x
      %y: f32[4, 8] = mul %s, 2.0
      return %y, %s -> %x
    }

A small constant is written as numbers, a large one as `@name` with its contents elsewhere: in a `resources` section
behind the graph, or in the mapping given to the parser.  An attribute equal to its default is left out.  Open sizes are
declared before the inputs: `graph(size s0 in 2..513 like 100, %x: f32[s0, 8])`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from compiler.errors import Loc
from compiler.ir.atoms import Size
from compiler.ir.graph import CONSTANT, INPUT, Data, Graph, Node, scalar_constant, scalar_value, unique_names
from compiler.ir.index import Index, sizes
from compiler.ir.lexer import quote, spell_name
from compiler.ir.literal import write_array, write_number, write_value
from compiler.ir.op import freeze
from compiler.ir.resources import write_resources
from compiler.ir.types import DType, TensorType, boolean

WIDTH = 110
"""A header that is longer gives each parameter a line of its own."""

value_name: Callable[[str], str] = partial(spell_name, "%")
global_name: Callable[[str], str] = partial(spell_name, "@")


def print_graph(graph: Graph, *, locations: bool = False, types: bool = True, full: bool = False) -> str:
    """`graph` as text; `full` appends the contents of large constants."""
    printer = _Printer(locations, types)
    text = printer.graph(graph, _sizes(graph))
    return f"{text}\n{write_resources(printer.resources)}" if full and printer.resources else text


def graph_resources(graph: Graph) -> dict[str, Data]:
    """The constants that `print_graph` names without writing them out: what `parse_graph` needs beside the text."""
    printer = _Printer()
    printer.graph(graph)
    return printer.resources


def write_size(s: Size) -> str:
    """The declaration of an open size."""
    return f"size {s.name} in {s.low}..{s.high + 1} like {s.likely}"


def write_header(head: str, params: list[str], more: str = "") -> str:
    """`head(params)more {`, on several lines where it is long."""
    line = f"{head}({', '.join(params)}){more} {{"
    return line if len(line) <= WIDTH or not params else f"{head}(\n    " + ",\n    ".join(params) + f"\n){more} {{"


@dataclass
class _Printer:
    locations: bool = False
    types: bool = True
    resources: dict[str, Data] = field(default_factory=dict)

    def graph(self, graph: Graph, open: Iterable[Size] = ()) -> str:
        """`graph`, which declares the sizes `open`: those of a graph inside another stand at the outer one."""
        literals = _literals(graph)
        shown = [n for n in graph.nodes if n not in literals]
        spelled = {n: value_name(name) for n, name in unique_names(shown).items()}
        spelled |= {n: _literal(n) for n in literals}
        head = "graph" if graph.name == "graph" else f"graph {global_name(graph.name)}"
        inputs = [write_size(s) for s in sorted(open, key=str)]
        inputs += [f"{spelled[n]}: {n.result}{self.loc(n.loc)}" for n in graph.inputs]
        lines = [self.statement(n, spelled) for n in shown if n.op is not INPUT]
        lines.append(" ".join(["return", ", ".join(_outputs(graph, spelled))]).rstrip())
        return "\n".join([write_header(head, inputs), *(indent(line) for line in lines), "}"])

    def statement(self, n: Node, spelled: Mapping[Node, str]) -> str:
        if n.op is CONSTANT:
            return f"{spelled[n]} = constant {n.result} {self.contents(n, spelled[n][1:])}{self.loc(n.loc)}"
        type_text = f": {_result(n.result)}" if self.types else ""
        attrs = [f"{k}={write_value(v, self.graph)}" for k, v in n.attrs.items() if not _is_default(n, k, v)]
        words = [n.op.name, ", ".join(spelled[o] for o in n.operands), "{" + ", ".join(attrs) + "}" if attrs else ""]
        return f"{spelled[n]}{type_text} = {' '.join(filter(None, words))}{self.loc(n.loc)}"

    def contents(self, n: Node, name: str) -> str:
        data: Data = n.attrs["value"]
        numbers = write_array(data)
        if numbers is None:
            return global_name(self.resource(data, name))
        return f"{numbers} {global_name(data.name)}" if data.name else numbers

    def resource(self, data: Data, name: str) -> str:
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


def _sizes(value: object) -> frozenset[Size]:
    """The sizes that a graph, or anything in one, leaves open."""
    if isinstance(value, Graph):
        return _sizes(value.nodes)
    if isinstance(value, Node):
        return _sizes((value.result, *value.attrs.values()))
    if isinstance(value, TensorType):
        return _sizes(value.shape)
    if isinstance(value, tuple):
        return frozenset().union(*map(_sizes, value))
    return sizes(value) if isinstance(value, Index) else frozenset()


def indent(text: str) -> str:
    """`text` two columns to the right."""
    return "\n".join("  " + line for line in text.split("\n"))


def _result(result: TensorType | tuple[TensorType, ...]) -> str:
    return str(result) if isinstance(result, TensorType) else f"({', '.join(map(str, result))})"


def _is_default(n: Node, name: str, value: Any) -> bool:
    default = freeze(n.op.attrs.get(name))
    return name in n.op.attrs and type(default) is type(value) and repr(default) == repr(value)


def _outputs(graph: Graph, spelled: Mapping[Node, str]) -> Iterator[str]:
    for k, n in enumerate(graph.outputs):
        target = graph.aliases.get(k)
        yield spelled[n] if target is None else f"{spelled[n]} -> {spelled[graph.inputs[target]]}"


def _literals(graph: Graph) -> set[Node]:
    """The scalar constants that can stand as numbers wherever they are used.

    A number takes the dtype of the operands beside it, so a constant qualifies where that gives its dtype back.
    """
    outputs = set(graph.outputs)
    found = {n for n in graph.constants if n not in outputs and not n.name and not n.shape and _exact(n)}
    changed = True
    while changed:
        wrong = {o for n in graph.nodes for o in n.operands if o in found and o.dtype != _neighbour_dtype(n, found)}
        found -= wrong
        changed = bool(wrong)
    return found


def _neighbour_dtype(n: Node, literals: set[Node]) -> DType | None:
    """The dtype that `Op.__call__` gives to a number among the operands of `n`."""
    typed = [o.dtype for o in n.operands if o not in literals and isinstance(o.result, TensorType)]
    return next((d for d in typed if d != boolean), typed[0] if typed else None)


def _exact(n: Node) -> bool:
    data: Data = n.attrs["value"]
    if data.name or n.type.layout or n.dtype.kind == "complex" or write_array(data) is None:
        return False
    value = scalar_value(n)
    assert value is not None
    again: Data = scalar_constant(value, data.dtype).attrs["value"]
    return again.array.tobytes() == data.array.tobytes()


def _literal(n: Node) -> str:
    data: Data = n.attrs["value"]
    return write_number(data.numbers[()], data.dtype)
