"""Conversions of reduced floats in machine code: every code, and roundings, as PyTorch has them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from native import run_native, runnable_targets

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.builder import literal, llvm_type
from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object_file import emit_assembly
from compiler.codegen.llvm.targets import CPUTarget
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.torch_types import as_array, as_tensor, to_torch
from compiler.ir.types import DTYPES, DType

REDUCED = [d for d in DTYPES.values() if d.is_reduced_float]
LOOPS = {"scalars": "", "vectors": " tile 16 lanes 8"}
CAST = "kernel @k(in %x: {s}[{n}], out %y: {t}[{n}]) {{ for %i in 0..{n}{loop} {{ store cast<{t}>(%x[%i]), %y[%i] }} }}"

on_every_target = partial(
    pytest.mark.parametrize, ("loop", "target"), [("scalars", "host"), *(("vectors", t) for t in runnable_targets())]
)


def convert(values: np.ndarray, source: str, result: str, loop: str, target: str) -> np.ndarray:
    """The values as the kernel converts them."""
    kernel = parse_kernel(CAST.format(s=source, t=result, n=values.size, loop=LOOPS[loop]))
    return run_native(kernel, [values], target)["y"]


def assert_equal(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@on_every_target()
@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_every_code_is_widened(dtype: DType, loop: str, target: str) -> None:
    codes = np.arange(1 << dtype.bits).astype(f"u{dtype.bytes}")
    stored = codes if dtype.is_encoded else codes.view(dtype.numpy)
    want = as_array(as_tensor(stored, dtype).float())
    assert_equal(convert(dtype.decode(stored), dtype.name, "f32", loop, target), want)


@on_every_target()
@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_values_are_rounded_to_nearest_even(dtype: DType, loop: str, target: str) -> None:
    f = dtype.float_format
    values = f.decode(np.arange(f.nonfinite))[-4096:]
    ties = values + np.diff(values, prepend=values[0]) / 2
    tiny = 2.0 ** (1 - f.bias - f.mantissa_bits) * np.array([0, 0.25, 0.5, 0.75, 1, 1.5, 2.5, 3.5])
    random = np.random.default_rng(1).integers(0, 1 << 32, 20_000, dtype=np.uint32).view("f")
    special = np.array([np.inf, np.nan, 3e38, 1e-45, 1e5, 1.0, 500.0], "f")
    positive = np.concatenate([values, ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf), tiny, special])
    with np.errstate(all="ignore"):
        x = np.concatenate([positive, -positive, random]).astype("f")
    x = x[: x.size // 16 * 16]
    want = as_array(torch.from_numpy(x).to(to_torch(dtype)))
    assert_equal(convert(x, "f32", dtype.name, loop, target), want.astype(dtype.numpy))


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_conversions_meet_in_f32(dtype: DType) -> None:
    wide = np.array([1.0625, 1.0625 + 1e-12, -7.3, 100.0, 3.0, 0.1, 2.0**-9, 0.0])
    assert_equal(convert(wide, "f64", dtype.name, "scalars", "host"), dtype.decode(dtype.encode(wide.astype("f"))))
    whole = np.array([0, 1, -3, 17, 100, -90, 127, 5])
    assert_equal(convert(whole, "i64", dtype.name, "vectors", "host"), dtype.decode(dtype.encode(whole)))


def test_codes_are_integers_in_llvm() -> None:
    f8 = DTYPES["f8e4m3fn"]
    assert (llvm_type(f8, 8), literal(1.5, f8), literal(-1e9, f8)) == ("<8 x i8>", "60", "254")
    assert (llvm_type(DTYPES["f16"]), literal(1.5, DTYPES["bf16"])) == ("half", str(0x3FC0))


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_a_single_half_waits_for_no_register(name: str) -> None:
    """`vpinsrw` keeps the other elements of its register, so that conversions of one element would wait for each other."""
    kernel = parse_kernel("""kernel @rows(in %x: f16[99], in %k: i64[50], out %y: f16[50]) {
      for %i in 0..50 {
        %row = %k[%i]
        store cast<f16>(cast<f32>(%x[%row]) + 1.0), %y[%i]
      }
    }""")
    target = target_by_name(name)
    assert isinstance(target, CPUTarget)
    assembly = emit_assembly(emit_kernel(kernel, target), target)
    assert "vcvtph2ps" in assembly
    assert "vpinsrw" not in assembly
