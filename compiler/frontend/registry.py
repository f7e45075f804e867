"""The conversions from ATen operators to Graph IR, by overload name.

    @converts("aten.square.default")
    def square(x: Node) -> Node:
        return apply(ops.mul, x, x)

A conversion takes the operator's arguments with tensors as `Node`s and sizes as `Dim`s, and returns a node, or a tuple of
them (None for a result that nobody can use).  Elementwise ops whose declaration names their overload need none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

import compiler.ir.ops  # noqa: F401  (fills the registry of ops)
from compiler.frontend.promotion import apply
from compiler.ir.op import OPS
from compiler.ir.structure import Elementwise

Conversion = Callable[..., Any]
F = TypeVar("F", bound=Conversion)

_CONVERSIONS: dict[str, Conversion] = {}
_SHAPED: set[str] = set()
_SIGNED: set[str] = set()


class Refusal(Exception):
    """Raised by a conversion for arguments that it cannot express; the message says why."""


def converts(*overloads: str, shaped: bool = False, signed: bool = False) -> Callable[[F], F]:
    """Register the decorated function for `overloads`, such as "aten.add.Tensor".

    One that is `shaped` is told the result's `shape` as PyTorch has found it, whose sizes data may decide.  One that is `signed`
    takes numbers that data decides, and that may be negative, as indices.
    """

    def register(conversion: F) -> F:
        for name in overloads:
            if name in _CONVERSIONS:
                raise ValueError(f"{name} is converted twice")
            _CONVERSIONS[name] = conversion
        _SHAPED.update(overloads if shaped else ())
        _SIGNED.update(overloads if signed else ())
        return conversion

    return register


@cache
def conversions() -> dict[str, Conversion]:
    """Every conversion: those written out and those that op declarations imply."""
    import compiler.frontend.aten  # noqa: F401  (registers)

    table = {name: partial(apply, o) for o in OPS.values() if isinstance(o.structure, Elementwise) for name in o.aten}
    return {**table, **_CONVERSIONS}


def is_signed(name: str) -> bool:
    """Whether the conversion of an overload takes numbers that data decides as indices."""
    return name in _SIGNED


def is_shaped(name: str) -> bool:
    """Whether the conversion of an overload is told the shape of its result."""
    return name in _SHAPED
