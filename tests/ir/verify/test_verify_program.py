"""The rules of a program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.errors import VerifyError
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.program import Copy, Launch, Program
from compiler.ir.types import TensorType, f32, f64
from compiler.ir.verify.program import verify_program

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
        ({"steps": (Launch("k", ("a", "c")), Copy("a", "y"))}, "step 0: constant %c is written"),
        ({"steps": (Launch("k", ("a",)), Copy("a", "y"))}, "@k takes 2 buffers, got 1"),
        ({"steps": (Launch("m", ()), Copy("a", "y"))}, "unknown kernel @m"),
        ({"steps": (Launch("k", ("a", "z")), Copy("a", "y"))}, "%z is not a buffer of the program"),
        ({"steps": (Launch("k", ("a", "a")), Copy("a", "y"))}, "writes %a, which aliases another argument"),
        ({"buffers": {"a": TensorType(f64, (4,)), "t": T, "y": T, "c": T}}, r"takes %x: f32\[4\], but %a is f64\[4\]"),
        ({"buffers": {"a": T, "t": TensorType(f32, (2, 2)), "y": T, "c": T}}, r"but %t is f32\[2, 2\]"),
        ({"constants": {"c": np.zeros(3, np.float32)}}, r"constant %c has 3 elements for f32\[4\]"),
        ({"outputs": ("q",)}, "%q is not a buffer of the program"),
    ],
)
def test_broken_programs_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_program(replace(PROGRAM, **changes))  # type: ignore[arg-type]


def boxes(*places: str) -> Program:
    """A kernel for each place that stores two elements there, in an array of four."""
    store = "for %i in 0..2 { store 1.0, %y[%i] }"
    kernels = [parse_kernel(f"kernel @k{n}(out %y: f32[2]{p}) {{ {store} }}") for n, p in enumerate(places)]
    steps = tuple(Launch(k.name, ("y",)) for k in kernels)
    return Program({"y": T}, (), ("y",), {}, {k.name: k for k in kernels}, steps)


def test_kernels_may_write_parts_of_a_buffer() -> None:
    verify_program(boxes("{0+0:2}", "{0+2:0}", "{0+1:1}"))


@pytest.mark.parametrize("place", ["", "{0}", "{0+1:0}", "{0+2:1}"])
def test_a_part_fits_its_buffer(place: str) -> None:
    with pytest.raises(VerifyError, match=r"@k0 takes %y: f32\[2\].*, but %y is f32\[4\]"):
        verify_program(boxes(place))


@pytest.mark.parametrize(("x", "overlap"), [("{0+0:2}", False), ("{0+1:1}", True), ("{0+2:0}", True)])
def test_what_a_kernel_writes_is_apart_from_what_it_reads(x: str, overlap: bool) -> None:
    kernel = parse_kernel(
        f"kernel @k(in %x: f32[2]{x}, out %y: f32[2]{{0+2:0}}) {{ for %i in 0..2 {{ store %x[1 - %i], %y[%i] }} }}"
    )
    program = Program({"y": T}, ("y",), ("y",), {}, {"k": kernel}, (Launch("k", ("y", "y")),))
    if overlap:
        with pytest.raises(VerifyError, match="@k writes %y, which aliases another argument"):
            verify_program(program)
    else:
        verify_program(program)


def test_two_results_in_one_buffer_are_apart() -> None:
    for second, fits in (("{0+2:0}", True), ("{0+1:1}", False)):
        kernel = parse_kernel(
            f"""kernel @k(out %x: f32[2]{{0+0:2}}, out %y: f32[2]{second}) {{
              for %i in 0..2 {{ store 1.0, %x[%i] store 2.0, %y[%i] }} }}"""
        )
        program = Program({"y": T}, (), ("y",), {}, {"k": kernel}, (Launch("k", ("y", "y")),))
        if fits:
            verify_program(program)
        else:
            with pytest.raises(VerifyError, match="which aliases another argument"):
                verify_program(program)


def test_results_are_written_back_into_inputs_of_their_type() -> None:
    for target in ("y", "w"):
        program = replace(PROGRAM, output_aliases={PROGRAM.outputs[0]: target})
        with pytest.raises(VerifyError, match=f"is written back into %{target}, which is no input of its type"):
            verify_program(program)
