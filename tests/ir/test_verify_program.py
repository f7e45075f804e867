"""The rules of a program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.errors import VerifyError
from compiler.ir.tile import Copy, Launch, Program
from compiler.ir.tile_parser import parse_kernel
from compiler.ir.types import TensorType, f32, f64
from compiler.ir.verify_program import verify_program

KERNEL = parse_kernel("kernel @k(in %x: f32[4], out %y: f32[4]) { for %i in 0..4 { store %x[%i], %y[%i] } }")
T = TensorType(f32, (4,))
PROGRAM = Program(
    {"a": T, "t": T, "y": T, "c": T}, ("a",), ("y",), {"c": np.zeros(4, np.float32)}, {"k": KERNEL},
    (Launch("k", ("a", "t")), Launch("k", ("t", "y"))),
)  # fmt: skip


def test_a_valid_program_passes() -> None:
    verify_program(PROGRAM)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": (Launch("k", ("t", "y")),)}, "step 0: %t is read before it is written"),
        ({"steps": (Launch("k", ("a", "t")),)}, "output %y is never written"),
        ({"steps": (Launch("k", ("a", "c")), Copy("a", "y"))}, "step 0: %c is a constant and is written"),
        ({"steps": (Launch("k", ("a",)), Copy("a", "y"))}, "@k takes 2 buffers, not 1"),
        ({"steps": (Launch("m", ()), Copy("a", "y"))}, "there is no kernel @m"),
        ({"steps": (Launch("k", ("a", "z")), Copy("a", "y"))}, "%z is no buffer of the program"),
        ({"steps": (Launch("k", ("a", "a")), Copy("a", "y"))}, "writes %a, which it is also given"),
        ({"buffers": {"a": TensorType(f64, (4,)), "t": T, "y": T, "c": T}}, r"takes %x: f32\[4\], but %a is f64\[4\]"),
        ({"buffers": {"a": T, "t": TensorType(f32, (2, 2)), "y": T, "c": T}}, r"but %t is f32\[2, 2\]"),
        ({"constants": {"c": np.zeros(3, np.float32)}}, r"constant %c has 3 elements for f32\[4\]"),
        ({"outputs": ("q",)}, "%q is no buffer of the program"),
    ],
)
def test_broken_programs_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_program(replace(PROGRAM, **changes))  # type: ignore[arg-type]
