"""Inputs to try IR on: random ones, and the values that break careless rewrites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from compiler.ir.graph.graph import Graph
from compiler.ir.graph.structure import highest, lowest
from compiler.ir.scalar import round_to
from compiler.ir.types import DType, TensorType

Array: TypeAlias = np.ndarray[Any, Any]

SPECIAL_FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    0.5,
    -2.5,
    1e-40,
    1e30,
    -1e30,
    88.0,
    -104.0,
)


def random_array(type_: TensorType, rng: np.random.Generator, low: int = 0, high: int = 8) -> Array:
    """Random elements as interpreters hold them: floats in -2..2, integers in low..high-1 (so that they may be indices)."""
    shape, dtype = type_.static_shape(), type_.dtype
    if dtype.is_float:
        return np.asarray(round_to(rng.uniform(-2, 2, shape), dtype))
    return rng.integers(low if dtype.is_integer else 0, high if dtype.is_integer else 2, shape).astype(dtype.numpy)


def special_array(type_: TensorType, phase: int = 0) -> Array:
    """Zeros of both signs, infinities, NaN, tiny and huge floats; the ends of integer types.  `phase` shifts the cycle."""
    shape = type_.static_shape()
    values = special_values(type_.dtype)
    cycle = np.take(values, phase + np.arange(int(np.prod(shape))), mode="wrap")
    return cycle.reshape(shape)


def special_values(dtype: DType) -> Array:
    """The values of `dtype` that break careless algebra."""
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return np.asarray(round_to(np.array(SPECIAL_FLOATS), dtype))
    if dtype.kind == "bool":
        return np.array([False, True])
    return np.array([0, 1, 2, lowest(dtype), highest(dtype)], dtype.numpy)


def small_symbol_values(graph: Graph, start: int = 2) -> dict[str, int]:
    """A different small size for each symbolic dimension of `graph`."""
    return {name: start + k for k, name in enumerate(sorted(graph.symbols))}


def random_inputs(types: Sequence[TensorType], seed: int, low: int = 0, high: int = 8) -> list[Array]:
    """A random array for each type."""
    rng = np.random.default_rng(seed)
    return [random_array(t, rng, low, high) for t in types]
