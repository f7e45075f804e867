"""The documentation site: a page for every pass and op, plots of the results, and no broken link."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from documents import ROOT

from compiler.ir.graph.node import CONSTANT, INPUT, OPS
from compiler.passes.pipeline_text import available_passes
from tests.python_server import PythonServer

if missing := [m for m in ("mkdocs", "material", "matplotlib") if importlib.util.find_spec(m) is None]:
    warnings.warn(f"NOT RUN: tests of the site: install {', '.join(missing)}, the extra `docs`", stacklevel=1)
    pytest.skip(f"install {', '.join(missing)}", allow_module_level=True)

from docs.site import pages
from docs.site.figures import plot, read_table

BUILT_IN = sorted(n for n, make in available_passes().items() if make.__module__.startswith("compiler."))


@pytest.fixture(scope="module")
def files(python: PythonServer) -> dict[str, str]:
    """Every file of the site, made by another process: it imports test files, whose passes and ops are declared once."""
    code = "import json; from docs.site.pages import site_files; print(json.dumps(site_files()))"
    done = python.run("-c", code, folder=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_every_pass_has_a_page(files: dict[str, str]) -> None:
    assert {f"passes/{name}.md" for name in (*BUILT_IN, "index")} == {p for p in files if p.startswith("passes/")}


def test_every_op_has_a_page(files: dict[str, str]) -> None:
    declared = {name for name, op in OPS.items() if op.type_rule.__module__.startswith("compiler.ir")}
    expected = {f"ops/{name}.md" for name in (declared | {"index"}) - {INPUT.name, CONSTANT.name}}
    assert expected == {p for p in files if p.startswith("ops/")}


def test_a_pass_shows_what_its_tests_check(files: dict[str, str]) -> None:
    page = files["passes/cse.md"]
    (before, after) = re.findall(r"^```text\n(graph.*?)\n```", page, re.M | re.S)
    assert before.count(" = ") > after.count(" = ") > 0
    assert "[`tests/passes/graph/test_cse.py`](../source/tests/passes/graph/test_cse.py.md)" in page
    without = [n for n in BUILT_IN if "## Before and after" not in files[f"passes/{n}.md"]]
    assert len(without) < 5, f"no test of these passes can be shown: {without}"


def test_an_op_shows_its_declaration_and_its_kernel(files: dict[str, str]) -> None:
    page = files["ops/silu.md"]
    assert 'silu = declare_op("silu", "x: float", Elementwise(lambda x: x / (1 + s.exp(-x)))' in page
    assert "%silu_0: f32[4, 5] = silu %x0" in page
    assert "store %v0 / (1.0 + exp(-%v0)), %out0[%i0, %i1]" in page


def test_sources_are_pages(files: dict[str, str]) -> None:
    assert "(source/compiler/passes/graph/fuse.py.md)" in files["architecture.md"]
    assert "class Fuse" in files["source/compiler/passes/graph/fuse.py.md"]
    assert "(source/compiler/math/index.md)" in files["performance.md"]
    (name,) = re.findall(r"\((float_conversion\S+)\)", files["source/compiler/math/index.md"])
    assert f"source/compiler/math/{name}" in files


def test_a_link_to_nothing_stops_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "written_pages", lambda: {"docs/x.md": "see [this](../compiler/nothing.py)"})
    monkeypatch.setattr(pages, "pass_pages", dict)
    monkeypatch.setattr(pages, "op_pages", dict)
    with pytest.raises(FileNotFoundError, match=r"docs/x.md links to compiler/nothing.py, which is not there"):
        pages.site_files()


def build(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Build a site of two pages with the settings of ours."""
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text(f"# Home\n\n{text}\n")
    (folder / "docs" / "other.md").write_text("# Other\n\n## A place\n")
    settings = f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\nsite_dir: site\nhooks: []\nnav: [index.md, other.md]\n"
    (folder / "mkdocs.yml").write_text(settings)
    command = [sys.executable, "-m", "mkdocs", "build"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize("link", ["other.md#no-place", "nothing.md", "#nowhere"])
def test_a_broken_link_fails_the_build(link: str, tmp_path: Path) -> None:
    done = build(tmp_path, f"see [this]({link})")
    assert done.returncode == 1
    assert link.rsplit("#", maxsplit=1)[-1] in done.stderr


def test_pages_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = build(tmp_path, "see [this](other.md#a-place)\n\n```python\nx = 1\n```")
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "site" / "index.html").read_text()
    assert not re.findall(r'(?:src|href)="(?:https?:)?//[^"]*"', html)
    assert 'href="other.html#a-place"' in html


def test_columns_of_one_name_are_told_apart() -> None:
    table = "| | one core | Peer | two cores | Peer |\n|---|--:|--:|--:|--:|\n| a | 2 | 1.5x | 1 | 2.5x |\n| b | 3 | - | 2 | 3 (0.5) |\n"
    comparison = read_table(table)
    assert comparison
    assert comparison.rows == ("a", "b")
    assert comparison.factors == {
        ("a", "Peer (one core)"): 1.5,
        ("a", "Peer (two cores)"): 2.5,
        ("b", "Peer (two cores)"): 0.5,
    }
    assert plot(comparison).startswith("<?xml")
    assert read_table("| | ms |\n|---|--:|\n| a | 2 |\n| b | 3 |\n") is None
