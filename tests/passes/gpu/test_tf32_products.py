"""tf32-products: contractions of f32 in TF32, on request."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.cost.machine import GPU
from compiler.ir.interpret.tile import run_kernel
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import walk
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.target import MATRIX_DTYPES
from compiler.testing.checks import canonical_text, check_pass

MATMUL = """kernel @matmul(in %x: f32[3, 5], in %w: f32[4, 5], out %y: f32[3, 4]) {
  parallel %i in 0..3 {
    parallel %j in 0..4 {
      %s = reduce add %k in 0..5 { yield LEFT * RIGHT }
      store %s, %y[%i, %j]
    }
  }
}"""

HOPPER = GPU(matrix_tf32=2048)


def product(left: str = "%x[%i, %k]", right: str = "%w[%j, %k]") -> str:
    return MATMUL.replace("LEFT", left).replace("RIGHT", right)


def truncated(value: str) -> str:
    return f"bitcast<f32>(bitcast<i32>({value}) & -8192)"


TRUNCATED = product(truncated("%x[%i, %k]"), truncated("%w[%j, %k]"))


@pytest.mark.parametrize("passes", ["tf32-products", "tf32-products{alone=true}"])
def test_factors_lose_the_bits_that_matrix_units_ignore(passes: str) -> None:
    result = run_pipeline(parse_kernel(product()), passes, Context(HOPPER))
    assert canonical_text(result) == canonical_text(parse_kernel(TRUNCATED))
    check_pass(passes, unchanged=TRUNCATED, machine=HOPPER)


def test_the_interpreter_multiplies_what_is_left() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 5), (4, 5)))
    y = np.zeros((3, 4), np.float32)
    run_kernel(parse_kernel(TRUNCATED), {"x": x, "w": w, "y": y})
    short = [(a.view(np.int32) & -8192).view(np.float32).astype(float) for a in (x, w)]
    np.testing.assert_allclose(y, short[0] @ short[1].T, rtol=1e-6, atol=1e-6)
    assert np.abs(y - x.astype(float) @ w.T.astype(float)).max() > 1e-5


def test_matrix_units_take_the_factors_as_they_are_in_memory() -> None:
    (contraction,) = filter(None, map(contraction_of, walk(parse_kernel(TRUNCATED).body)))
    (plain,) = filter(None, map(contraction_of, walk(parse_kernel(product()).body)))
    assert contraction.is_tf32
    assert not plain.is_tf32
    assert contraction.matrix_operands(MATRIX_DTYPES) == plain.matrix_operands(MATRIX_DTYPES)


def test_other_dtypes_and_targets_without_it_stay() -> None:
    check_pass("tf32-products", unchanged=product().replace("f32", "f64"), machine=HOPPER)
    wide = product("cast<f32>(%x[%i, %k])", "cast<f32>(%w[%j, %k])")
    check_pass(
        "tf32-products",
        unchanged=wide.replace("in %x: f32", "in %x: f16").replace("in %w: f32", "in %w: f16"),
        machine=HOPPER,
    )
    check_pass(
        "tf32-products", unchanged=product(), machine=GPU(matrix_tf32=0), remark="%s: the target does not multiply TF32"
    )


def test_alone_leaves_kernels_of_several_reductions() -> None:
    text = product().replace("store %s,", "%t = reduce max %l in 0..5 { yield %x[%i, %l] } store %s + %t,")
    check_pass("tf32-products{alone=true}", unchanged=text, machine=HOPPER)
