"""Contents of constants in graphs and programs, stored or computed on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from compiler.ir.float_format import Array
from compiler.ir.types import DType


@dataclass(frozen=True, eq=False)
class ConstantData:
    """The elements of a constant: a dense row-major array of `dtype.storage`.

    `name` is the parameter's name in the user's module.  Compares by identity, because weights are shared.
    """

    dtype: DType
    array: Array
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def numpy_values(self) -> Array:
        """The elements as an array of `dtype.numpy`."""
        return self.dtype.decode(self.array)

    @property
    def digest(self) -> str:
        """SHA-256 hash of dtype, shape and elements, 32 hexadecimal digits; computed once."""
        known: str | None = self.__dict__.get("_digest")
        if known is None:  # not a `cached_property`: in Python 3.11 one lock makes all threads wait
            known = self._compute_digest()
            object.__setattr__(self, "_digest", known)
        return known

    def _compute_digest(self) -> str:
        import hashlib

        array = np.ascontiguousarray(self.array)
        writer = hashlib.sha256(f"{self.dtype}{self.array.shape}".encode())
        writer.update(array.reshape(-1).view(np.uint8).data)
        return writer.hexdigest()[:32]


class LazyConstant(ConstantData):
    """A constant that is computed at each access, to save memory.

    `compute_slice(start, stop)` returns the elements start..stop-1 along the last dimension.
    """

    compute_slice: Callable[[int, int], Array]

    def __init__(self, dtype: DType, shape: tuple[int, ...], compute_slice: Callable[[int, int], Array]) -> None:
        for name, value in (("dtype", dtype), ("name", ""), ("_shape", shape), ("compute_slice", compute_slice)):
            object.__setattr__(self, name, value)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape  # type: ignore[attr-defined, no-any-return]  # set in __init__: instances are frozen

    @property
    def array(self) -> Array:
        return self.compute_slice(0, self.shape[-1])


def part_of(data: ConstantData | Array, dim: int, start: int, stop: int) -> ConstantData | Array:
    """Return the elements start..stop-1 of a constant along dimension `dim`; they share its memory where it is stored."""
    part = (*[slice(None)] * dim, slice(start, stop))
    if not isinstance(data, ConstantData):
        return data[part]
    if not isinstance(data, LazyConstant):
        return ConstantData(data.dtype, data.array[part], data.name and f"{data.name}[{start}:{stop}]")
    shape = (*data.shape[:dim], stop - start, *data.shape[dim + 1 :])
    if dim == len(shape) - 1:
        return LazyConstant(data.dtype, shape, lambda a, b: data.compute_slice(start + a, start + b))
    return LazyConstant(data.dtype, shape, lambda a, b: data.compute_slice(a, b)[part])


def to_storage(values: Array, dtype: DType) -> Array:
    """Round `values` to `dtype` and convert them to the array of a `ConstantData`; inverse of `numpy_values`."""
    with np.errstate(over="ignore"):  # overflow gives infinity
        return dtype.encode(values)
