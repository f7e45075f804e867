"""Test inputs for IR: random values, and special values that expose wrong rewrites."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt

import numpy as np
import torch

from compiler.ir.float_format import Array
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.structure import highest, lowest
from compiler.ir.scalar import round_to
from compiler.ir.torch_types import to_torch
from compiler.ir.types import DType, TensorType

_INF = float("inf")
SPECIAL_FLOATS = (0.0, -0.0, 1.0, -1.0, _INF, -_INF, float("nan"), 0.5, -2.5, 1e-40, 1e30, -1e30, 88.0, -104.0)
"""Zeros, units, non-finite values, ties, a subnormal of f32, huge values, and the ends of the range of f32's exp."""


def random_array(type_: TensorType, rng: np.random.Generator, low: int = 0, high: int = 8) -> Array:
    """Return random elements in `dtype.numpy`: floats in -2..2, integers in low..high-1, which can serve as indices."""
    shape, dtype = type_.static_shape(), type_.dtype
    if dtype.element:
        return dtype.pack(random_array(TensorType(dtype.element, (*shape, dtype.count)), rng, low, high))
    if dtype.is_float:
        return np.asarray(round_to(rng.uniform(-2, 2, shape), dtype))
    return rng.integers(low if dtype.is_integer else 0, high if dtype.is_integer else 2, shape).astype(dtype.numpy)


def special_array(type_: TensorType, phase: int = 0) -> Array:
    """Return an array filled cyclically with the special values of its dtype, starting at number `phase`."""
    shape = type_.static_shape()
    return np.take(special_values(type_.dtype), phase + np.arange(int(np.prod(shape))), mode="wrap").reshape(shape)


def special_values(dtype: DType) -> Array:
    """Return values of `dtype` that expose wrong algebra: non-finite and extreme floats, the ends of integer types."""
    if dtype.element:
        return dtype.pack(np.lib.stride_tricks.sliding_window_view(special_values(dtype.element), dtype.count))
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return np.asarray(round_to(np.array(SPECIAL_FLOATS), dtype))
    if dtype.kind == "bool":
        return np.array([False, True])
    return np.array([0, 1, 2, lowest(dtype), highest(dtype)], dtype.numpy)


def limit_values(dtype: DType) -> Array:
    """Return floats whose sums, products and exponentials leave the range of `dtype`, its ends, and non-finite ones."""
    info = torch.finfo(to_torch(dtype))
    positive = (
        0.0,
        info.smallest_normal / 4,
        info.smallest_normal,
        1.0,
        1.1 * log(info.max),
        2 * sqrt(info.max),
        info.max,
    )
    return np.asarray(round_to(np.array([s * x for x in (*positive, _INF, float("nan")) for s in (1, -1)]), dtype))


def random_limit_array(type_: TensorType, rng: np.random.Generator) -> Array:
    """Return random choices of `limit_values`."""
    return rng.choice(limit_values(type_.dtype), type_.static_shape())


def small_symbol_values(graph: Graph, start: int = 2) -> dict[str, int]:
    """Return a different small size for each symbol of `graph`: `start`, `start + 1`, ..."""
    return {name: start + k for k, name in enumerate(sorted(graph.symbols))}


def random_inputs(types: Sequence[TensorType], seed: int, low: int = 0, high: int = 8) -> list[Array]:
    """Return a random array for each type."""
    rng = np.random.default_rng(seed)
    return [random_array(t, rng, low, high) for t in types]
