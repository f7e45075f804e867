"""The conversions from ATen operators to Graph IR, by overload name.

    @converts("aten.square.default")
    def square(x: Node) -> Node:
        return apply(ops.mul, x, x)

A conversion takes the operator's arguments with tensors as `Node`s and sizes as `Dim`s, and returns a node, or a tuple of
them (None for a result that nobody can use).  Elementwise ops whose declaration names their overload need none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import compiler.ir.ops  # noqa: F401  (fills the registry of ops)

Conversion = Callable[..., Any]
F = TypeVar("F", bound=Conversion)

_CONVERSIONS: dict[str, Conversion] = {}
_NEEDS_RESULT_SHAPE: set[str] = set()
_ACCEPTS_SIGNED_INDICES: set[str] = set()


class ConversionError(Exception):
    """Raised by a conversion for arguments that it cannot express; the message says why."""


def converts(*overloads: str, needs_shape: bool = False, signed_indices: bool = False) -> Callable[[F], F]:
    """Register the decorated function for `overloads`, such as "aten.add.Tensor".

    One that is `shaped` is told the result's `shape` as PyTorch has found it, whose sizes data may decide.  One that is `signed`
    takes numbers that data decides, and that may be negative, as indices.
    """

    def register(conversion: F) -> F:
        for name in overloads:
            if name in _CONVERSIONS:
                raise ValueError(f"{name} is converted twice")
            _CONVERSIONS[name] = conversion
        _NEEDS_RESULT_SHAPE.update(overloads if needs_shape else ())
        _ACCEPTS_SIGNED_INDICES.update(overloads if signed_indices else ())
        return conversion

    return register


def accepts_signed_indices(name: str) -> bool:
    """Whether the conversion of an overload takes numbers that data decides as indices."""
    return name in _ACCEPTS_SIGNED_INDICES


def needs_result_shape(name: str) -> bool:
    """Whether the conversion of an overload is told the shape of its result."""
    return name in _NEEDS_RESULT_SHAPE
