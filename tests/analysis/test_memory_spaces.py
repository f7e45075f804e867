"""Local buffers name the memory they lie in; a target says whether it has such a memory, and how large."""

from __future__ import annotations

import pytest

from compiler.analysis.memory_spaces import check_memory, memory_problems
from compiler.codegen.backend import target_by_name
from compiler.errors import VerifyError
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from compiler.ir.text.tile_printer import print_kernel
from compiler.passes.manager import run_pipeline
from compiler.target import MemorySpace, Target

KERNEL = """kernel @k(in %x: f32[64, 64], out %y: f32[64, 64]) {
  parallel %i in 0..64 {
    local %t: f32[64]SPACE
    for %j in 0..64 { store %x[%i, %j], %t[%j] }
    for %j in 0..64 { store %t[%j], %y[%i, %j] }
  }
}"""


@pytest.mark.parametrize("space", ["", " in shared", " in stack"])
def test_the_space_round_trips(space: str) -> None:
    kernel = parse_kernel(KERNEL.replace("SPACE", space))
    assert f"local %t: f32[64]{space}\n" in print_kernel(kernel)
    assert parse_kernel(print_kernel(kernel)) == kernel


@pytest.mark.parametrize(("target", "space"), [("sm90", "shared"), ("x86-64-v3", "stack"), ("sm90", "")])
def test_a_space_of_the_target_is_accepted(target: str, space: str) -> None:
    kernel = parse_kernel(KERNEL.replace("SPACE", space and f" in {space}"))
    assert not list(memory_problems(kernel, target_by_name(target)))


COPY = """kernel @k(in %x: f32[64, 64], out %y: f32[64, 64]) {
  local %t: f32[64]SPACE
  copy_async %x[0, 0] -> %t[0] size 64
  wait %t
}"""


@pytest.mark.parametrize(
    ("space", "problems"), [(" in memory", []), (" in scratch", ["in scratch"]), ("", ["in no space"])]
)
def test_asynchronous_copies_need_a_target_that_has_them(space: str, problems: list[str]) -> None:
    memory = MemorySpace("scratch", None, "block"), MemorySpace("memory", None, "device")
    paths = (("memory", "memory"), ("scratch", "memory"))
    toy = Target(name="toy", backend="c", native_dtypes=(), memory=memory, async_copies=paths)
    kernel = parse_kernel(COPY.replace("SPACE", space))
    expected = "@k: toy has no asynchronous copy from %x in memory to %t {}; run lower-async-copies"
    assert list(memory_problems(kernel, toy)) == list(map(expected.format, problems))
    assert not list(memory_problems(run_pipeline(kernel, "lower-async-copies"), toy))


def test_all_problems_are_reported_at_once() -> None:
    large = KERNEL.replace("f32[64]SPACE", "f32[100000] in shared")
    text = f"program {{ input %a: f32[64, 64]  output %b: f32[64, 64]  {large}  launch @k(%a, %b) }}"
    with pytest.raises(VerifyError, match=r"%t takes 400000 bytes of shared; sm90 has 232448"):
        check_memory(parse_program(text), target_by_name("sm90"))
    with pytest.raises(VerifyError, match=r"%t lies in shared; x86-64-v3 has registers, stack, memory"):
        check_memory(parse_program(text), target_by_name("x86-64-v3"))
