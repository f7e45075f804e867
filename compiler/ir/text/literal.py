"""Parsing and printing of attribute values and of the contents of constants.

    value ::= int | float | "true" | "false" | "none" | string | dim | dtype | type | layout | "[" value,* "]" | graph
    array ::= number | "[" array,* "]"                 a complex number is a pair of numbers

Printing and parsing preserves every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from compiler.ir.float_format import Array
from compiler.ir.graph.constant import ConstantData, to_storage
from compiler.ir.graph.graph import Graph
from compiler.ir.scalar import Number
from compiler.ir.symbolic.index_expr import IndexExpr
from compiler.ir.text.lexer import Cursor, Token, quote
from compiler.ir.text.type_parser import read_dim, read_dtype, read_layout, read_type
from compiler.ir.types import DTYPES, DType, Layout, TensorType, c64, c128, f32, f64

MAX_INLINE_ELEMENTS = 16
"""Largest number of elements of a constant that are written as numbers; chosen empirically, for readability."""

COMPLEX_COMPONENTS: Mapping[DType, DType] = {c64: f32, c128: f64}
"""The dtype of the real and the imaginary part of a complex number."""

_KEYWORD_VALUES: Mapping[str, Any] = {
    "true": True,
    "false": False,
    "none": None,
    "inf": float("inf"),
    "nan": float("nan"),
}


def write_value(value: Any, write_graph: Callable[[Graph], str] | None = None) -> str:
    """Return an attribute value as text; its `repr` in angle brackets, which does not parse, if it has no text form."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, (IndexExpr, DType, TensorType, Layout)):
        return str(value)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(write_value(v, write_graph) for v in value) + "]"
    if isinstance(value, Graph) and write_graph:
        return write_graph(value)
    return f"<{value!r}>"


def read_value(c: Cursor, read_graph: Callable[[Cursor], Graph] | None = None) -> Any:
    """Read an attribute value; lists become tuples."""
    if next_is_float(c):
        return read_number(c)
    if c.next.kind == "string":
        return c.take().text
    if c.next_is("["):
        return c.read_list("[", lambda: read_value(c, read_graph), "]")
    if c.next_is("{"):
        return read_layout(c)
    if c.next_is(*_KEYWORD_VALUES):
        return _KEYWORD_VALUES[c.take().text]
    if c.next_is(*DTYPES):
        return read_type(c) if c.peek().text == "[" else read_dtype(c)
    if read_graph and c.next_is("graph") and (c.peek().text == "(" or c.peek().kind == "global"):
        return read_graph(c)
    return read_dim(c)


def read_attrs(c: Cursor, read_graph: Callable[[Cursor], Graph] | None = None) -> dict[str, Any]:
    """Read `{name=value, ...}`; return an empty dict if there is no brace."""
    attrs: dict[str, Any] = {}

    def read_attr() -> None:
        name = c.expect_kind("word", "an attribute's name")
        if name.text in attrs:
            raise c.error(f"attribute {name} is given twice", name)
        c.expect("=")
        attrs[name.text] = read_value(c, read_graph)

    if c.next_is("{"):
        c.read_list("{", read_attr, "}")
    return attrs


def next_is_float(c: Cursor) -> bool:
    """Return True if the next tokens are a float, with or without a sign."""
    token = c.peek() if c.next_is("-") else c.next
    return token.kind == "float" or (token.kind == "word" and token.text in ("inf", "nan"))


def next_is_number(c: Cursor) -> bool:
    """Return True if the next tokens are a number or a bool."""
    return next_is_float(c) or c.next_is("true", "false") or (c.peek() if c.next_is("-") else c.next).kind == "int"


def read_number(c: Cursor) -> Number:
    """Read a number, with or without a sign, or a bool."""
    if c.next_is("true", "false"):
        return c.take().text == "true"
    negative = c.accept("-")
    if c.next.kind == "int":
        value: Number = c.expect_integer()
    elif next_is_float(c) and not c.next_is("-"):
        value = float(c.take().text)
    else:
        raise c.error(f"expected a number, found {c.next}")
    return -value if negative else value


def is_representable(value: Number, dtype: DType) -> bool:
    """Return True if `dtype` can represent `value`; floats may round."""
    if isinstance(value, bool):
        return dtype.kind == "bool"
    if dtype.is_float:
        return isinstance(value, float) or abs(value) < 1 << 1023
    if isinstance(value, float) or dtype.kind == "bool":
        return False
    info = np.iinfo(dtype.numpy)
    return bool(info.min <= value <= info.max)


def write_number(value: Any, dtype: DType) -> str:
    """Return the shortest text that parses to a NumPy scalar's bits in `dtype`."""
    if dtype.kind == "bool":
        return str(bool(value)).lower()
    return str(dtype.numpy.type(value)) if dtype.is_float else str(int(value))


def write_array(data: ConstantData) -> str | None:
    """Return the numbers of a small constant; None if it is large or its text would not parse to the same bits."""
    if component := COMPLEX_COMPONENTS.get(data.dtype):
        return write_array(ConstantData(component, data.array.reshape(*data.array.shape, 1).view(component.numpy)))
    if data.array.size > MAX_INLINE_ELEMENTS:
        return None
    texts = [write_number(v, data.dtype) for v in data.numpy_values.reshape(-1)]
    reparsed = to_storage(np.array([_parse_number(t, data.dtype) for t in texts]), data.dtype)
    return _nest_brackets(texts, data.array.shape) if reparsed.tobytes() == data.array.tobytes() else None


def _parse_number(text: str, dtype: DType) -> Number:
    return text == "true" if dtype.kind == "bool" else float(text) if dtype.is_float else int(text)


def _nest_brackets(texts: list[str], shape: tuple[int, ...]) -> str:
    """Nest `texts` in brackets by `shape`; an empty array of any rank is `[]`."""
    if not shape:
        return texts[0]
    step = len(texts) // shape[0] if texts else 1
    rows = [_nest_brackets(texts[k : k + step], shape[1:]) for k in range(0, len(texts), step)]
    return f"[{', '.join(rows)}]"


def read_array(c: Cursor, type: TensorType) -> Array:
    """Read the contents of a constant of `type`: nested lists of its shape."""
    if component := COMPLEX_COMPONENTS.get(type.dtype):
        pairs = read_array(c, TensorType(component, (*type.shape, 2)))
        return pairs.reshape(-1).view(type.dtype.numpy).reshape(pairs.shape[:-1])
    start = c.next
    shape = expect_static_shape(c, type, start)
    if 0 in shape:
        c.expect("[")
        c.expect("]")
        return _empty_array(c, type, start)
    numbers = list(_read_numbers(c, shape, type.dtype))
    return to_storage(np.array(numbers), type.dtype).reshape(shape)


def _read_numbers(c: Cursor, shape: tuple[int, ...], dtype: DType) -> Iterator[Number]:
    if shape:
        c.expect("[")
        for k in range(shape[0]):
            if k:
                c.expect(",")
            yield from _read_numbers(c, shape[1:], dtype)
        c.expect("]")
        return
    token, value = c.next, read_number(c)
    if not is_representable(value, dtype):
        raise c.error(f"{write_value(value)} is not representable in {dtype}", token)
    yield value


def expect_static_shape(c: Cursor, type: TensorType, at: Token) -> tuple[int, ...]:
    """Return the shape of a constant of `type`; ParseError if it is not static or has more than 32 dimensions."""
    if not type.is_static or any(d < 0 for d in type.static_shape()) or type.rank > 32:
        raise c.error(f"the type of a constant must be static and of at most rank 32, got {type}", at)
    return type.static_shape()


def _empty_array(c: Cursor, type: TensorType, at: Token) -> Array:
    try:
        return np.zeros(expect_static_shape(c, type, at), type.dtype.storage)
    except ValueError as error:
        raise c.error(f"{type}: {error}", at) from None
