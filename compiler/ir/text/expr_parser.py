"""Parser of Tile IR's scalar expressions.

    expr ::= expr infix expr | "-" expr | "(" expr ")" | primitive "(" expr,* ")"
           | number (":" dtype)? | "true" | "false" | %name | "index" "(" dim ")"
           | %buffer "[" dim,* "]" | "load" "(" %buffer "[" dim,* "]" "," mask ("," other)? ")"
           | ("cast" | "bitcast" | "dot" | "pack") "<" dtype ">" "(" expr,* ")"

Infix operators have Python's precedence, but comparisons do not chain.  A bare number takes the dtype of the other
operand or of the buffer it is stored to.  Names get their dtypes in program order; loop variables are i64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from compiler.errors import did_you_mean
from compiler.ir import scalar
from compiler.ir.scalar import PRIMITIVES, Expr, IndexValue, Load, Number, Ref
from compiler.ir.symbolic.index_expr import IndexExpr
from compiler.ir.text.lexer import Cursor, Token
from compiler.ir.text.literal import is_representable, next_is_number, read_number, write_value
from compiler.ir.text.tile_printer import PRECEDENCE
from compiler.ir.text.type_parser import read_dim, read_dims, read_dtype
from compiler.ir.types import DType, boolean, i64

INFIX: Mapping[str, str] = {p.infix: p.name for p in PRIMITIVES.values() if p.infix}


@dataclass(frozen=True)
class NameScope:
    """The dtypes of the buffers and values in scope, by name."""

    buffers: dict[str, DType] = field(default_factory=dict)
    values: dict[str, DType] = field(default_factory=dict)

    def child_scope(self) -> NameScope:
        """Return a copy, so that names added to it are not visible in this scope."""
        return NameScope(dict(self.buffers), dict(self.values))


@dataclass(frozen=True)
class _UntypedLiteral:
    """A bare number whose dtype is inferred from its context."""

    value: Number
    token: Token


_Operand: TypeAlias = "Expr | _UntypedLiteral"


def expect_name(c: Cursor, names: Mapping[str, Any], what: str) -> Token:
    """Take the next token, which must be one of `names`; `what` describes these in the error."""
    name = c.expect_kind("value", f"a {what}'s %name")
    if name.text not in names:
        raise c.error(f"unknown {what} {name}{did_you_mean(name.text, names)}", name)
    return name


def read_typed_expr(c: Cursor, scope: NameScope) -> Expr:
    """Read an expression that is not a bare number."""
    at = c.next
    return as_typed_expr(c, read_expr(c, scope), None, at)


def as_typed_expr(c: Cursor, operand: _Operand, dtype: DType | None, at: Token) -> Expr:
    """Return `operand` as an expression; a bare number becomes a constant of `dtype`."""
    if isinstance(operand, Expr):
        return operand
    text = write_value(operand.value)
    if dtype is None:
        raise c.error(f"cannot infer the dtype of {text}; write {text}:f32", at)
    if not is_representable(operand.value, dtype):
        raise c.error(f"{text} is not representable in {dtype}", operand.token)
    return scalar.const(operand.value, dtype)


def _build_call(c: Cursor, primitive: str, operands: Sequence[_Operand], at: Token) -> Expr:
    rule = PRIMITIVES[primitive]
    if len(operands) != rule.arity:
        raise c.error(f"{primitive} takes {rule.arity} operands, not {len(operands)}", at)
    has_condition = rule.result_rule == "branch"
    dtype = next((o.dtype for o in operands[has_condition:] if isinstance(o, Expr)), None)
    args = [as_typed_expr(c, o, boolean if has_condition and k == 0 else dtype, at) for k, o in enumerate(operands)]
    try:
        return scalar.call_primitive(primitive, *args)
    except TypeError as error:
        raise c.error(str(error), at) from None


def read_expr(c: Cursor, scope: NameScope, min_precedence: int = 1) -> _Operand:
    """Read an expression whose infix operators have at least `min_precedence` (precedence climbing)."""
    left = _read_unary(c, scope)
    while c.next.kind == "mark" and PRECEDENCE.get(c.next.text, 0) >= min_precedence:
        operator = c.take()
        precedence = PRECEDENCE[operator.text]
        left = _build_call(c, INFIX[operator.text], [left, read_expr(c, scope, precedence + 1)], operator)
        if precedence == 1 and PRECEDENCE.get(c.next.text) == 1:
            raise c.error("comparisons do not chain; use brackets")
    return left


def _read_unary(c: Cursor, scope: NameScope) -> _Operand:
    if next_is_number(c):
        return _read_number(c)
    if c.next_is("-"):
        sign = c.take()
        return _build_call(c, "neg", [_read_unary(c, scope)], sign)
    if c.accept("("):
        inner = read_expr(c, scope)
        c.expect(")")
        return inner
    if c.next.kind == "value":
        if c.peek().text == "[":
            return _read_element(c, scope)
        name = expect_name(c, scope.values, "value")
        return Ref(scope.values[name.text], name.text)
    return _read_function(c, scope)


def _read_number(c: Cursor) -> _Operand:
    at, value = c.next, read_number(c)
    if isinstance(value, bool):
        return scalar.const(value, boolean)
    literal = _UntypedLiteral(value, at)
    return as_typed_expr(c, literal, read_dtype(c), at) if c.accept(":") else literal


def _read_element(c: Cursor, scope: NameScope) -> Load:
    buffer = expect_name(c, scope.buffers, "buffer")
    return Load(scope.buffers[buffer.text], buffer.text, read_dims(c))


def _read_function(c: Cursor, scope: NameScope) -> Expr:
    at = c.expect_kind("word", "an expression")
    if at.text in PRIMITIVES and PRIMITIVES[at.text].result_rule == "given":
        return _read_typed_call(c, scope, at)
    if at.text == "index":
        return _read_index(c)
    if at.text not in PRIMITIVES and at.text != "load":
        raise c.error(f"unknown primitive {at}{did_you_mean(at.text, [*PRIMITIVES, 'load', 'index'])}", at)
    if at.text == "load":
        return _read_load(c, scope)
    return _build_call(c, at.text, c.read_list("(", lambda: read_expr(c, scope), ")"), at)


def _read_typed_call(c: Cursor, scope: NameScope, at: Token) -> Expr:
    """Read a call of a primitive whose result dtype is given."""
    c.expect("<")
    dtype = read_dtype(c)
    c.expect(">")
    operands = c.read_list("(", lambda: read_typed_expr(c, scope), ")")
    try:
        return scalar.call_primitive(at.text, *operands, dtype=dtype)
    except TypeError as error:
        raise c.error(str(error), at) from error


def _read_index(c: Cursor) -> Expr:
    dtype = i64
    if c.accept("<"):
        dtype = read_dtype(c)
        c.expect(">")
    c.expect("(")
    value = read_dim(c)
    c.expect(")")
    return IndexValue(dtype, value) if isinstance(value, IndexExpr) else scalar.const(value, dtype)


def _read_load(c: Cursor, scope: NameScope) -> Expr:
    c.expect("(")
    element = _read_element(c, scope)
    c.expect(",")
    mask = _read_expr_of_type(c, scope, boolean)
    other = _read_expr_of_type(c, scope, element.dtype) if c.accept(",") else None
    c.expect(")")
    return replace(element, mask=mask, other=other)


def _read_expr_of_type(c: Cursor, scope: NameScope, dtype: DType) -> Expr:
    """Read an expression of type `dtype`."""
    at = c.next
    value = as_typed_expr(c, read_expr(c, scope), dtype, at)
    if value.dtype != dtype:
        raise c.error(f"expected {dtype}, found {value.dtype}", at)
    return value
