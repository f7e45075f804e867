"""Dot products of packed elements as machine code: the instruction where the target has it, else one product at a time."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object_file import emit_assembly
from compiler.codegen.llvm.targets import CPU_TARGETS, host_target
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.tile_printer import print_kernel
from compiler.ir.tile.kernel import Kernel
from compiler.ir.types import DTYPES, PACKED_DTYPES, packed_dtype
from compiler.passes.manager import run_pipeline
from tests.codegen.native import kernel_inputs, run_native, runnable_targets

INSTRUCTIONS = [
    ("x86-64-v4", "avx512bf16", ("bf16x2", "bf16x2", "f32"), "vdpbf16ps"),
    ("x86-64-v4", "avx512vnni", ("u8x4", "i8x4", "i32"), "vpdpbusd"),
    ("x86-64-v3", "avxvnni", ("u8x4", "i8x4", "i32"), "vpdpbusd"),
    ("x86-64-v4", "avx512bw", ("i16x2", "i16x2", "i32"), "vpmaddwd"),
    ("x86-64-v3", "avx2", ("i16x2", "i16x2", "i32"), "vpmaddwd"),
    ("x86-64-v3", "avx2", ("i16x2", "i8x2", "i32"), "vpmaddwd"),
    ("x86-64", "sse2", ("i16x2", "u8x2", "i32"), "pmaddwd"),
    ("aarch64", "dotprod", ("i8x4", "i8x4", "i32"), "sdot"),
    ("aarch64", "dotprod", ("u8x4", "u8x4", "i32"), "udot"),
    ("aarch64", "i8mm", ("u8x4", "i8x4", "i32"), "usdot"),
    ("aarch64", "bf16", ("bf16x2", "bf16x2", "f32"), "bfdot"),
]
"""A target, the feature that it has or lacks, and the instruction for packed elements."""

PAIRS = sorted({pair for _, _, pair, _ in INSTRUCTIONS})


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


@pytest.mark.parametrize(("name", "feature", "pair", "instruction"), INSTRUCTIONS)
def test_one_instruction_for_each_register(
    name: str, feature: str, pair: tuple[str, str, str], instruction: str
) -> None:
    base = CPU_TARGETS[name]
    others = [f for f in base.features.split(",") if f != f"+{feature}"]
    plain, target = (replace(base, features=",".join(f)) for f in (others, [*others, f"+{feature}"]))
    kernel = run_pipeline(matmul(*pair, f"tile {2 * base.lanes(32)} lanes {base.lanes(32)}"), "peel")
    assembly = emit_assembly(emit_kernel(kernel, target), target)
    assert len(re.findall(rf"\t{instruction}\t", assembly)) >= 4 * 2
    assert plain.dot_instruction(PACKED_DTYPES[pair[0]], PACKED_DTYPES[pair[1]], base.lanes(32)) is None


@pytest.mark.parametrize("product", ["%x[%i, %k], %w[%k, %j]", "%w[%k, %j], %x[%i, %k]"])
def test_pairs_for_all_lanes_are_an_operand_in_memory(product: str) -> None:
    base = CPU_TARGETS["x86-64-v4"]
    target = replace(base, features=f"{base.features},+avx512bf16")
    text = print_kernel(matmul("bf16x2", "bf16x2", "f32", "tile 16 lanes 16"))
    kernel = run_pipeline(parse_kernel(text.replace("%x[%i, %k], %w[%k, %j]", product)), "peel")
    assembly = emit_assembly(emit_kernel(kernel, target), target)
    assert len(re.findall(r"\tvdpbf16ps\t.*\{1to16\}", assembly)) >= 4


@pytest.mark.parametrize("target", [*runnable_targets(), "host"])
def test_pairs_that_leave_32_bits_wrap(target: str) -> None:
    """The lowest numbers alone: the sum of two products is 2**31."""
    kernel = matmul("i16x2", "i16x2", "i32", f"tile 8 lanes {target_by_name(target).lanes(32)}")
    lowest = (np.full(p.type.static_shape(), 0x80008000, np.uint32) for p in kernel.params if p.role != "out")
    result = run_native(kernel, list(lowest), target)["y"]
    np.testing.assert_array_equal(result, np.int64(6 << 31).astype(np.int32))


@pytest.mark.parametrize("name", CPU_TARGETS)
def test_every_instruction_is_a_matrix_shape(name: str) -> None:
    """Passes see the instruction that code generation finds for whole registers."""
    target = CPU_TARGETS[name]
    for s in target.matrix_shapes:
        lhs, rhs = (packed_dtype(DTYPES[x], s.k) for x in (s.lhs, s.rhs))
        assert target.dot_instruction(lhs, rhs, target.lanes(32)) is not None


def test_the_host_says_what_it_multiplies() -> None:
    host = host_target()
    operands = {(s.lhs, s.rhs) for s in host.matrix_shapes}
    assert (("bf16", "bf16") in operands) == host.has_feature("avx512bf16")
    assert (("u8", "i8") in operands) == (host.has_feature("avx512vnni") or host.has_feature("avxvnni"))
