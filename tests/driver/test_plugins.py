"""A package of a newcomer, installed by path: its passes are seen by the command line and by pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compiler.driver.plugins import load_modules
from compiler.errors import PluginError

PACKAGE = '''"""Two passes of a newcomer."""
from dataclasses import dataclass, replace

from compiler.ir import ops
from compiler.passes.base import TilePass, register
from compiler.passes.pattern import any_value, rewrite

x = any_value("x", dtype="float")


@rewrite(ops.mul(x, ops.sigmoid(x)))
def newcomer_silu(m):
    """x * sigmoid(x) -> silu(x)"""
    return ops.silu(m[x])


@register
@dataclass(frozen=True)
class Serial(TilePass):
    """Run outer loops on one thread."""

    name = "newcomer-serial"

    def run(self, ir, context):
        return ir.with_body(tuple(replace(s, parallel=False) for s in ir.body))
'''
GRAPH = "graph(%x: f32[40]) { %s = sigmoid %x  %y = mul %x, %s  return %y }"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with the newcomer's, as an installer leaves it."""
    (tmp_path / "newcomer.py").write_text(PACKAGE)
    metadata = tmp_path / "newcomer-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: newcomer\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[tilewright.plugins]\nsilu = newcomer\n")
    (tmp_path / "x.ir").write_text(GRAPH)
    return tmp_path


def run(site: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), str(Path(__file__).parents[2])])
    return subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=site,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_passes_of_a_plugin_run_in_edited_pipelines(site: Path) -> None:
    command = ["opt", "x.ir", "-p", "default,+newcomer-silu@before:decompose", "--lower", "newcomer-serial", "--check"]
    done = run(site, "compiler", *command)
    assert done.returncode == 0, done.stderr
    assert "for %i0 in 0..40" in done.stdout
    assert "parallel" not in done.stdout


def test_a_plugin_that_fails_is_named(site: Path) -> None:
    (site / "newcomer.py").write_text("raise KeyError('oh')")
    done = run(site, "compiler", "passes")
    assert done.returncode == 1
    assert done.stderr == "error: plugin silu (newcomer) of package newcomer cannot be loaded: KeyError: 'oh'\n"


def test_a_module_is_loaded_by_name(site: Path) -> None:
    (site / "newcomer-1.0.dist-info" / "entry_points.txt").write_text("")
    done = run(site, "compiler", "passes", "newcomer-silu", "--load", "newcomer")
    assert done.stdout == "newcomer-silu\n    x * sigmoid(x) -> silu(x)\n\n", done.stderr
    with pytest.raises(PluginError, match="module no_such cannot be loaded: ModuleNotFoundError"):
        load_modules(["no_such"])


def test_pytest_blesses_in_any_project(site: Path) -> None:
    text = "graph(%x: f32[4]) { %s = sigmoid %x  %y = mul %x, %s  return %y }"
    test = site / "test_newcomer.py"
    test.write_text(
        f"import newcomer\nfrom compiler.testing import check_pass\n\n\ndef test_silu():\n"
        f'    check_pass(\'newcomer-silu\', before={text!r}, after="""graph(%x: f32[4]) {{ return %x }}""")\n'
    )
    done = run(site, "pytest", "-q", "--bless", "test_newcomer.py")
    assert done.returncode == 0, done.stdout
    assert "silu %x" in test.read_text()
