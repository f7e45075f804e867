"""Casts to floats of 8 bits, which Triton makes of floats of at most 32 bits."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from compiler.codegen.triton.emit import emit_triton
from compiler.codegen.triton.loader import compile_offline, load_triton
from compiler.codegen.triton.targets import GPU_TARGETS
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.torch_types import to_torch
from compiler.ir.types import DTYPES
from tests.triton_process import NEEDS_TRITON

pytestmark = NEEDS_TRITON

TIE = 1.0625  # halfway between two numbers of three bits
VALUES: dict[str, list[float]] = {
    "bool": [0, 1],
    "i8": [-128, -17, 0, 19, 127],
    "u8": [0, 200, 255],
    "i64": [-(1 << 40), -100, 0, 17, 19, 1 << 40],
    "f64": [TIE, TIE + 1e-12, TIE - 1e-12, -TIE - 1e-12, 1e-300, -1e300, float("inf"), float("nan"), 2.0**-9, 0.75 * 2.0**-9, 2.0**-10 + 1e-15],
}  # fmt: skip


def source(dtype: str, target: str, n: int) -> str:
    return emit_triton(
        parse_kernel(f"kernel @f(in %x: {dtype}[{n}], out %y: {target}[{n}]) warps 4 {{ parallel %i in 0..{n} tile 16 {{ store cast<{target}>(%x[%i]), %y[%i] }} }}")
    )  # fmt: skip


def interpreted(text: str, dtype: str, target: str, values: list[float]) -> np.ndarray[Any, Any]:
    x = torch.tensor(values, dtype=to_torch(DTYPES[dtype]))
    y = torch.empty(len(values), dtype=to_torch(DTYPES[target]))
    load_triton(text)(x, y)
    return y.view(torch.uint8).numpy()


def compiled_registers(text: str, target: str) -> int:
    return compile_offline(text, GPU_TARGETS[target]).resources.registers


@pytest.mark.parametrize("target", ["f8e4m3fn", "f8e5m2"])
@pytest.mark.parametrize("dtype", VALUES)
def test_casts_round_to_f32_and_again(interpreter: ProcessPoolExecutor, dtype: str, target: str) -> None:
    values = VALUES[dtype]
    found = interpreter.submit(interpreted, source(dtype, target, len(values)), dtype, target, values).result()
    wanted = DTYPES[target].encode(np.array(values, np.float64))
    np.testing.assert_array_equal(DTYPES[target].decode(found), DTYPES[target].decode(wanted))


@pytest.mark.parametrize("gpu", ["sm90", "gfx942"])
@pytest.mark.parametrize("dtype", ["i64", "f64"])
def test_casts_compile(offline: ProcessPoolExecutor, dtype: str, gpu: str) -> None:
    assert offline.submit(compiled_registers, source(dtype, "f8e5m2", 64), gpu).result() > 0
