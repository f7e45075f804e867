"""Tokens of IR text, and a cursor that reads them and reports error positions.

    value   %x  %layers.0.weight  %"any text"        global  @name  @"any text"
    word    graph  f32  s0                           string  "text"
    int     12                                       float   1.5  1e-05
    mark    -> .. // << >> <= >= == !=  and single characters

A `%` directly after a word, number, value or `)` is the remainder operator: `%i%4`, `s0%n`.  A `#` starts a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, TypeVar

from compiler.errors import ParseError
from compiler.ir.symbolic.index_expr import IndexExpr

_NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_TOKEN = re.compile(
    rf"""(?P<space>[ \t\r\n]+|\#[^\n]*)
    |(?P<float>\d+\.(?!\.)\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    |(?P<int>\d+)
    |(?P<string>{_STRING})
    |(?P<value>%(?:{_NAME}|{_STRING}))
    |(?P<global>@(?:{_NAME}|{_STRING}))
    |(?P<word>{_NAME})
    |(?P<mark>->|\.\.|//|<<|>>|<=|>=|==|!=|[()\[\]{{}},:=+\-*/%<>&|^])""",
    re.VERBOSE | re.ASCII,
)
VALUE = re.compile(rf'(?<![\w")])%(?:{_NAME}|{_STRING})', re.ASCII)
"""Name of a value with its sigil; directly after an operand, `%` is the remainder operator."""

T = TypeVar("T")
_SIGILS = {"value": "%", "global": "@"}


class Token(NamedTuple):
    """One token; `text` is a name without its sigil, or a string without quotes and escapes."""

    kind: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        if self.kind == "end":
            return "end of input"
        return json.dumps(self.text) if self.kind == "string" else f"`{_SIGILS.get(self.kind, '')}{self.text}`"


def format_name(sigil: str, name: str) -> str:
    """Return `name` after its sigil `%` or `@`, quoted if it is not an identifier."""
    return sigil + (name if re.fullmatch(_NAME, name, re.ASCII) else quote(name))


def quote(text: str) -> str:
    """Return `text` as a string token."""
    return json.dumps(text, ensure_ascii=False)


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of `text`, then one of kind "end".  Raises ParseError."""
    at, line, line_start = 0, 1, 0
    operand_end = -1  # end of the last token after which a `%` is the remainder operator
    while at < len(text):
        match, column = _TOKEN.match(text, at), at - line_start + 1
        if match is None:
            raise ParseError(f"unexpected character {text[at]!r}", line, column, _source_line(text, line))
        kind, raw = match.lastgroup or "", match.group()
        if kind == "value" and at == operand_end:
            kind, raw = "mark", "%"
        if kind != "space":
            try:
                yield Token(kind, _unquote(kind, raw), line, column)
            except ValueError:
                raise ParseError("malformed string", line, column, _source_line(text, line)) from None
        at += len(raw)
        if kind == "space" and "\n" in raw:
            line, line_start = line + raw.count("\n"), at - len(raw) + raw.rindex("\n") + 1
        elif kind in ("int", "word", "value") or raw == ")":
            operand_end = at
    yield Token("end", "", line, at - line_start + 1)


def _unquote(kind: str, raw: str) -> str:
    name = raw[1:] if kind in _SIGILS else raw
    return str(json.loads(name, strict=False)) if name.startswith('"') else name


def _source_line(text: str, number: int) -> str:
    return text.split("\n")[number - 1].rstrip("\r")


class Cursor:
    """A position in a sequence of tokens; its errors have a line and a column.

    `dynamic_sizes` holds the sizes declared so far, by name; `index_names` the %names that index expressions may use, None
    for any.
    """

    def __init__(self, text: str) -> None:
        self.source = text
        self.tokens = list(tokenize(text))
        self.position = 0
        self.dynamic_sizes: dict[str, IndexExpr] = {}
        self.index_names: Collection[str] | None = None

    @property
    def next(self) -> Token:
        """The next token, not consumed."""
        return self.tokens[self.position]

    def peek(self, count: int = 1) -> Token:
        """Return the token `count` tokens after the next one, without consuming any."""
        return self.tokens[min(self.position + count, len(self.tokens) - 1)]

    def next_is(self, *texts: str) -> bool:
        """Return True if the next token is one of these words or marks."""
        return self.next.kind in ("word", "mark") and self.next.text in texts

    def take(self) -> Token:
        """Consume and return the next token."""
        token = self.next
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def accept(self, text: str) -> bool:
        """Consume the next token and return True if it is this word or mark, else return False."""
        return self.next_is(text) and bool(self.take())

    def expect(self, text: str) -> Token:
        """Consume this word or mark, or raise ParseError."""
        if not self.next_is(text):
            raise self.error(f"expected `{text}`, found {self.next}")
        return self.take()

    def expect_kind(self, kind: str, what: str = "") -> Token:
        """Consume a token of this kind, or raise ParseError; `what` describes it in the error."""
        if self.next.kind != kind:
            raise self.error(f"expected {what or f'a {kind}'}, found {self.next}")
        return self.take()

    def expect_integer(self) -> int:
        """Consume an integer without sign."""
        token = self.expect_kind("int", "an integer")
        try:
            return int(token.text)
        except ValueError:  # Python's limit is 4300 digits
            raise self.error("integer is too long", token) from None

    def read_list(self, opening: str, read_item: Callable[[], T], closing: str) -> tuple[T, ...]:
        """Read comma-separated items between an opening and a closing bracket."""
        self.expect(opening)
        items: list[T] = []
        while not self.accept(closing):
            if items and not self.accept(","):
                raise self.error(f"expected `,` or `{closing}`, found {self.next}")
            items.append(read_item())
        return tuple(items)

    def error(self, message: str, token: Token | None = None) -> ParseError:
        """Return the error for `message` at `token`, by default the next one."""
        t = token or self.next
        return ParseError(message, t.line, t.column, _source_line(self.source, t.line))


def parse_all(text: str, read: Callable[[Cursor], T]) -> T:
    """Return what `read` makes of a text, all of whose tokens it takes.  Raises ParseError."""
    c = Cursor(text)
    try:
        result = read(c)
    except RecursionError:
        raise c.error("nested too deeply") from None
    if c.next.kind != "end":
        raise c.error(f"expected end of input, found {c.next}")
    return result
