"""The kernel bench: wrong kernels are named, right ones are timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from compiler.codegen.llvm.targets import host_target
from compiler.ir.text.tile_parser import parse_kernel
from compiler.tools import kernel_bench
from compiler.tools.cli import main
from compiler.tools.kernel_bench import bench

SCALAR = "kernel @scale(in %x: f32[100], out %y: f32[100]) { for %i in 0..100 { store exp(%x[%i]), %y[%i] } }"
VECTOR = SCALAR.replace("0..100 {", "0..100 tile 16 lanes 16 {")
WRONG = VECTOR.replace("exp(%x[%i])", "exp(%x[%i]) + 1.0")
LOOKUP = """kernel @lookup(in %t: f32[5], in %i: i64[8], out %y: f32[8]) {
  for %n in 0..8 { %k = %i[%n]   check %k in 0..5   store %t[%k], %y[%n] }
}"""


def write(folder: Path, **texts: str) -> list[str]:
    files = [folder / f"{name}.ir" for name in texts]
    for file, text in zip(files, texts.values(), strict=True):
        file.write_text(text)
    return [str(f) for f in files]


def test_kernels_are_timed_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # long names are folded
    assert main(["bench", *write(Path(), scalar=SCALAR, vector=VECTOR), "--seconds", "0.01"]) == 0
    printed = capsys.readouterr().out
    assert "roofline" in printed
    assert "interpreter" in printed
    assert "vector.ir" in printed


def test_schedules_of_a_kernel_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # long names are folded
    Path("one.txt").write_text("schedule @scale { vectorize %i by 16 }")
    Path("four.txt").write_text("schedule @scale { vectorize %i by 16 tile %i by 64 }")
    flags = ["--schedule", "one.txt", "--schedule", "four.txt", "--seconds", "0.01"]
    assert main(["bench", *write(Path(), scalar=SCALAR), *flags]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("scalar.ir", "one.txt", "four.txt"))


def test_kernels_of_boxes_inside_arrays_are_checked() -> None:
    boxes = """kernel @twice(in %x: f32[100]{0+4:2}, out %y: f32[100]{0+1:3}) {
      for %i in 0..100 { store %x[%i] + %x[%i], %y[%i] }
    }"""
    wrong = boxes.replace("+ %x[%i]", "+ 1.0")
    right, moved = bench({"right": parse_kernel(boxes), "moved": parse_kernel(wrong)}, host_target(), 0.01)
    assert (right.checked, right.problem) == ("interpreter", "")
    assert moved.problem


def test_a_wrong_kernel_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *write(tmp_path, scalar=SCALAR, wrong=WRONG), "--seconds", "0.01"]) == 1
    assert "wrong.ir is wrong: %y: 100 of 100 elements differ" in capsys.readouterr().err


def test_another_signature_fails() -> None:
    kernels = {"a": parse_kernel(LOOKUP), "b": parse_kernel(LOOKUP.replace("i64[8]", "i32[8]"))}
    good, bad = bench(kernels, host_target(), 0.01)
    assert not good.problem
    assert "a parameter is `in i32[8]`, not `in i64[8]`" in bad.problem


def test_a_large_kernel_is_compared_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_bench, "MAX_INTERPRETED", 10)
    text = SCALAR.replace("exp(%x[%i])", "%x[%i]")
    first, second = bench({"a": parse_kernel(text), "b": parse_kernel(text)}, host_target(), 0.01)
    assert first.checked.startswith("nothing")
    assert second.checked == "a"


def test_generated_code_is_compared_with_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_bench, "run_on", lambda kernel, inputs, sizes: [inputs[0] + 1])
    (row,) = bench({"a": parse_kernel(SCALAR.replace("exp(%x[%i])", "%x[%i]"))}, host_target(), 0.01)
    assert "elements differ" in row.problem
