"""What follows a product in parts of its columns, as Triton source."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from compiler.codegen.triton.emit import emit_triton
from compiler.codegen.triton.loader import load_triton
from compiler.codegen.triton.subtiles import split_text
from compiler.ir.text.tile_parser import parse_kernel
from tests.triton_process import NEEDS_TRITON

TEXT = """kernel @f(in %x: f32[40, 32], in %w: f32[COLUMNS, 32], in %b: f32[COLUMNS], in %r: f32[40, COLUMNS], out %y: f32[40, COLUMNS])
    warps 4 SCHEDULE {
  parallel %i in 0..40 tile 16 {
    parallel %j in 0..COLUMNS tile 64 {
      %bias = %b[%j] * 2.0
      %s = reduce add %k in 0..32 tile 16 { yield %x[%i, %k] * %w[%j, %k] }
      %v = %s + %bias
      store %v * erf(%v) + %r[%i, %j], %y[%i, %j]
    }
  }
}"""


def source(schedule: str, columns: int = 128) -> str:
    return emit_triton(parse_kernel(TEXT.replace("SCHEDULE", schedule).replace("COLUMNS", str(columns))))


def test_halves() -> None:
    """Values that were known before the product are split too, and loads behind it are of half the columns."""
    text = source("subtiles 2")
    epilogue = text[text.index("bias_1") :].split("\n\n")[0]
    assert [line.strip() for line in epilogue.splitlines()] == [
        "bias_1, bias_2 = tl.split(tl.permute(tl.reshape(bias, (2, 32)), (1, 0)))",
        "s_1, s_2 = tl.split(tl.permute(tl.reshape(s, (16, 2, 32)), (0, 2, 1)))",
        "j_1 = pid % 2 * 64 + tl.arange(0, 32)",
        "v = s_1 + bias_1[None, :]",
        "r_block = tl.load(r + i[:, None]*128 + j_1[None, :], mask=i[:, None] < 40)",
        "y_block = v * tl.erf(v) + r_block",
        "tl.store(y + i[:, None]*128 + j_1[None, :], y_block, mask=i[:, None] < 40)",
        "j_2 = pid % 2 * 64 + 32 + tl.arange(0, 32)",
        "v_1 = s_2 + bias_2[None, :]",
        "r_block_1 = tl.load(r + i[:, None]*128 + j_2[None, :], mask=i[:, None] < 40)",
        "y_block_1 = v_1 * tl.erf(v_1) + r_block_1",
        "tl.store(y + i[:, None]*128 + j_2[None, :], y_block_1, mask=i[:, None] < 40)",
    ]


def test_a_middle_axis_is_halved() -> None:
    assert split_text("x", (4, 8, 2), 1) == "tl.split(tl.permute(tl.reshape(x, (4, 2, 4, 2)), (0, 2, 3, 1)))"


def interpreted(text: str, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    tensors = list(map(torch.from_numpy, arrays))
    load_triton(text)(*tensors)
    return tensors[-1].numpy()


@NEEDS_TRITON
@pytest.mark.parametrize("columns", [128, 96, 70])
@pytest.mark.parametrize("schedule", ["subtiles 2", "subtiles 4", "persistent 2 subtiles 2"])
def test_parts_in_the_interpreter(interpreter: ProcessPoolExecutor, schedule: str, columns: int) -> None:
    """The last block may be partial, of which a whole part may be beyond the columns."""
    rng = np.random.default_rng(1)
    shapes = (40, 32), (columns, 32), (columns,), (40, columns)
    x, w, b, r = (rng.normal(0, 0.3, shape).astype(np.float32) for shape in shapes)
    result = interpreter.submit(interpreted, source(schedule, columns), [x, w, b, r, np.full_like(r, np.nan)]).result()
    v = torch.from_numpy(x.astype(np.float64) @ w.astype(np.float64).T + 2 * b.astype(np.float64))
    np.testing.assert_allclose(result, (v * torch.erf(v)).numpy() + r, rtol=1e-5, atol=1e-6)
