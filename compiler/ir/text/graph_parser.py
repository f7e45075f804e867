"""Text to Graph IR.  Every error says line and column.

    text      ::= graph resources?
    graph     ::= "graph" @name? "(" (size | %x ":" type loc?),* ")" "{" statement* "return" (%y ("->" %x)?),* "}"
    size      ::= "size" s "in" int ".." int "hint" int           open: known when the code runs, and to graphs inside
    statement ::= %y (":" type | ":" "(" type,* ")")? "=" op operand,* attrs? loc?
                | %c "=" "constant" type (array @name? | @name) loc?
    operand   ::= %x | number                      op operands may stand in brackets: add(%x, 1)
    attrs     ::= "{" (name "=" value),* "}"       values as in compiler.ir.literal
    loc       ::= "loc" "(" string ":" int ("," string)? ")"

Line breaks mean nothing.  A result's type may be left out; where it stands it is compared with the op's type rule, and
may add a layout to it.  `return %y -> %x` says that %y is written back to the input %x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import compiler.ir.ops  # noqa: F401  # fills the registry
from compiler.errors import Loc, TilewrightError
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, INPUT, OPS, Node, Op, constant_node, input_node
from compiler.ir.scalar import Number
from compiler.ir.text.lexer import Cursor, Token, did_you_mean
from compiler.ir.text.literal import is_representable, next_is_number, read_array, read_attrs, read_number, write_value
from compiler.ir.text.resources import Resources, skip_resources
from compiler.ir.text.type_parser import parse_dim, parse_type, read_size_declaration, read_type
from compiler.ir.types import TensorType

__all__ = ["parse_dim", "parse_graph", "parse_type"]

ResultType: TypeAlias = TensorType | tuple[TensorType, ...]


def parse_graph(text: str, resources: Mapping[str, ConstantData] | None = None) -> Graph:
    """The graph that `text` spells; `resources` holds the contents of `@name` constants.  Raises ParseError."""
    c = Cursor(text)
    with c.nesting_guard():
        graph = _read_graph(c, Resources(c, resources))
        skip_resources(c)
        c.expect_end()
    return graph


def _read_graph(c: Cursor, resources: Resources) -> Graph:
    c.expect("graph")
    name = c.take().text if c.next.kind == "global" else "graph"
    scope: dict[str, Node] = {}
    declared = c.read_list("(", lambda: read_size_declaration(c) if c.next_is("size") else _read_input(c, scope), ")")
    inputs = tuple(n for n in declared if n is not None)
    c.expect("{")
    while not c.next_is("return"):
        _read_statement(c, scope, resources)
    outputs, aliases = _read_return(c, scope, inputs)
    c.expect("}")
    return Graph(inputs, outputs, name, aliases)


def _read_input(c: Cursor, scope: dict[str, Node]) -> Node:
    name = _new_name(c, scope)
    c.expect(":")
    type = read_type(c)
    node = scope[name.text] = input_node(name.text, type, _read_loc(c))
    return node


def _new_name(c: Cursor, scope: Mapping[str, Node]) -> Token:
    name = c.expect_kind("value", "a %name")
    if name.text in scope:
        raise c.error(f"{name} is defined twice", name)
    return name


def _read_node_ref(c: Cursor, scope: Mapping[str, Node]) -> Node:
    name = c.expect_kind("value", "a %name")
    if name.text not in scope:
        raise c.error(f"{name} is not defined here{did_you_mean(name.text, scope)}", name)
    return scope[name.text]


def _read_return(
    c: Cursor, scope: Mapping[str, Node], inputs: tuple[Node, ...]
) -> tuple[tuple[Node, ...], dict[int, int]]:
    """The outputs, and which of them are written back to which input."""
    c.expect("return")
    outputs: list[Node] = []
    aliases: dict[int, int] = {}
    while not c.next_is("}"):
        if outputs:
            c.expect(",")
        outputs.append(_read_node_ref(c, scope))
        if c.accept("->"):
            at, target = c.next, _read_node_ref(c, scope)
            if target not in inputs:
                raise c.error(f"{at} is not an input, so nothing can be written back to it", at)
            aliases[len(outputs) - 1] = inputs.index(target)
    return tuple(outputs), aliases


def _read_statement(c: Cursor, scope: dict[str, Node], resources: Resources) -> None:
    if c.next.kind != "value":
        raise c.error(f"expected a statement or `return`, found {c.next}")
    name = _new_name(c, scope)
    at, annotation = c.peek(), _read_result_type(c) if c.accept(":") else None
    c.expect("=")
    word = c.expect_kind("word", "an op")
    op = OPS.get(word.text)
    if op is None:
        raise c.error(f"unknown op {word}{did_you_mean(word.text, OPS)}", word)
    if op is INPUT:
        raise c.error("inputs stand in the brackets behind the graph's name", word)
    node = _read_constant(c, resources) if op is CONSTANT else _read_call(c, op, word, scope, resources)
    result = node.result_type if annotation is None else _check_annotation(c, annotation, node.result_type, at)
    scope[name.text] = replace(node, result_type=result, name=name.text, loc=_read_loc(c))


def _read_result_type(c: Cursor) -> ResultType:
    return c.read_list("(", lambda: read_type(c), ")") if c.next_is("(") else read_type(c)


def _check_annotation(c: Cursor, given: ResultType, derived: ResultType, at: Token) -> ResultType:
    """`derived` with the layouts that `given` adds."""
    if isinstance(given, tuple) and isinstance(derived, tuple) and len(given) == len(derived):
        return tuple(_merge_layout(c, g, d, at) for g, d in zip(given, derived, strict=True))
    if isinstance(given, TensorType) and isinstance(derived, TensorType):
        return _merge_layout(c, given, derived, at)
    raise c.error(f"the op gives {derived}, not {given}", at)


def _merge_layout(c: Cursor, given: TensorType, derived: TensorType, at: Token) -> TensorType:
    layout = given.layout or derived.layout
    if replace(derived, layout=layout) != replace(given, layout=layout) or derived.layout not in (None, layout):
        raise c.error(f"the op gives {derived}, not {given}", at)
    return replace(derived, layout=layout)


def _read_constant(c: Cursor, resources: Resources) -> Node:
    type = read_type(c)
    if c.next.kind == "global":
        data = resources.get(c, c.take(), type)
    else:
        array = read_array(c, type)
        data = ConstantData(type.dtype, array, c.take().text if c.next.kind == "global" else "")
    return replace(constant_node(data), result_type=type)


def _read_call(c: Cursor, op: Op, word: Token, scope: Mapping[str, Node], resources: Resources) -> Node:
    places, operands = _read_operands(c, scope)
    attrs = read_attrs(c, partial(_read_graph, resources=resources))
    try:
        node = op(*operands, **attrs)
    except TilewrightError as error:
        raise c.error(str(error), word) from None
    except Exception as error:  # a type rule meets operands and attributes here that nothing has checked
        raise c.error(f"{op.name}: {type(error).__name__}: {error}", word) from error
    for place, written, operand in zip(places, operands, node.operands, strict=False):
        if not isinstance(written, Node) and not is_representable(written, operand.dtype):
            raise c.error(f"{write_value(written)} is no {operand.dtype}", place)
    return node


def _read_operands(c: Cursor, scope: Mapping[str, Node]) -> tuple[list[Token], list[Node | Number]]:
    bracket = c.accept("(")
    places: list[Token] = []
    operands: list[Node | Number] = []
    while c.accept(",") if operands else _next_is_operand(c):
        places.append(c.next)
        operands.append(_read_node_ref(c, scope) if c.next.kind == "value" else read_number(c))
    if bracket:
        c.expect(")")
    return places, operands


def _next_is_operand(c: Cursor) -> bool:
    """Whether an operand comes next, and not the next statement's name."""
    return next_is_number(c) or (c.next.kind == "value" and c.peek().text not in ("=", ":"))


def _read_loc(c: Cursor) -> Loc | None:
    if not c.accept("loc"):
        return None
    c.expect("(")
    file = c.expect_kind("string", "a file's name in quotes").text
    c.expect(":")
    line = c.expect_integer()
    code = c.expect_kind("string", "the code in quotes").text if c.accept(",") else ""
    c.expect(")")
    return Loc(file, line, code)
