"""Packed elements from values in vectors, in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from native import check_kernel

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object_file import emit_assembly
from compiler.codegen.llvm.targets import CPUTarget
from compiler.ir.text.tile_parser import parse_kernel


def kernel(packed: str, loops: str, columns: int = 37) -> str:
    element, count = packed.split("x")
    values = ", ".join(f"%x[{k}, %j]" for k in range(int(count)))
    return f"""kernel @k(in %x: {element}[{count}, {columns}], out %y: {packed}[{columns}]) {{
      for %j in 0..{columns} {loops} {{ store pack<{packed}>({values}), %y[%j] }}
    }}"""


@pytest.mark.parametrize("packed", ["u8x4", "i8x4", "u8x2", "bf16x2", "i16x2"])
@pytest.mark.parametrize("loops", ["tile 32 lanes 16", "tile 8 lanes 8", "tile 4 lanes 4", "tile 3", ""])
def test_values_are_in_order(packed: str, loops: str, target: str) -> None:
    check_kernel(kernel(packed, loops, 36 if loops == "tile 3" else 37), target, high=100)


def test_orders_of_two_and_four_bytes() -> None:
    text = """kernel @k(in %x: u8[4, 64], out %y: u8x4[64], out %z: u8x2[64]) {
      for %j in 0..64 tile 16 lanes 16 { store pack<u8x4>(%x[0, %j], %x[1, %j], %x[2, %j], %x[3, %j]), %y[%j] }
      for %k in 0..64 tile 32 lanes 32 { store pack<u8x2>(%x[0, %k], %x[1, %k]), %z[%k] } }"""
    check_kernel(text, "host")


def test_one_instruction_permutes_bytes() -> None:
    base = target_by_name("x86-64-v4")
    assert isinstance(base, CPUTarget)
    text = kernel("u8x4", "tile 16 lanes 16", 32)
    for target in (base, replace(base, features=f"{base.features},+avx512vbmi")):
        assembly = emit_assembly(emit_kernel(parse_kernel(text), target), target)
        assert ("vpermb" in assembly) == target.has_feature("avx512vbmi") == ("vpunpcklbw" not in assembly)


def test_scalars_are_joined_by_shifts() -> None:
    """A broadcast follows; LLVM would insert scalars into each lane of a vector."""
    target = target_by_name("x86-64-v4")
    assert isinstance(target, CPUTarget)
    text = """kernel @k(in %x: bf16[2, 30], out %y: bf16x2[16, 30]) {
      for %i in 0..30 { for %j in 0..16 tile 16 lanes 16 { store pack<bf16x2>(%x[0, %i], %x[1, %i]), %y[%j, %i] } } }"""
    assembly = emit_assembly(emit_kernel(parse_kernel(text), target), target)
    assert "vpinsrw" not in assembly
    assert "vpbroadcastd" in assembly
