"""The `resources` section: contents of large constants, after the graph or program that uses them.

resources ::= "resources" "{" (@name "=" base64 string)* "}"
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from compiler.errors import did_you_mean
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import ConstantData
from compiler.ir.text.lexer import Cursor, Token, format_name, parse_all
from compiler.ir.text.literal import expect_static_shape
from compiler.ir.types import TensorType

T = TypeVar("T")


class Resources:
    """Contents of constants by name, `given` by the caller or read from the text's `resources` section."""

    def __init__(self, c: Cursor, given: Mapping[str, ConstantData] | None) -> None:
        self.decoded = dict(given or {})
        self.encoded = dict(_find_section(c))

    def get(self, c: Cursor, name: Token, type: TensorType) -> ConstantData:
        """Return the constant `name`, decoded once; ParseError if it is unknown or not of `type`."""
        if name.text not in self.decoded and name.text in self.encoded:
            self.decoded[name.text] = ConstantData(type.dtype, _decode(c, self.encoded[name.text], type), name.text)
        data = self.decoded.get(name.text)
        if data is None:
            hint = did_you_mean(name.text, [*self.decoded, *self.encoded])
            raise c.error(f"no contents for {name}{hint or '; pass `resources`, or print with full=True'}", name)
        if (data.dtype, data.array.shape) != (type.dtype, type.shape):
            raise c.error(f"{name} holds {TensorType(data.dtype, data.array.shape)}, not {type}", name)
        return data


def write_resources(data: Mapping[str, ConstantData]) -> str:
    """Return the `resources` section for the constants `data`."""
    lines = [f'  {format_name("@", n)} = "{base64.b64encode(d.array.tobytes()).decode()}"' for n, d in data.items()]
    return "\n".join(["resources {", *lines, "}"])


def parse_with_resources(
    text: str, read: Callable[[Cursor, Resources], T], given: Mapping[str, ConstantData] | None
) -> T:
    """Return what `read` makes of a text before its `resources` section, if it has one.  Raises ParseError."""

    def read_both(c: Cursor) -> T:
        result = read(c, Resources(c, given))
        if c.accept("resources"):
            list(_entries(c))
        return result

    return parse_all(text, read_both)


def _find_section(c: Cursor) -> Iterator[tuple[str, Token]]:
    """Yield the entries of the `resources` section after the cursor, whose position is unchanged."""
    position = c.position
    for k in range(1, len(c.tokens) - 1):
        before, token, after = c.tokens[k - 1 : k + 2]
        if (token.kind, token.text, before.text, after.text) == ("word", "resources", "}", "{"):
            c.position = k + 1
            yield from _entries(c)
            break
    c.position = position


def _entries(c: Cursor) -> Iterator[tuple[str, Token]]:
    c.expect("{")
    while not c.accept("}"):
        name = c.expect_kind("global", "a resource's @name")
        c.expect("=")
        yield name.text, c.expect_kind("string", "base64 text")


def _decode(c: Cursor, text: Token, type: TensorType) -> Array:
    shape = expect_static_shape(c, type, text)
    try:
        raw = base64.b64decode(text.text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise c.error(f"not base64: {error}", text) from None
    if type.dtype.kind == "bool":
        raw = bytes(b != 0 for b in raw)
    try:
        return np.frombuffer(raw, type.dtype.storage).reshape(shape).copy()
    except ValueError:
        raise c.error(f"{len(raw)} bytes do not match the size of {type}", text) from None
