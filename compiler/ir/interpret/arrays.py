"""Array representation and reductions shared by the interpreters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.ir.float_format import Array
from compiler.ir.types import DType


def to_interpreter_array(array: Array, dtype: DType) -> Array:
    """Return a row-major copy of `array`, values or `dtype.storage`, in `dtype.numpy`."""
    if dtype.is_encoded and array.dtype == dtype.storage:
        return dtype.decode(array)
    return np.array(array, dtype.numpy, order="C")


REDUCE_UFUNCS: Mapping[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
"""NumPy function of each `combine`."""
