"""Instructions for dot products are used where they take less time than multiply-adds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.codegen.llvm.targets import cpu_target
from compiler.cost.machine import AVX512, shipped_machine
from compiler.passes.base import Context


@pytest.mark.parametrize(("rate", "expected"), [(2.0, {"bf16", "u8"}), (1.0, {"u8"}), (0.45, {"u8"})])
def test_a_dot_product_of_pairs_must_beat_two_multiply_adds(rate: float, expected: set[str]) -> None:
    machine = replace(AVX512, bf16_dots_per_cycle=rate)
    target = cpu_target("t", "x86_64", "", "+avx512bf16,+avx512vnni", 512, 32, machine)
    assert {s.lhs for s in Context.for_target(target).matrix_shapes} == expected
    assert {s.lhs for s in target.matrix_shapes} == {"bf16", "u8"}


def test_shipped_descriptions() -> None:
    answers = {
        n: shipped_machine(n).multiplies_sooner("bf16", 2) for n in ("avx512", "znver4", "emeraldrapids", "h100")
    }
    assert answers == {"avx512": True, "znver4": True, "emeraldrapids": False, "h100": True}
