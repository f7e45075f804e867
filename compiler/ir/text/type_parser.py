"""Text to dimensions, layouts and types.  The inverse of their `str`."""

from __future__ import annotations

from compiler.ir.symbolic.index_expr import Dim, dynamic_size, floordiv, minimum, mod, var
from compiler.ir.text.lexer import Cursor, did_you_mean
from compiler.ir.types import DTYPES, DType, Layout, PhysicalDim, TensorType, is_valid_extent


def parse_type(text: str) -> TensorType:
    """The type that `text` spells: `f32[128, s0*4]{1, 0}`.  Raises ParseError."""
    c = Cursor(text)
    with c.nesting_guard():
        result = read_type(c)
        c.expect_end()
    return result


def parse_dim(text: str) -> Dim:
    """The index expression that `text` spells: `s0*4 + 1`.  Raises ParseError."""
    c = Cursor(text)
    with c.nesting_guard():
        result = read_dim(c)
        c.expect_end()
    return result


def read_type(c: Cursor) -> TensorType:
    """A dtype, a shape and perhaps a layout."""
    dtype = read_dtype(c)
    at, shape = c.next, read_dims(c)
    if wrong := [d for d in shape if not is_valid_extent(d)]:
        raise c.error(f"a dimension cannot have {wrong[0]} elements", at)
    return TensorType(dtype, shape, read_layout(c, len(shape)) if c.next_is("{") else None)


def read_dtype(c: Cursor) -> DType:
    token = c.expect_kind("word", "a dtype")
    if token.text not in DTYPES:
        raise c.error(f"unknown dtype {token}{did_you_mean(token.text, DTYPES)}", token)
    return DTYPES[token.text]


def read_layout(c: Cursor, rank: int | None = None) -> Layout:
    """A layout of a tensor of `rank` dimensions (of any, where it is None)."""
    return Layout(c.read_list("{", lambda: _read_physical_dim(c, rank), "}"))


def _read_physical_dim(c: Cursor, rank: int | None) -> PhysicalDim:
    at, dim = c.next, c.expect_integer()
    if rank is not None and dim >= rank:
        raise c.error(f"layout names dimension {dim} of a type of rank {rank}", at)
    if c.accept("+"):
        before, _, after = read_dim(c), c.expect(":"), read_dim(c)
        if not (is_valid_extent(before) and is_valid_extent(after)):
            raise c.error("a margin of less than nothing", at)
        return PhysicalDim(dim, margin_before=before, margin_after=after)
    if not c.next_is("/", "%"):
        return PhysicalDim(dim)
    inner = c.take().text == "%"
    at, block = c.next, c.expect_integer()
    if block == 0:
        raise c.error("block of size 0", at)
    return PhysicalDim(dim, block, inner)


def read_size_declaration(c: Cursor) -> None:
    """The declaration of a size, which means itself from here on: `size s0 in 1..513 hint 128`."""
    c.expect("size")
    at, _ = c.expect_kind("word", "a size's name"), c.expect("in")
    low, _, end, _ = c.expect_integer(), c.expect(".."), c.expect_integer(), c.expect("hint")
    known = dynamic_size(at.text, low, end - 1, c.expect_integer())
    if c.dynamic_sizes.setdefault(at.text, known) != known:
        raise c.error(f"{at} is declared twice", at)


def read_dims(c: Cursor) -> tuple[Dim, ...]:
    """Index expressions in square brackets."""
    return c.read_list("[", lambda: read_dim(c), "]")


def read_dim(c: Cursor) -> Dim:
    """A sum of products, as Python groups them; variables with or without their `%`."""
    total = _read_product(c)
    while c.next_is("+", "-"):
        total = total + _read_product(c) if c.take().text == "+" else total - _read_product(c)
    return total


def _read_product(c: Cursor) -> Dim:
    total = _read_factor(c)
    while c.next_is("*", "//", "%"):
        sign = c.take()
        other = _read_factor(c)
        if other == 0 and sign.text != "*":
            raise c.error("division by zero", sign)
        total = total * other if sign.text == "*" else (floordiv if sign.text == "//" else mod)(total, other)
    return total


def _read_factor(c: Cursor) -> Dim:
    if c.accept("-"):
        return -_read_factor(c)
    if c.accept("("):
        inner = read_dim(c)
        c.expect(")")
        return inner
    if c.next_is("min") and c.peek().text == "(":
        c.take()
        _, one, _, other, _ = c.expect("("), read_dim(c), c.expect(","), read_dim(c), c.expect(")")
        return minimum(one, other)
    if c.next.kind == "word" and c.next.text in c.dynamic_sizes:
        return c.dynamic_sizes[c.take().text]
    if c.next.kind in ("value", "word"):
        return var(c.take().text)
    if c.next.kind == "int":
        return c.expect_integer()
    raise c.error(f"expected an index expression, found {c.next}")
