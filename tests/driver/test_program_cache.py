"""The cache of programs: a second process gets the same program without running a pass, and nothing else gets it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import compiler
from compiler.driver.program_cache import plugin_sources
from compiler.ir.types import Layout, PhysicalDim, TensorType, f32
from compiler.passes import base
from compiler.runtime.constants import pack, unpack
from compiler.runtime.memory import ALIGNMENT

SCRIPT = """
import json, sys, torch, compiler
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(576, 10)).eval()
x = torch.randn(2, 3, 8, 8)
made = compiler.compile(net, (x,), options={"cache": sys.argv[1]})
assert torch.allclose(made(x), net(x), atol=1e-5)
print(json.dumps([made.compile_seconds["passes"], made(x).flatten().tolist(), made.print_ir("scheduled")]))
"""


def run_process(cache: Path, seed: str) -> list[Any]:
    env = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(cache)], check=True, capture_output=True, env=env, text=True
    )
    result: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_a_second_process_runs_no_pass(tmp_path: Path) -> None:
    (first, *results), (second, *same) = run_process(tmp_path, "1"), run_process(tmp_path, "2")
    assert first > 0
    assert second == 0
    assert results == same


def linear(scale: float = 1.0) -> torch.nn.Module:
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(48, 32), torch.nn.GELU(), torch.nn.Linear(32, 7)).eval()
    with torch.no_grad():
        made[0].weight.mul_(scale)
    return made


def is_found(cache: Path, model: torch.nn.Module, *sizes: int, **options: Any) -> bool:
    """Compile for an input of `sizes`, check the result, and return if the program came from the cache."""
    x = torch.randn(*sizes)
    made = compiler.compile(model, (x,), options={"cache": str(cache), **options})
    torch.testing.assert_close(made(x), model(x), atol=1e-5, rtol=1e-5)
    return made.compile_seconds["passes"] == 0


def test_what_differs_is_compiled(tmp_path: Path) -> None:
    assert not is_found(tmp_path, linear(), 5, 48)
    assert is_found(tmp_path, linear(), 5, 48)
    assert not is_found(tmp_path, linear(2.0), 5, 48)
    assert not is_found(tmp_path, linear(), 6, 48)
    assert not is_found(tmp_path, linear(), 5, 48, fuse=False)
    assert not is_found(tmp_path, linear(), 5, 48, verify=True)


def test_a_damaged_entry_is_replaced(tmp_path: Path) -> None:
    assert not is_found(tmp_path, linear(), 5, 48)
    (entry,) = (tmp_path / "programs").iterdir()
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 1
    entry.write_bytes(data)
    assert not is_found(tmp_path, linear(), 5, 48)
    assert is_found(tmp_path, linear(), 5, 48)


def test_computed_constants_start_on_a_cache_line(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.Conv2d(5, 7, 1)).eval()
    x = torch.randn(1, 3, 8, 8)
    assert not is_found(tmp_path, net, 1, 3, 8, 8)
    made = compiler.compile(net, (x,), options={"cache": str(tmp_path)})
    assert all(array.ctypes.data % ALIGNMENT == 0 for array in made.executable.constants.values())


def test_dynamic_sizes_share_an_entry(tmp_path: Path) -> None:
    x, rows = torch.randn(5, 48), torch.export.Dim("rows", min=2, max=64)
    for found in (False, True):
        made = compiler.compile(linear(), (x,), dynamic_shapes=({0: rows},), options={"cache": str(tmp_path)})
        for n in (2, 5, 64):
            y = torch.randn(n, 48)
            torch.testing.assert_close(made(y), linear()(y), atol=1e-5, rtol=1e-5)
        assert (made.compile_seconds["passes"] == 0) == found


def test_opaque_calls_are_kept(tmp_path: Path) -> None:
    class Sorted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.det(x * 2) + x.sum()

    x = torch.randn(4, 4)
    for found in (False, True):
        made = compiler.compile(Sorted(), (x,), options={"cache": str(tmp_path)})
        torch.testing.assert_close(made(x), Sorted()(x))
        assert (made.compile_seconds["passes"] == 0) == found


def test_complex_numbers_tell_programs_apart(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self, scale: complex) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.view_as_real(x * self.scale)

    x = torch.randn(3, dtype=torch.complex64)
    for scale, is_found in ((2 + 1j, False), (complex(-0.0, float("inf")), False), (2 + 1j, True)):
        made = compiler.compile(Scaled(scale), (x,), options={"cache": str(tmp_path)})
        torch.testing.assert_close(made(x), Scaled(scale)(x), equal_nan=True)
        assert (made.compile_seconds["passes"] == 0) == is_found


@pytest.mark.parametrize(
    "dims",
    [
        (PhysicalDim(1), PhysicalDim(0)),
        (PhysicalDim(0, 4), PhysicalDim(1), PhysicalDim(0, 4, is_inner=True)),
        (PhysicalDim(1, 8), PhysicalDim(0, 4), PhysicalDim(1, 8, is_inner=True), PhysicalDim(0, 4, is_inner=True)),
    ],
)
def test_unpack_is_the_inverse_of_pack(dims: tuple[PhysicalDim, ...]) -> None:
    array = np.arange(70, dtype=np.float32).reshape(7, 10)
    packed = np.ascontiguousarray(pack(array, Layout(dims)))
    assert np.array_equal(unpack(packed, TensorType(f32, (7, 10), Layout(dims))), array)


def test_an_edited_plugin_is_another_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edited_plugin.py").write_text(
        "from compiler.ir import ops\nfrom compiler.passes.pattern import any_value, rewrite\n\nx = any_value('x')\n\n\n"
        "@rewrite(ops.neg(ops.neg(x)))\ndef drop_neg(m):\n    return m[x]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("edited_plugin")
    try:
        found = [is_found(tmp_path / "cache", linear(), 5, 48) for _ in range(2)]
        (tmp_path / "edited_plugin.py").write_text("x = None\n")
        found.append(is_found(tmp_path / "cache", linear(), 5, 48))
        monkeypatch.delattr(sys.modules["edited_plugin"], "__file__")
        found += [is_found(tmp_path / "cache", linear(), 5, 48) for _ in range(2)]
        assert found == [False, True, False, False, False]
    finally:
        del base.PASSES["drop-neg"]


def test_a_partial_application_belongs_to_the_package_of_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = plugin_sources()
    monkeypatch.setitem(base.PASSES, "dedent", partial(textwrap.dedent))
    assert set(plugin_sources()) - set(sources) == {sha256(Path(textwrap.__file__).read_bytes()).hexdigest()}
