"""Constants of graphs and programs: their elements, and those that are computed when they are wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.ir.scalar import round_to
from compiler.ir.types import DType

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, eq=False)
class ConstantData:
    """The elements of a constant: a dense row-major array of `dtype` (bf16 as its 16 bits in uint16).

    `name` is the parameter's name in the user's module.  Compares by identity: weights are shared, never copied.
    """

    dtype: DType
    array: np.ndarray[Any, Any]
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def numpy_values(self) -> np.ndarray[Any, Any]:
        """The elements as `dtype.numpy` holds them (bf16 as float32)."""
        if self.dtype.name != "bf16":
            return self.array
        return (self.array.astype(np.uint32) << np.uint32(16)).view(np.float32)

    @cached_property
    def digest(self) -> str:
        """A hash of the contents."""
        import hashlib

        return hashlib.sha256(f"{self.dtype}{self.array.shape}".encode() + self.array.tobytes()).hexdigest()[:32]


class LazyConstant(ConstantData):
    """Data whose elements are computed each time that they are asked for, so that no memory holds them in between.

    `part(start, stop)` computes those from `start` up to `stop` along the last dimension.
    """

    compute_slice: Callable[[int, int], np.ndarray[Any, Any]]

    def __init__(
        self, dtype: DType, shape: tuple[int, ...], compute_slice: Callable[[int, int], np.ndarray[Any, Any]]
    ) -> None:
        for name, value in (("dtype", dtype), ("name", ""), ("_shape", shape), ("compute_slice", compute_slice)):
            object.__setattr__(self, name, value)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape  # type: ignore[attr-defined, no-any-return]  # set above: instances are frozen

    @property
    def array(self) -> np.ndarray[Any, Any]:
        return self.compute_slice(0, self.shape[-1])


def to_storage(values: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """`numbers` as a `Data` of `dtype` holds them; the inverse of `Data.numbers`."""
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        rounded: np.ndarray[Any, Any] = round_to(values, dtype)
    if dtype.name == "bf16":
        rounded = (rounded.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.asarray(rounded)  # one element comes out of arithmetic as a scalar
