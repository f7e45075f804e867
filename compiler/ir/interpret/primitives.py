"""Values of primitives in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.scalar import PRIMITIVES, PrimitiveCall, round_to
from compiler.ir.types import DType


def _bitcast(value: Any, source: DType, target: DType) -> Any:
    """Reinterpret the bits of `value` as `target`."""
    return target.decode(source.encode(value).view(target.storage))


def evaluate_call(e: PrimitiveCall, args: tuple[Any, ...]) -> Any:
    """Evaluate `e` in NumPy on the values of its operands."""
    if e.primitive == "bitcast":
        return _bitcast(args[0], e.operands[0].dtype, e.dtype)
    with np.errstate(all="ignore"):
        if e.primitive == "dot":
            x, y = (a.dtype.unpack(v).astype(e.dtype.numpy) for a, v in zip(e.operands, args, strict=True))
            return round_to(np.sum(x * y, axis=-1, dtype=e.dtype.numpy), e.dtype)
        if e.primitive == "pack":
            return e.dtype.pack(np.stack(np.broadcast_arrays(*args), axis=-1))
        if e.primitive == "cast":
            return round_to(args[0], e.dtype)
        return round_to(PRIMITIVES[e.primitive].evaluate(*args), e.dtype)
