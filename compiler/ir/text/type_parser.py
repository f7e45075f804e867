"""Parser of index expressions, layouts and types: the inverse of their `str`."""

from __future__ import annotations

from compiler.errors import did_you_mean
from compiler.ir.symbolic.index_expr import Dim, dynamic_size, floordiv, minimum, mod, var
from compiler.ir.text.lexer import Cursor, parse_all
from compiler.ir.types import DTYPES, PACKED_DTYPES, DType, Layout, PhysicalDim, TensorType, is_valid_extent


def parse_type(text: str) -> TensorType:
    """Parse a type, as in `f32[128, s0*4]{1, 0}`.  Raises ParseError."""
    return parse_all(text, read_type)


def read_type(c: Cursor) -> TensorType:
    """Read a dtype, a shape and an optional layout."""
    dtype = read_dtype(c)
    at, shape = c.next, read_dims(c)
    if invalid := [d for d in shape if not is_valid_extent(d)]:
        raise c.error(f"invalid dimension extent {invalid[0]}", at)
    return TensorType(dtype, shape, read_layout(c, len(shape)) if c.next_is("{") else None)


def read_dtype(c: Cursor) -> DType:
    token = c.expect_kind("word", "a dtype")
    known = {**DTYPES, **PACKED_DTYPES}
    if token.text not in known:
        raise c.error(f"unknown dtype {token}{did_you_mean(token.text, known)}", token)
    return known[token.text]


def read_layout(c: Cursor, rank: int | None = None) -> Layout:
    """Read a layout of a tensor of rank `rank`; None allows any."""
    return Layout(c.read_list("{", lambda: _read_physical_dim(c, rank), "}"))


def _read_physical_dim(c: Cursor, rank: int | None) -> PhysicalDim:
    at, dim = c.next, c.expect_integer()
    if rank is not None and dim >= rank:
        raise c.error(f"layout names dimension {dim} of a type of rank {rank}", at)
    if c.accept("+"):
        before, _, after = read_dim(c), c.expect(":"), read_dim(c)
        if not (is_valid_extent(before) and is_valid_extent(after)):
            raise c.error("negative margin", at)
        return PhysicalDim(dim, margin_before=before, margin_after=after)
    if not c.next_is("/", "%"):
        return PhysicalDim(dim)
    inner = c.take().text == "%"
    at, block = c.next, c.expect_integer()
    if block == 0:
        raise c.error("block of size 0", at)
    return PhysicalDim(dim, block, inner)


def read_size_declaration(c: Cursor) -> None:
    """Read `size s0 in 1..513 hint 128` and add the dynamic size to `c.dynamic_sizes`."""
    c.expect("size")
    at, _ = c.expect_kind("word", "a size's name"), c.expect("in")
    low, _, end, _ = c.expect_integer(), c.expect(".."), c.expect_integer(), c.expect("hint")
    size = dynamic_size(at.text, low, end - 1, c.expect_integer())
    if c.dynamic_sizes.setdefault(at.text, size) != size:
        raise c.error(f"{at} is declared twice", at)


def read_dims(c: Cursor) -> tuple[Dim, ...]:
    """Read index expressions in square brackets."""
    return c.read_list("[", lambda: read_dim(c), "]")


def read_dim(c: Cursor) -> Dim:
    """Read an index expression with Python's precedence; variables are written with or without `%`."""
    total = _read_product(c)
    while c.next_is("+", "-"):
        total = total + _read_product(c) if c.take().text == "+" else total - _read_product(c)
    return total


def _read_product(c: Cursor) -> Dim:
    total = _read_factor(c)
    while c.next_is("*", "//", "%"):
        operator = c.take()
        factor = _read_factor(c)
        if factor == 0 and operator.text != "*":
            raise c.error("division by zero", operator)
        total = total * factor if operator.text == "*" else (floordiv if operator.text == "//" else mod)(total, factor)
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
        _, lhs, _, rhs, _ = c.expect("("), read_dim(c), c.expect(","), read_dim(c), c.expect(")")
        return minimum(lhs, rhs)
    if c.next.kind == "word" and c.next.text in c.dynamic_sizes:
        return c.dynamic_sizes[c.take().text]
    if c.next.kind in ("value", "word"):
        name = c.take()
        if name.kind == "value" and c.index_names is not None and name.text not in c.index_names:
            raise c.error(f"{name} is not defined here{did_you_mean(name.text, c.index_names)}", name)
        return var(name.text)
    if c.next.kind == "int":
        return c.expect_integer()
    raise c.error(f"expected an index expression, found {c.next}")
