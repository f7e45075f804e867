"""The line of the user's program for which nodes are being built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from compiler.errors import Loc

_CURRENT: ContextVar[Loc | None] = ContextVar("location", default=None)


@contextmanager
def default_loc(loc: Loc | None) -> Iterator[None]:
    """Nodes built inside come from `loc` unless they say otherwise; None leaves it to their operands."""
    token = _CURRENT.set(loc)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_loc() -> Loc | None:
    """The line nodes are being built for, if one is known."""
    return _CURRENT.get()
