"""Arrays as the interpreters hold them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.ir.torch_types import Array
from compiler.ir.types import DType


def to_interpreter_array(array: Array, dtype: DType) -> Array:
    """A copy of `array` as interpreters hold it; bf16 bits in uint16 become float32."""
    if dtype.name == "bf16" and array.dtype == np.uint16:
        return np.left_shift(array.astype(np.uint32), 16).view(np.float32)
    return np.array(array, dtype.numpy, order="C")


REDUCE_UFUNCS: Mapping[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
