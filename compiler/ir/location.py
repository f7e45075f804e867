"""Source location given to newly built nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from compiler.errors import Loc

_CURRENT: ContextVar[Loc | None] = ContextVar("location", default=None)


@contextmanager
def default_loc(loc: Loc | None) -> Iterator[None]:
    """Give `loc` to nodes built inside the context without a location; None: they take an operand's location."""
    token = _CURRENT.set(loc)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_loc() -> Loc | None:
    """Return the default location of new nodes, or None."""
    return _CURRENT.get()
