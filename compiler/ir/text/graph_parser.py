"""Parser of Graph IR.  Every error has a line and a column.

    text      ::= graph resources?
    graph     ::= "graph" @name? "(" (size | %x ":" type loc?),* ")" "{" statement* "return" (%y ("->" %x)?),* "}"
    size      ::= "size" s "in" int ".." int "hint" int           a dynamic size, visible in nested graphs
    statement ::= %y (":" type | ":" "(" type,* ")")? "=" op operand,* attrs? loc?
                | %c "=" "constant" type (array @name? | @name) loc?
    operand   ::= %x | number                      operands may be in parentheses: add(%x, 1)
    attrs     ::= "{" (name "=" value),* "}"       values as in compiler.ir.text.literal
    loc       ::= "loc" "(" string ":" int ("," string ("," string)?)? ")"    file, line, code, path of the module

Line breaks have no meaning.  A result type is optional; it must agree with the op's type rule and may add a layout.
`return %y -> %x` writes the output %y back into the input %x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import compiler.ir.ops  # noqa: F401  # fills the registry
from compiler.errors import Loc, TilewrightError, did_you_mean
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, INPUT, OPS, Node, Op, constant_node, input_node
from compiler.ir.scalar import Number
from compiler.ir.text.lexer import Cursor, Token
from compiler.ir.text.literal import is_representable, next_is_number, read_array, read_attrs, read_number, write_value
from compiler.ir.text.resources import Resources, parse_with_resources
from compiler.ir.text.type_parser import read_size_declaration, read_type
from compiler.ir.types import ResultType, TensorType


def parse_graph(text: str, resources: Mapping[str, ConstantData] | None = None) -> Graph:
    """Parse a graph; `resources` gives the contents of `@name` constants.  Raises ParseError."""
    return parse_with_resources(text, _read_graph, resources)


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
    return Graph(inputs, tuple(outputs), name, aliases)


def _read_input(c: Cursor, scope: dict[str, Node]) -> Node:
    name, _, type = _new_name(c, scope), c.expect(":"), read_type(c)
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
        raise c.error(f"unknown value {name}{did_you_mean(name.text, scope)}", name)
    return scope[name.text]


def _read_return(c: Cursor, scope: Mapping[str, Node], inputs: tuple[Node, ...]) -> tuple[list[Node], dict[int, int]]:
    """Read the outputs and `Graph.output_aliases`."""
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
                raise c.error(f"{at} is not an input of the graph; an output can be written back to inputs only", at)
            aliases[len(outputs) - 1] = inputs.index(target)
    return outputs, aliases


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
        raise c.error("inputs are declared in the graph's parameter list", word)
    node = _read_constant(c, resources) if op is CONSTANT else _read_call(c, op, word, scope, resources)
    result = node.result_type if annotation is None else _check_annotation(c, annotation, node.result_type, at)
    scope[name.text] = replace(node, result_type=result, name=name.text, loc=_read_loc(c))


def _read_result_type(c: Cursor) -> ResultType:
    return c.read_list("(", lambda: read_type(c), ")") if c.next_is("(") else read_type(c)


def _check_annotation(c: Cursor, annotation: ResultType, inferred: ResultType, at: Token) -> ResultType:
    """Return the `inferred` type with the layouts of the annotation; ParseError if they disagree otherwise."""
    if isinstance(annotation, tuple) and isinstance(inferred, tuple) and len(annotation) == len(inferred):
        return tuple(_merge_layout(c, a, i, at) for a, i in zip(annotation, inferred, strict=True))
    if isinstance(annotation, TensorType) and isinstance(inferred, TensorType):
        return _merge_layout(c, annotation, inferred, at)
    raise c.error(f"inferred type {inferred} does not match annotation {annotation}", at)


def _merge_layout(c: Cursor, annotation: TensorType, inferred: TensorType, at: Token) -> TensorType:
    layout = annotation.layout or inferred.layout
    if replace(inferred, layout=layout) != replace(annotation, layout=layout) or inferred.layout not in (None, layout):
        raise c.error(f"inferred type {inferred} does not match annotation {annotation}", at)
    return replace(inferred, layout=layout)


def _read_constant(c: Cursor, resources: Resources) -> Node:
    type = read_type(c)
    if c.next.kind == "global":
        data = resources.get(c, c.take(), type)
    else:
        array = read_array(c, type)
        data = ConstantData(type.dtype, array, c.take().text if c.next.kind == "global" else "")
    return replace(constant_node(data), result_type=type)


def _read_call(c: Cursor, op: Op, word: Token, scope: Mapping[str, Node], resources: Resources) -> Node:
    tokens, operands = _read_operands(c, scope)
    attrs = read_attrs(c, partial(_read_graph, resources=resources))
    try:
        node = op(*operands, **attrs)
    except TilewrightError as error:
        raise c.error(str(error), word) from None
    except Exception as error:  # an op may fail in any way on unchecked operands and attributes
        raise c.error(f"{op.name}: {type(error).__name__}: {error}", word) from error
    for token, value, operand in zip(tokens, operands, node.operands, strict=False):
        if not isinstance(value, Node) and not is_representable(value, operand.dtype):
            raise c.error(f"{write_value(value)} is not representable in {operand.dtype}", token)
    return node


def _read_operands(c: Cursor, scope: Mapping[str, Node]) -> tuple[list[Token], list[Node | Number]]:
    """Read the operands and the token of each."""
    in_parentheses = c.accept("(")
    tokens: list[Token] = []
    operands: list[Node | Number] = []
    while c.accept(",") if operands else _next_is_operand(c):
        tokens.append(c.next)
        operands.append(_read_node_ref(c, scope) if c.next.kind == "value" else read_number(c))
    if in_parentheses:
        c.expect(")")
    return tokens, operands


def _next_is_operand(c: Cursor) -> bool:
    """Return True if the next token starts an operand, not a statement."""
    return next_is_number(c) or (c.next.kind == "value" and c.peek().text not in ("=", ":"))


def _read_loc(c: Cursor) -> Loc | None:
    if not c.accept("loc"):
        return None
    c.expect("(")
    file, _, line = c.expect_kind("string", "a file's name in quotes").text, c.expect(":"), c.expect_integer()
    code = c.expect_kind("string", "the code in quotes").text if c.accept(",") else ""
    module = c.expect_kind("string", "the path of a module in quotes").text if c.accept(",") else ""
    c.expect(")")
    return Loc(file, line, code, module)
