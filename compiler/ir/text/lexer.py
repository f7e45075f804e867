"""Tokens of IR text, and a cursor that reads them and knows where it stands.

    value   %x  %layers.0.weight  %"any text"        global  @name  @"any text"
    word    graph  f32  s0                           string  "text"
    int     12                                       float   1.5  1e-05
    mark    -> .. // << >> <= >= == !=  and single characters

A `%` that touches the word, number, value or `)` before it is the remainder: `%i%4`, `s0%n`.  A `#` starts a comment.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
T = TypeVar("T")
_SIGILS = {"value": "%", "global": "@"}


class Token(NamedTuple):
    """One token; `text` is a name without its sigil, or a string without its quotes and escapes."""

    kind: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end of the text"
        return json.dumps(self.text) if self.kind == "string" else f"`{_SIGILS.get(self.kind, '')}{self.text}`"


def format_name(sigil: str, name: str) -> str:
    """`name` behind `%` or `@`, quoted where it is not a plain name."""
    return sigil + (name if re.fullmatch(_NAME, name, re.ASCII) else quote(name))


def quote(text: str) -> str:
    """`text` as a string token."""
    return json.dumps(text, ensure_ascii=False)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint that names the most similar of `known`, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def tokenize(text: str) -> Iterator[Token]:
    """The tokens of `text`, then one of kind "end".  Raises ParseError."""
    at, line, start = 0, 1, 0
    operand_end = -1  # where the last token ended, if a remainder may follow it
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ParseError(f"unexpected character {text[at]!r}", line, at - start + 1, _source_line(text, line))
        kind, raw = found.lastgroup or "", found.group()
        if kind == "value" and at == operand_end:
            kind, raw = "mark", "%"
        if kind != "space":
            try:
                yield Token(kind, _unquote(kind, raw), line, at - start + 1)
            except ValueError:
                raise ParseError("malformed string", line, at - start + 1, _source_line(text, line)) from None
        at += len(raw)
        if kind == "space" and "\n" in raw:
            line, start = line + raw.count("\n"), at - len(raw) + raw.rindex("\n") + 1
        elif kind in ("int", "word", "value") or raw == ")":
            operand_end = at
    yield Token("end", "", line, at - start + 1)


def _unquote(kind: str, raw: str) -> str:
    name = raw[1:] if kind in _SIGILS else raw
    return str(json.loads(name, strict=False)) if name.startswith('"') else name


def _source_line(text: str, number: int) -> str:
    return text.split("\n")[number - 1].rstrip("\r")


class Cursor:
    """Reads tokens one after the other; every error it makes says line and column."""

    def __init__(self, text: str) -> None:
        self.source = text
        self.tokens = list(tokenize(text))
        self.position = 0
        self.dynamic_sizes: dict[str, IndexExpr] = {}  # those declared so far, by name

    @property
    def next(self) -> Token:
        """The token that `take` would give."""
        return self.tokens[self.position]

    def peek(self, count: int = 1) -> Token:
        """The token `count` places after the next one."""
        return self.tokens[min(self.position + count, len(self.tokens) - 1)]

    def next_is(self, *texts: str) -> bool:
        """Whether the next token is one of these words or marks."""
        return self.next.kind in ("word", "mark") and self.next.text in texts

    def take(self) -> Token:
        token = self.next
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it is this word or mark."""
        found = self.next_is(text)
        if found:
            self.take()
        return found

    def expect(self, text: str) -> Token:
        """Take this word or mark."""
        if not self.next_is(text):
            raise self.error(f"expected `{text}`, found {self.next}")
        return self.take()

    def expect_kind(self, kind: str, what: str = "") -> Token:
        """Take a token of this kind; `what` names it in the error."""
        if self.next.kind != kind:
            raise self.error(f"expected {what or f'a {kind}'}, found {self.next}")
        return self.take()

    def expect_integer(self) -> int:
        """Take a number without sign or fraction."""
        token = self.expect_kind("int", "an integer")
        try:
            return int(token.text)
        except ValueError:  # Python converts 4300 digits and no more
            raise self.error("integer is too long", token) from None

    def read_list(self, opening: str, read_item: Callable[[], T], closing: str) -> tuple[T, ...]:
        """Opening bracket, items with commas between them, closing bracket."""
        self.expect(opening)
        found: list[T] = []
        while not self.accept(closing):
            if found and not self.accept(","):
                raise self.error(f"expected `,` or `{closing}`, found {self.next}")
            found.append(read_item())
        return tuple(found)

    def expect_end(self) -> None:
        """Require that nothing is left."""
        if self.next.kind != "end":
            raise self.error(f"expected the end of the text, found {self.next}")

    def error(self, message: str, token: Token | None = None) -> ParseError:
        """The error for `message` at `token`, or at the next one."""
        t = token or self.next
        return ParseError(message, t.line, t.column, _source_line(self.source, t.line))

    @contextmanager
    def nesting_guard(self) -> Iterator[None]:
        """Turns running out of stack on deeply nested text into a ParseError."""
        try:
            yield
        except RecursionError:
            raise self.error("nested too deeply") from None
