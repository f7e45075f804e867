"""Formats of reduced floats: every code and the roundings around every value, as PyTorch has them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from compiler.ir.torch_types import as_array, as_storage, as_tensor, from_torch, to_torch
from compiler.ir.types import DTYPES, DType, f32, u8

FLOATS = [d for d in DTYPES.values() if d.is_float]
REDUCED = [d for d in FLOATS if d.is_reduced_float]


def all_codes(dtype: DType) -> np.ndarray:
    return np.arange(1 << dtype.bits).astype(f"u{dtype.bytes}")


def torch_values(codes: np.ndarray, dtype: DType) -> np.ndarray:
    """The codes as PyTorch reads them."""
    return torch.from_numpy(codes.view(f"i{dtype.bytes}").copy()).view(to_torch(dtype)).float().numpy()


def torch_codes(values: np.ndarray, dtype: DType) -> np.ndarray:
    """The codes that PyTorch rounds f32 values to."""
    integer = getattr(torch, f"int{dtype.bits}")
    return torch.from_numpy(values).to(to_torch(dtype)).view(integer).numpy().view(f"u{dtype.bytes}")


def hard_values(dtype: DType) -> np.ndarray:
    """Every value, every tie between two, their neighbours in f32, random bits and values without a finite result."""
    values = torch_values(all_codes(dtype), dtype)
    finite = np.unique(values[np.isfinite(values)]).astype(np.float64)
    step = finite[-1] - finite[-2]
    ties = np.concatenate([(finite[1:] + finite[:-1]) / 2, finite[-1] + np.array([0.25, 0.5, 0.75]) * step]).astype("f")
    below, above = np.nextafter(ties, np.float32(-np.inf)), np.nextafter(ties, np.float32(np.inf))
    bits = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32).view("f")
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 3e38, -3e38], "f")
    return np.concatenate([finite.astype("f"), ties, -ties, below, above, bits, special])


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_every_code_has_the_value_that_pytorch_reads(dtype: DType) -> None:
    codes = all_codes(dtype)
    got, want = dtype.float_format.decode(codes), torch_values(codes, dtype)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])
    np.testing.assert_array_equal(dtype.float_format.encode(got), codes)  # payloads of NaN too


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_values_round_as_in_pytorch(dtype: DType) -> None:
    values = hard_values(dtype)
    nan = np.isnan(values)
    codes = dtype.float_format.encode(values)
    np.testing.assert_array_equal(codes[~nan], torch_codes(values, dtype)[~nan])
    assert np.isnan(dtype.float_format.decode(codes[nan])).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_parameters_are_those_of_pytorch(dtype: DType) -> None:
    info, f = torch.finfo(to_torch(dtype)), dtype.float_format
    assert info.eps == 2.0**-f.mantissa_bits
    assert info.smallest_normal == 2.0 ** (1 - f.bias)
    assert 1 + f.exponent_bits + f.mantissa_bits == dtype.bits == info.bits
    if dtype.is_reduced_float:
        assert float(f.decode(np.array(f.nonfinite - 1))) == info.max
    assert dtype.compute == (f32 if dtype.bits < 32 else dtype)


@pytest.mark.parametrize(("wide", "narrow"), itertools.permutations(REDUCED, 2), ids=str)
def test_a_format_includes_another_if_every_value_survives(wide: DType, narrow: DType) -> None:
    values = torch_values(all_codes(narrow), narrow)
    again = wide.float_format.decode(wide.float_format.encode(values))
    survives = bool(np.all((again == values) | (np.isnan(again) & np.isnan(values))))
    assert wide.float_format.includes(narrow.float_format) == survives


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_storage_and_tensors_convert_without_loss(dtype: DType) -> None:
    raw = np.arange(48, dtype=np.uint8) & np.uint8(1 if dtype.kind == "bool" else 255)
    stored = raw.view(dtype.storage).reshape(3, -1)
    tensor = as_tensor(stored, dtype)
    assert from_torch(tensor.dtype) == dtype
    assert as_storage(tensor).tobytes() == raw.tobytes()
    np.testing.assert_array_equal(as_array(tensor), dtype.decode(stored))
    assert dtype.encode(dtype.decode(stored)).tobytes() == raw.tobytes()
    assert dtype.decode(stored).dtype == dtype.numpy


def test_scalars_and_empty_arrays_keep_their_shape() -> None:
    for dtype in (*REDUCED, f32, u8):
        assert dtype.encode(1.0).shape == dtype.decode(dtype.encode(1.0)).shape == ()
        assert dtype.encode(np.zeros((0, 3))).shape == (0, 3)
