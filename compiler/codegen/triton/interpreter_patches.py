"""Patches of Triton's interpreter: bounds checks; in NumPy, device library functions, conversions of floats, products of bf16 blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np

from compiler.codegen.triton.targets import is_interpreted
from compiler.codegen.triton.triton_names import DTYPES as TRITON_DTYPES
from compiler.ir.types import DTYPES, DType

LIBDEVICE_IN_NUMPY: dict[str, Callable[..., Any]] = {
    "expm1": np.expm1, "log1p": np.log1p, "tanh": np.tanh, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "pow": np.power, "trunc": np.trunc, "rint": np.rint,
    "copysign": np.copysign,
}  # fmt: skip
"""Functions of `libdevice` that the interpreter cannot run, with their NumPy equivalents."""


def patch_interpreter() -> None:
    """Patch the interpreter if Triton uses it (TRITON_INTERPRET=1); does nothing if kernels are compiled."""
    if not is_interpreted():
        return
    from triton.language.extra import libdevice
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions, interpreter_builder

    # as `TritonModule.launch_options`; the interpreter ignores those of a launch
    interpreter_builder.options = InterpreterOptions(debug=True, sanitize_overflow=False)

    interpreter._convert_float = convert_float
    for name, function in LIBDEVICE_IN_NUMPY.items():
        setattr(libdevice, name, elementwise_function(function))
    if not hasattr(InterpreterBuilder.create_dot, "__wrapped__"):
        InterpreterBuilder.create_dot = widen_bf16_dot(InterpreterBuilder.create_dot)
        InterpreterBuilder.binary_op = type_comparisons(InterpreterBuilder.binary_op)
        InterpreterBuilder.cast_impl = cast_to_codes(InterpreterBuilder.cast_impl)
        InterpreterBuilder.create_splat = keep_bool_splat(InterpreterBuilder.create_splat)


@cache
def dtypes_of_types() -> dict[Any, DType]:
    """Return the dtype of each of Triton's scalar types."""
    import triton.language as tl

    return {getattr(tl, text.removeprefix("tl.")): DTYPES[name] for name, (text, _) in TRITON_DTYPES.items()}


def convert_float(data: Any, source: Any, target: Any, rounding: Any) -> Any:
    """Return floats as elements of another type, rounded to nearest even; the interpreter's own function rounds half up."""
    stored, wanted = dtypes_of_types()[source], dtypes_of_types()[target]
    return wanted.encode(stored.decode(data.view(stored.storage)))


def cast_to_codes(cast: Callable[..., Any]) -> Callable[..., Any]:
    """Return the interpreter's `cast_impl` with rounding to bf16 and floats of 8 bits; it would take integers for their bits."""
    from triton.runtime.interpreter import TensorHandle

    @wraps(cast)
    def apply(builder: Any, x: Any, type_: Any) -> Any:
        types = x.dtype.scalar, type_.scalar
        if not any(t in dtypes_of_types() and dtypes_of_types()[t].is_encoded for t in types):
            return cast(builder, x, type_)
        return TensorHandle(convert_float(x.data, *types, None), type_.scalar)

    return apply


def interpreted_launch(launch: Callable[..., None]) -> Callable[..., None]:
    """Return `launch` without NumPy's warnings, and with an IndexError for a failed check of an index."""
    from triton.runtime.errors import InterpreterError

    def run(*args: Any) -> None:
        try:
            with np.errstate(all="ignore"):
                launch(*args)
        except InterpreterError as error:
            if isinstance(error.__cause__, AssertionError):
                raise IndexError(str(error.__cause__)) from None
            raise

    return run


def elementwise_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a NumPy function as a function of the interpreter's tensors."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def apply(*args: Any) -> Any:
        widest = max((a for a in args if isinstance(a, tl.tensor)), key=lambda a: a.handle.data.size)
        with np.errstate(all="ignore"):
            data = function(*(a.handle.data if isinstance(a, tl.tensor) else a for a in args))
        return tl.tensor(TensorHandle(data.astype(widest.handle.data.dtype), widest.dtype), widest.type)

    return apply


def type_comparisons(binary_op: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the interpreter's `binary_op` so that comparisons return bools; alone, it returns the type of the operands."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    @wraps(binary_op)
    def apply(*args: Any) -> Any:
        result = binary_op(*args)
        return TensorHandle(result.data, tl.int1) if result.data.dtype == np.bool_ else result

    return apply


def keep_bool_splat(splat: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the interpreter's `splat` so that a bool becomes a block of bools; alone, it returns integers, which are no masks."""
    from triton.runtime.interpreter import TensorHandle

    @wraps(splat)
    def apply(builder: Any, block_type: Any, scalar: Any) -> Any:
        block = splat(builder, block_type, scalar)
        return TensorHandle(block.data.astype(scalar.data.dtype), block.dtype)

    return apply


def widen_bf16_dot(dot: Callable[..., Any]) -> Callable[..., Any]:
    """Return the interpreter's `dot` with bf16 operands widened to f32; it would multiply their bits."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def widen(x: Any) -> Any:
        if x.dtype != tl.bfloat16:
            return x
        return TensorHandle((x.data.astype(np.uint32) << np.uint32(16)).view(np.float32), tl.float32)

    @wraps(dot)
    def apply(builder: Any, a: Any, b: Any, *args: Any) -> Any:
        return dot(builder, widen(a), widen(b), *args)

    return apply
