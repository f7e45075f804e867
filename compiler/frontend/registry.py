"""Registry of the conversions from ATen operators to Graph IR, by overload name.

    @converts("aten.square.default")
    def square(x: Node) -> Node:
        return apply_promoted(ops.mul, x, x)

A conversion takes the operator's arguments with tensors as `Node`s and sizes as `Dim`s, and returns a node or a tuple of
nodes (None for a result that is not computed).  Ops whose declaration names their overload (`aten=`) need none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import compiler.ir.ops  # noqa: F401  (fills the registry of ops)

Conversion = Callable[..., Any]
F = TypeVar("F", bound=Conversion)

_CONVERSIONS: dict[str, Conversion] = {}
_NEEDS_RESULT_SHAPE: set[str] = set()
_ACCEPTS_SIGNED_INDICES: set[str] = set()


class ConversionError(Exception):
    """Raised by a conversion for arguments that it does not support; the message gives the reason."""


def converts(*overloads: str, needs_shape: bool = False, signed_indices: bool = False) -> Callable[[F], F]:
    """Register the decorated function for `overloads`, such as "aten.add.Tensor".

    With `needs_shape`, it gets the shape that PyTorch infers for the result as keyword `shape`; sizes may be unbacked.
    With `signed_indices`, it accepts data-dependent indices that may be negative.
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


def converts_spatial(overload: str, *counts: int) -> Callable[[F], F]:
    """Register the decorated function for `overload` with each of `counts`, the number of spatial dimensions, for "#".

    It takes that number as its first argument.
    """

    def register(conversion: F) -> F:
        for count in counts:
            converts(overload.replace("#", str(count)))(partial(conversion, count))
        return conversion

    return register


def accepts_signed_indices(name: str) -> bool:
    """Return True if the conversion of an overload accepts data-dependent indices that may be negative."""
    return name in _ACCEPTS_SIGNED_INDICES


def needs_result_shape(name: str) -> bool:
    """Return True if the conversion of an overload takes the shape of its result."""
    return name in _NEEDS_RESULT_SHAPE
