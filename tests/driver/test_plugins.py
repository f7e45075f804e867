"""A package from outside, installed with entry points: its passes, ops and targets are seen by commands, calls and pytest."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
from documents import ROOT, blocks, write_files

from compiler.driver.plugins import load_modules
from compiler.errors import PluginError
from tests.python_server import PythonServer
from tests.report.explore.pages import page_data

TUTORIAL = "docs/first-pass.md"
MODULES = {"my_passes": "", "add_an_op": "examples/add_an_op.py", "c_target": "examples/c_target.py"}
"""Modules of the package: the passes of the tutorial, and two examples."""

MODEL = """
import torch

import compiler


class Fade(torch.nn.Module):
    def forward(self, x):
        return torch.ops.example.smoothstep(x, 0.0, 1.0) * x


x = torch.linspace(-3, 3, 40)
compiled = compiler.compile(Fade(), (x,))
assert (compiled(x) - Fade()(x.double())).abs().max() < 1e-6
assert "smoothstep" in compiled.print_ir("imported")
fast = torch.compile(Fade(), backend="tilewright", options={"fallback": "error"})
assert (fast(x) - Fade()(x.double())).abs().max() < 1e-6
torch.export.save(torch.export.export(Fade(), (x,)), "model.pt2")
print(compiler.compile(Fade(), (x,), options=compiler.Options(target="c99")).print_ir("c"))
"""


Run: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(python: PythonServer) -> Run:
    """Runs Python in a folder, with the packages of `installed`."""

    def run_python(folder: Path, *command: str, installed: Path | None = None) -> subprocess.CompletedProcess[str]:
        return python.run(*command, folder=folder, PYTHONPATH=os.pathsep.join(map(str, (installed or folder, ROOT))))

    return run_python


@pytest.fixture(scope="module")
def installed(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as pip installs it."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    write_files(TUTORIAL, source)
    for module, file in MODULES.items():
        if file:
            (source / f"{module}.py").write_text((ROOT / file).read_text())
    project = source / "pyproject.toml"
    entries = "\n".join(f'{m.replace("_", "-")} = "{m}"' for m in MODULES)
    text = project.read_text().replace('my-passes = "my_passes"', entries)
    project.write_text(text.replace('["my_passes"]', str(list(MODULES))))
    pip = [
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--target",
        str(folder),
        ".",
    ]
    done = run(source, *pip)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A folder with a package whose plugin fails, as an installer leaves it."""
    (tmp_path / "broken.py").write_text("names = {}\nnames['oh']\n")
    metadata = tmp_path / "broken_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[tilewright.plugins]\noh = broken\n")
    return tmp_path


def test_the_package_of_the_tutorial_is_short() -> None:
    (package,) = (b.text for b in blocks(TUTORIAL) if b.title == "my_passes.py")
    assert sum(bool(line.strip()) for line in package.splitlines()) < 30


def test_passes_of_a_plugin_run_in_edited_pipelines(run: Run, installed: Path, tmp_path: Path) -> None:
    text = "graph(%x: f32[4, 1000]) { %s = sigmoid %x  %y = mul %x, %s  return %y }"
    (tmp_path / "x.ir").write_text(text)
    pipelines = ["-p", "default,+gate-to-silu@before:decompose", "--lower", "default,+unroll-short@before:parallelize"]
    done = run(tmp_path, "-m", "compiler", "opt", "x.ir", *pipelines, "--check", "--remarks", installed=installed)
    assert done.returncode == 0, done.stderr
    assert "applied gate-to-silu" in done.stderr
    assert "0..4 unroll 4" in done.stdout
    done = run(tmp_path, "-m", "compiler", "passes", installed=installed)
    assert {"gate-to-silu", "unroll-short{max-steps=8}"} <= set(done.stdout.split("\n"))


class Gate(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x)


def test_passes_of_a_plugin_are_steps_of_the_page(run: Run, installed: Path, tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Gate(), (torch.randn(4, 1000),)), tmp_path / "model.pt2")
    passes = ["--graph-passes", "default,+gate-to-silu@before:decompose"]
    passes += ["--tile-passes", "default,+unroll-short@before:parallelize"]
    done = run(tmp_path, "-m", "compiler", "explore", "model.pt2", "-o", "page.html", *passes, installed=installed)
    assert done.returncode == 0, done.stderr
    (way,) = page_data(tmp_path / "page.html")["ways"]
    (gated,) = (s for s in way["graph"]["steps"] if s["name"] == "gate-to-silu")
    assert len(gated["rewrites"]) == 1
    (kernel,) = way["kernels"]
    assert "unroll-short" in {s["name"] for s in kernel["tile"]["steps"]}


def test_an_op_of_a_plugin_is_text_and_code(run: Run, installed: Path, tmp_path: Path) -> None:
    (tmp_path / "x.ir").write_text("graph(%x: f32[9]) { %y = smoothstep %x {edge0=1.0, edge1=3.0}  return %y }")
    done = run(tmp_path, "-m", "compiler", "opt", "x.ir", "-p", "fuse", "--lower", "--check", installed=installed)
    assert done.returncode == 0, done.stderr
    assert "(%x0[%i0] - 1.0) / 2.0" in done.stdout


def test_a_model_takes_ops_and_targets_of_plugins(run: Run, installed: Path, tmp_path: Path) -> None:
    """The model names an operator that nothing but the plugin registers; so does its file."""
    done = run(tmp_path, "-c", MODEL, installed=installed)
    assert done.returncode == 0, done.stderr
    assert "for (long v_i0 = 0; v_i0 < 40; v_i0++)" in done.stdout
    command = ["compile", "model.pt2", "--target", "c99", "--print-ir", "c"]
    printed = run(tmp_path, "-m", "compiler", *command, installed=installed)
    assert printed.stdout == done.stdout, printed.stderr


def test_help_lists_targets_of_plugins(run: Run, installed: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "compiler", "compile", "--help", installed=installed)
    assert "c99" in done.stdout.replace(",", "").split(), done.stderr
    done = run(tmp_path, "-m", "compiler", "opt", "--help", "--load", "c_target", installed=ROOT / "examples")
    assert "c99" in done.stdout.replace(",", "").split(), done.stderr


def test_a_plugin_that_fails_is_named_with_its_line(run: Run, broken: Path) -> None:
    done = run(broken, "-m", "compiler", "passes")
    assert done.returncode == 1
    assert done.stderr == (
        "error: plugin oh (broken) cannot be loaded: "
        f"KeyError: 'oh' ({broken}/broken.py:2); repair or uninstall the package broken-package\n"
    )
    done = run(broken, "-c", "import torch, compiler; compiler.compile(torch.nn.ReLU(), (torch.ones(2),))")
    assert "compiler.errors.PluginError: plugin oh (broken) cannot be loaded" in done.stderr


def test_a_module_that_is_not_there(broken: Path) -> None:
    with pytest.raises(PluginError, match=r"module no_such cannot be loaded: .*'no_such'; give the name of a module"):
        load_modules(["no_such"])


def test_an_unknown_pass_says_where_passes_come_from(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.ir").write_text("graph(%x: f32[9]) { return %x }")
    done = run(tmp_path, "-m", "compiler", "opt", "x.ir", "-p", "default,+zzz@before:fuse")
    assert done.returncode == 1
    assert "column 10: no pass is called zzz; `tilewright passes` lists them" in done.stderr
    assert "(--load MODULE)\n  default,+zzz@before:fuse\n           ^" in done.stderr


def test_pytest_blesses_in_any_project(run: Run, installed: Path, tmp_path: Path) -> None:
    text = "graph(%x: f32[4]) { %s = sigmoid %x  %y = mul %x, %s  return %y }"
    test = tmp_path / "test_newcomer.py"
    test.write_text(
        f"import my_passes\nfrom compiler.testing import check_pass\n\n\ndef test_silu():\n"
        f'    check_pass(\'gate-to-silu\', before={text!r}, after="""graph(%x: f32[4]) {{ return %x }}""")\n'
    )
    done = run(tmp_path, "-m", "pytest", "-q", "--bless", "test_newcomer.py", installed=installed)
    assert done.returncode == 0, done.stdout
    assert "silu %x" in test.read_text()
