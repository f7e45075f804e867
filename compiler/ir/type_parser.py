"""Text to dimensions, layouts and types.  The inverse of their `str`."""

from __future__ import annotations

from compiler.ir.index import Dim, floordiv, minimum, mod, size, var
from compiler.ir.lexer import Cursor, closest
from compiler.ir.types import DTYPES, Digit, DType, Layout, TensorType, is_size


def parse_type(text: str) -> TensorType:
    """The type that `text` spells: `f32[128, s0*4]{1, 0}`.  Raises ParseError."""
    c = Cursor(text)
    with c.guard():
        result = read_type(c)
        c.end()
    return result


def parse_dim(text: str) -> Dim:
    """The index expression that `text` spells: `s0*4 + 1`.  Raises ParseError."""
    c = Cursor(text)
    with c.guard():
        result = read_dim(c)
        c.end()
    return result


def read_type(c: Cursor) -> TensorType:
    """A dtype, a shape and perhaps a layout."""
    dtype = read_dtype(c)
    at, shape = c.next, read_dims(c)
    if wrong := [d for d in shape if not is_size(d)]:
        raise c.fail(f"a dimension cannot have {wrong[0]} elements", at)
    return TensorType(dtype, shape, read_layout(c, len(shape)) if c.sees("{") else None)


def read_dtype(c: Cursor) -> DType:
    token = c.kind("word", "a dtype")
    if token.text not in DTYPES:
        raise c.fail(f"unknown dtype {token}{closest(token.text, DTYPES)}", token)
    return DTYPES[token.text]


def read_layout(c: Cursor, rank: int | None = None) -> Layout:
    """A layout of a tensor of `rank` dimensions (of any, where it is None)."""
    return Layout(c.items("{", lambda: _read_digit(c, rank), "}"))


def _read_digit(c: Cursor, rank: int | None) -> Digit:
    at, dim = c.next, c.integer()
    if rank is not None and dim >= rank:
        raise c.fail(f"layout names dimension {dim} of a type of rank {rank}", at)
    if c.accept("+"):
        before, _, after = read_dim(c), c.expect(":"), read_dim(c)
        if not (is_size(before) and is_size(after)):
            raise c.fail("a margin of less than nothing", at)
        return Digit(dim, before=before, after=after)
    if not c.sees("/", "%"):
        return Digit(dim)
    inner = c.take().text == "%"
    at, block = c.next, c.integer()
    if block == 0:
        raise c.fail("block of size 0", at)
    return Digit(dim, block, inner)


def read_size(c: Cursor) -> None:
    """The declaration of a size, which means itself from here on: `size s0 in 1..513 like 128`."""
    c.expect("size")
    at, _ = c.kind("word", "a size's name"), c.expect("in")
    low, _, end, _ = c.integer(), c.expect(".."), c.integer(), c.expect("like")
    known = size(at.text, low, end - 1, c.integer())
    if c.sizes.setdefault(at.text, known) != known:
        raise c.fail(f"{at} is declared twice", at)


def read_dims(c: Cursor) -> tuple[Dim, ...]:
    """Index expressions in square brackets."""
    return c.items("[", lambda: read_dim(c), "]")


def read_dim(c: Cursor) -> Dim:
    """A sum of products, as Python groups them; variables with or without their `%`."""
    total = _product(c)
    while c.sees("+", "-"):
        total = total + _product(c) if c.take().text == "+" else total - _product(c)
    return total


def _product(c: Cursor) -> Dim:
    total = _factor(c)
    while c.sees("*", "//", "%"):
        sign = c.take()
        other = _factor(c)
        if other == 0 and sign.text != "*":
            raise c.fail("division by zero", sign)
        total = total * other if sign.text == "*" else (floordiv if sign.text == "//" else mod)(total, other)
    return total


def _factor(c: Cursor) -> Dim:
    if c.accept("-"):
        return -_factor(c)
    if c.accept("("):
        inner = read_dim(c)
        c.expect(")")
        return inner
    if c.sees("min") and c.ahead().text == "(":
        c.take()
        _, one, _, other, _ = c.expect("("), read_dim(c), c.expect(","), read_dim(c), c.expect(")")
        return minimum(one, other)
    if c.next.kind == "word" and c.next.text in c.sizes:
        return c.sizes[c.take().text]
    if c.next.kind in ("value", "word"):
        return var(c.take().text)
    if c.next.kind == "int":
        return c.integer()
    raise c.fail(f"expected an index expression, found {c.next}")
