"""Dot products of packed elements as machine code: the instruction where the target has it, else one product at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object_file import emit_assembly
from compiler.codegen.llvm.targets import CPU_TARGETS, host_target
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Kernel
from compiler.ir.types import DTYPES, PACKED_DTYPES
from compiler.passes.manager import run_pipeline
from tests.codegen.native import kernel_inputs, run_native, runnable_targets

PAIRS = [("bf16x2", "bf16x2", "f32"), ("u8x4", "i8x4", "i32")]


def matmul(lhs: str, rhs: str, total: str, loops: str = "tile 32 lanes 16") -> Kernel:
    return parse_kernel(f"""kernel @k(in %x: {lhs}[5, 6], in %w: {rhs}[6, 40], out %y: {total}[5, 40]) {{
      for %i in 0..5 tile 4 {{ for %j in 0..40 {loops} {{
        %s = reduce add %k in 0..6 {{ yield dot<{total}>(%x[%i, %k], %w[%k, %j]) }}
        store %s, %y[%i, %j]
      }} }}
    }}""")


@pytest.mark.parametrize(("lhs", "rhs", "total"), PAIRS)
@pytest.mark.parametrize("loops", ["tile 32 lanes 16", "tile 8 lanes 8", "tile 4 lanes 4", ""])
def test_sums_of_products(lhs: str, rhs: str, total: str, loops: str) -> None:
    """Against sums of single products in 64 bits: integers are exact, floats differ by rounding."""
    kernel = matmul(lhs, rhs, total, loops)
    x, w = kernel_inputs(kernel, high=256)
    single_x, single_w = (PACKED_DTYPES[d].unpack(a).astype(np.float64) for d, a in ((lhs, x), (rhs, w)))
    expected = np.einsum("ikc,kjc->ij", single_x, single_w)
    for target in (*runnable_targets(), "host"):
        result = run_native(kernel, [x, w], target)["y"]
        if DTYPES[total].is_integer:
            np.testing.assert_array_equal(result, expected, target)
        else:
            np.testing.assert_allclose(result, expected, 1e-5, 1e-5, err_msg=target)


@pytest.mark.parametrize(
    ("pair", "feature", "instruction"), zip(PAIRS, ("avx512bf16", "avx512vnni"), ("vdpbf16ps", "vpdpbusd"), strict=True)
)
def test_one_instruction_for_each_register(pair: tuple[str, str, str], feature: str, instruction: str) -> None:
    plain = CPU_TARGETS["x86-64-v4"]
    target = replace(plain, features=f"{plain.features},+{feature}")
    kernel = run_pipeline(matmul(*pair), "peel")
    assembly = emit_assembly(emit_kernel(kernel, target), target)
    assert assembly.count(f"{instruction}\t") >= 4 * 2
    assert f"{instruction}\t" not in emit_assembly(emit_kernel(kernel, plain), plain)


def test_the_host_says_what_it_multiplies() -> None:
    host = host_target()
    operands = {(s.lhs, s.rhs) for s in host.matrix_shapes}
    assert (("bf16", "bf16") in operands) == host.has_feature("avx512bf16")
    assert (("u8", "i8") in operands) == (host.has_feature("avx512vnni") or host.has_feature("avxvnni"))
