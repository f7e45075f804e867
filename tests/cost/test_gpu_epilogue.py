"""Registers of what follows a product on a GPU, against what ptxas counted for 128 results in a thread."""

from __future__ import annotations

import pytest

from compiler.analysis.accesses import Accesses
from compiler.cost.gpu_epilogue import Epilogue, epilogue_of
from compiler.cost.gpu_time import tiled_product
from compiler.cost.machine import GPU
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import Reduce
from compiler.ir.tile.loop_nest import perfect_parallel_nest

TEXT = """kernel @f(in %x: f16[256, 64], in %w: f16[256, 64], in %b: f16[256], in %r: f16[256, 256], out %y: f16[256, 256]) warps 8 {
  parallel %i in 0..256 tile 128 {
    parallel %j in 0..256 tile 256 {
      %s = reduce add %k in 0..64 tile 64 { yield cast<f32>(%x[%i, %k]) * cast<f32>(%w[%j, %k]) }
      %v = VALUE
      store cast<f16>(RESULT), %y[%i, %j]
    }
  }
}"""

WIDE = "%s + cast<f32>(%b[%j])"
ROUNDED = f"cast<f32>(cast<f16>({WIDE}))"
GELU = "0.5 * %v * (1.0 + erf(%v * 0.7071))"
RESIDUAL = "cast<f32>(%r[%i, %j])"

EPILOGUES = {
    "relu": (ROUNDED, "max(%v, 0.0)", 4),
    "erf": (WIDE, "erf(%v * 0.7071)", 4),
    "GELU": (ROUNDED, GELU, 6),
    "GELU of f32": (WIDE, GELU, 8),
    "GELU by tanh": (WIDE, "0.5 * %v * (1.0 + tanh(0.79 * (%v + 0.04 * %v * %v * %v)))", 4),
    "SiLU": (ROUNDED, "%v / (1.0 + exp(-%v))", 6),
    "SiLU of f32": (WIDE, "%v / (1.0 + exp(-%v))", 8),
    "sigmoid": (WIDE, "1.0 / (1.0 + exp(-%v))", 4),
    "sine": (ROUNDED, "sin(%v) * %v", 6),
    "exponential": (ROUNDED, "exp(%v) * %v + %v", 4),
    "residual, GELU": (ROUNDED, f"{GELU} + {RESIDUAL}", 8),
    "residual": (WIDE, f"max(%v + {RESIDUAL}, 0.0)", 4),
}
"""A value, a result of it, and the bytes that are live at once."""


def epilogue(name: str) -> Epilogue:
    value, result, _ = EPILOGUES[name]
    kernel = parse_kernel(TEXT.replace("VALUE", value).replace("RESULT", result))
    product, *rest = perfect_parallel_nest(kernel.body)[-1].body
    assert isinstance(product, Reduce)
    return epilogue_of(Accesses(kernel), product, tuple(rest), frozenset("ij"))


@pytest.mark.parametrize("name", EPILOGUES)
def test_live_bytes(name: str) -> None:
    assert epilogue(name).live_bytes == EPILOGUES[name][2]


@pytest.mark.parametrize(
    ("name", "subtiles", "counted"),
    [
        ("GELU", 1, 255 + 11), ("GELU of f32", 1, 255 + 28), ("SiLU", 1, 255 + 12), ("SiLU of f32", 1, 255 + 23),
        ("sigmoid", 1, 179), ("relu", 1, 164), ("residual, GELU", 1, 255 + 76),
        ("GELU", 2, 231), ("SiLU", 2, 217),
    ],
)  # fmt: skip
def test_registers_as_the_assembler_counts(name: str, subtiles: int, counted: int) -> None:
    """Within a sixth of the registers and spilled words that ptxas 12.9 reported for 128 x 256 blocks of 8 warps on sm90."""
    value, result, _ = EPILOGUES[name]
    kernel = parse_kernel(TEXT.replace("VALUE", value).replace("RESULT", result))
    contraction = contraction_of(perfect_parallel_nest(kernel.body)[-1].body[0])
    assert contraction is not None
    found = tiled_product(Accesses(kernel), kernel.warps, contraction)
    assert found is not None
    estimate = epilogue(name).registers(*found, subtiles, GPU())
    assert estimate == pytest.approx(counted, rel=1 / 6), (estimate, counted)
    if subtiles == 1:
        assert (estimate > 255) == (counted > 255)
