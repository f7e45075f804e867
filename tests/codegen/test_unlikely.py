"""Unlikely cases: code branches around them where no lane needs them, and what it computes there is not known outside."""

from __future__ import annotations

import re

import numpy as np
import pytest
from native import assert_same_bits, run_interpreter, run_native

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.emit import emit_kernel
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Kernel
from compiler.passes.manager import run_pipeline

KERNEL = """kernel @k(in %x: f32[{n}], in %z: f32[{n}], out %y: f32[{n}], out %w: f32[{n}]) {{
  for %i in 0..{n}{form} {{
    %a = %x[%i] * 3.0
    store where_unlikely(%x[%i] >= 100.0, sqrt(%a + %z[%i]) / (%a + %z[%i]), %a), %y[%i]
    {then}
  }}
}}"""
FORMS = {"scalars": "", "vectors": " tile 16 lanes 16", "registers": " tile 64 lanes 16"}


def blocks_of(kernel: Kernel) -> dict[str, str]:
    """The basic blocks of a kernel's code by label."""
    code = emit_kernel(kernel, target_by_name("x86-64-v4"))
    return {b.split(":")[0]: b for b in re.split(r"\n(?=\w+:)", code)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("then", ["store %z[%i], %w[%i]", "store sqrt(%a + %z[%i]), %w[%i]"])
@pytest.mark.parametrize("large", [(), (3,), (0, 17, 18, 63), range(64)], ids=len)
def test_each_lane_has_its_case(form: str, then: str, large: tuple[int, ...]) -> None:
    kernel = parse_kernel(KERNEL.format(n=128, form=FORMS[form], then=then))
    x = np.linspace(1, 50, 128, dtype=np.float32)
    x[list(large)] = 1000
    inputs = [x, np.arange(128, dtype=np.float32)]
    want, got = run_interpreter(kernel, inputs), run_native(kernel, inputs, "host")
    for name in ("y", "w"):
        assert_same_bits(want[name], got[name], name)


@pytest.mark.parametrize("form", FORMS)
def test_the_unlikely_value_stands_behind_a_branch(form: str) -> None:
    text = KERNEL.format(n=128, form=FORMS[form], then="store %z[%i], %w[%i]")
    blocks = blocks_of(parse_kernel(text))
    behind = [b for name, b in blocks.items() if name.startswith("then")]
    assert behind
    assert all("sqrt" in b and "fdiv" in b for b in behind)
    others = "".join(b for name, b in blocks.items() if not name.startswith("then"))
    assert " @llvm.sqrt" not in others.partition("declare")[0]
    assert "fdiv" not in others


def test_sines_of_moderate_arguments_do_without_the_reduction_of_large_ones() -> None:
    """The bits of 2/pi are in the branch."""
    kernel = parse_kernel("""kernel @k(in %x: f64[64], out %y: f64[64]) {
      for %i in 0..64 tile 8 lanes 8 { store sin(%x[%i]), %y[%i] } }""")
    blocks = blocks_of(run_pipeline(kernel, "expand-math"))
    sizes = {name[:4]: b.count("\n") for name, b in blocks.items()}
    assert sizes["then"] > 4 * sizes["loop"]
