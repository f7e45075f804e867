"""Targets are values in one registry; backends print code for them, here or elsewhere."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

import compiler
from compiler.analysis.memory_spaces import memory_problems
from compiler.codegen.backend import GRAPH_PASSES, backend_of, backends, target_by_name, targets
from compiler.errors import PassError, TargetError
from compiler.ir.interpret.tile import run_kernel
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.verify.kernel import verify_kernel
from compiler.passes.pipeline_text import parse_pipeline

EXAMPLE = Path(__file__).parents[2] / "examples" / "c_target.py"
MODEL = nn.Sequential(nn.Linear(10, 6), nn.GELU(), nn.Softmax(1))
INPUT = torch.linspace(-2, 2, 40).view(4, 10)


def test_every_target_belongs_to_a_backend() -> None:
    for name, target in targets().items():
        assert target.name == name
        assert backend_of(target).targets[name] is target
        assert target.memory
        assert target.native_dtypes
    assert {"llvm", "triton"} <= set(backends())


@pytest.mark.parametrize("target", ["sm90", "gfx942", "aarch64"])
def test_every_stage_can_be_printed_for_a_target_that_is_not_here(target: str) -> None:
    compiled = compiler.compile(MODEL, (INPUT,), options={"target": target})
    for stage in ("imported", "fused", "lowered", "scheduled", *backend_of(target_by_name(target)).listings):
        assert compiled.print_ir(stage)
    if target_by_name(target).missing_features():
        with pytest.raises(TargetError, match=f"{target} code cannot run here"):
            compiled(INPUT)
        with pytest.raises(TargetError, match="cannot run here"):
            compiled.profile()


def test_stages_are_those_of_the_target() -> None:
    compiled = compiler.compile(MODEL, (INPUT,), options={"target": "sm90"})
    assert "@triton.jit" in compiled.print_ir("triton")
    with pytest.raises(compiler.ArgumentError, match=r"no stage .llvm.; choose one of .*triton"):
        compiled.print_ir("llvm")


def test_dynamic_sizes_of_a_target_that_is_not_here() -> None:
    batch = {0: torch.export.Dim("n", min=2, max=64)}
    compiled = compiler.compile(MODEL, (INPUT,), dynamic_shapes=((batch),), options={"target": "aarch64"})
    assert "hint" in compiled.print_ir("scheduled")
    if target_by_name("aarch64").missing_features():
        with pytest.raises(TargetError):
            compiled(INPUT)


def test_unknown_targets_are_refused_with_a_suggestion() -> None:
    with pytest.raises(TargetError, match="did you mean sm90"):
        target_by_name("sm9")
    with pytest.raises(TargetError, match=r"code for host, x86-64.* runs here"):
        compiler.compile(MODEL, (INPUT,), options={"target": "z80"})


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The example's module, whose target is there for the tests of this file only."""
    known = dict(backends())
    spec = importlib.util.spec_from_file_location("c_target", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with patch.dict("compiler.codegen.backend._BACKENDS", known):
        spec.loader.exec_module(module)
        yield module


def test_a_target_from_outside_prints_its_code(example: ModuleType) -> None:
    compiled = compiler.compile(MODEL, (INPUT,), options={"target": "c99"})
    with pytest.raises(TargetError, match="c99 code cannot run here, an executable is missing"):
        compiled(INPUT)
    text = compiled.print_ir("c")
    assert len(re.findall(r"^void \w+\(", text, re.M)) >= 1
    assert "for (long " in text


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here: the printed C is not run")
def test_it_copies_asynchronous_boxes(example: ModuleType, tmp_path: Path) -> None:
    kernel = parse_kernel("""kernel @reverse(in %x: f32[4, 8], out %y: f32[4, 8]{1, 0}) {
      local %s: f32[2, 8] in memory
      for %b in 0..2 {
        copy_async %x[%b*2, 0] -> %s[0, 0] size 2, 8
        wait %s
        for %i in 0..2 { for %j in 0..8 { store %s[1 - %i, %j], %y[%b*2 + %i, %j] } }
      }
    }""")
    verify_kernel(kernel)
    assert not list(memory_problems(kernel, example.C))
    x, y, expected = np.random.default_rng(0).random((4, 8), np.float32), *np.zeros((2, 4, 8), np.float32)
    run_kernel(kernel, {"x": x, "y": expected})
    compile_c(example.print_c(kernel, example.C), tmp_path).reverse(
        *(a.ctypes.data_as(ctypes.c_void_p) for a in (x, y))
    )
    np.testing.assert_array_equal(y.reshape(8, 4).T, expected)


def compile_c(text: str, folder: Path) -> ctypes.CDLL:
    source, library = folder / "k.c", folder / "k.so"
    source.write_text(f"#include <math.h>\n#include <stdbool.h>\n#include <stdint.h>\n{text}\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
    return ctypes.CDLL(str(library))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here: the printed C is not run")
def test_what_it_prints_is_right(example: ModuleType, tmp_path: Path) -> None:
    model = nn.Softmax(1).eval()
    text = compiler.compile(model, (INPUT,), options={"target": "c99"}).print_ir("c")
    (name,) = re.findall(r"^void (\w+)\(", text, re.M)
    x, y = INPUT.numpy(), np.zeros((4, 10), np.float32)
    compile_c(text, tmp_path)[name](*(a.ctypes.data_as(ctypes.c_void_p) for a in (x, y)))
    np.testing.assert_allclose(y, model(INPUT.double()).numpy(), rtol=1e-6)


def test_gpus_leave_out_passes_by_name() -> None:
    """A name that the common pipeline lacks is an error, not a pass that stays."""
    pipelines = backends()["triton"].pipelines
    assert {p.name for p in parse_pipeline(GRAPH_PASSES)} - {p.name for p in parse_pipeline(pipelines.graph)} == {
        "widen-operands",
        "scale-rows",
        "two-level-argmax",
        "two-level-reduction",
        "lower-to-col2im",
        "winograd",
        "eliminate-padding",
    }
    assert "widen-operands" not in {p.name for p in parse_pipeline(pipelines.unfused_graph)}
    with pytest.raises(PassError, match="has no pass winograd"):
        parse_pipeline(f"{pipelines.graph},-winograd")
