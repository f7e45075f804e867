"""Narrow windows that follow each other in memory are loaded as one row."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import numpy as np

from compiler.codegen.triton.emit import emit_triton
from compiler.ir.text.tile_parser import parse_kernel
from tests.codegen.test_triton import run_text

POOL = """kernel @pool(in %x: f32[20, 40], out %y: f32[20, 20]) {
  parallel %i in 0..20 tile 4 {
    parallel %j in 0..20 tile 8 {
      %m = reduce max %k in 0..2 tile 2 { yield %x[%i, 2*%j + %k] }
      store %m, %y[%i, %j]
    }
  }
}"""


def test_a_row_of_windows_has_one_index(interpreter: ProcessPoolExecutor) -> None:
    lines = [line.strip() for line in emit_triton(parse_kernel(POOL)).splitlines()]
    assert "j_k = (pid % 3 * 8)*2 + tl.arange(0, 16)" in lines
    assert "x_block = tl.reshape(tl.load(x + j_k[None, :] + i[:, None]*40, mask=j_k[None, :] < 40), (4, 8, 2))" in lines
    x = np.random.default_rng(0).normal(size=(20, 40)).astype(np.float32)
    got = run_text(interpreter, POOL, x, np.zeros((20, 20), np.float32))
    np.testing.assert_array_equal(got, x.reshape(20, 20, 2).max(axis=2))


def test_windows_with_gaps_and_rows_keep_their_axes() -> None:
    apart = POOL.replace("f32[20, 40]", "f32[20, 60]").replace("2*%j", "3*%j")
    rows = POOL.replace("f32[20, 40]", "f32[20, 320]").replace("2*%j", "16*%j").replace("0..2 tile 2", "0..16 tile 16")
    assert not any("tl.reshape" in emit_triton(parse_kernel(text)) for text in (apart, rows))


def test_merged_axes_of_other_extents_keep_their_masks(interpreter: ProcessPoolExecutor) -> None:
    """Axes %i, %k and %j, %k of as many elements are two: 16 are inside of one, and 12 of the other."""
    scale = """kernel @scale(in %x: f32[4, 3, 4], in %s: f32[4, 4], out %y: f32[4, 3, 4]) {
      parallel %i in 0..4 tile 4 { parallel %j in 0..3 tile 4 { parallel %k in 0..4 tile 4 {
        store %x[%i, %j, %k] * %s[%i, %k], %y[%i, %j, %k] } } } }"""
    text = emit_triton(parse_kernel(scale))
    assert "tl.load(s + i_k)" in text
    assert "mask=j_k[None, :] < 12" in text
    rng = np.random.default_rng(0)
    x, s = rng.normal(size=(4, 3, 4)).astype(np.float32), rng.normal(size=(4, 4)).astype(np.float32)
    np.testing.assert_array_equal(run_text(interpreter, scale, x, s, np.zeros_like(x)), x * s[:, None])
