"""What the documentation shows is what the code does: its scripts and commands run, and print what stands there.

`pytest --bless` writes what is printed now into the pages.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import os
import re
import shlex
import textwrap
import warnings
from dataclasses import fields
from itertools import takewhile
from operator import itemgetter
from pathlib import Path

import pytest
from documents import PAGES, ROOT, Block, blocks, notebook, steps, write_files

from compiler.codegen.llvm.backend import TILE_PASSES
from compiler.options import Options
from compiler.passes.base import Context
from compiler.tools.cli import build_parser
from compiler.tools.cli import main as tilewright
from tests.python_server import PythonServer

PROGRAMS = {"python": [], "pytest": ["-m", "pytest"], "tilewright": ["-m", "compiler"]}
"""Commands of the pages, as arguments of Python."""


def run(python: PythonServer, folder: Path, command: list[str], **variables: str) -> str:
    """What Python prints, with `variables` in its environment."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = python.run(*command, folder=folder, PYTHONPATH=path, PYTHONWARNINGS="ignore", **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_script(python: PythonServer, folder: Path, block: Block) -> str:
    return run(python, folder, [str(block.example)] if block.example else ["-c", block.text])


def missing_packages(script: str) -> list[str]:
    """Packages that a script imports or takes files from, and that are not installed."""
    names = re.findall(r"^(?:import|from) (\w+)", script, re.M) + re.findall(r'files\("(\w+)"\)', script)
    return sorted({n for n in names if importlib.util.find_spec(n) is None})


def run_commands(python: PythonServer, folder: Path, block: Block, capsys: pytest.CaptureFixture[str]) -> str:
    """What the commands of a block print, each behind its line; `tilewright` runs in this process."""
    shown = ""
    for line in block.commands:
        words = shlex.split(line)
        variables = dict(w.split("=", 1) for w in takewhile(lambda w: re.match(r"[A-Z_]+=", w), words))
        command = words[len(variables) :]
        if command[0] == "tilewright" and "--load" not in command:
            assert tilewright(command[1:]) == 0, capsys.readouterr().err
            printed = capsys.readouterr().out
        else:
            printed = run(python, folder, [*PROGRAMS[command[0]], *command[1:]], **variables)
        shown += f"$ {line}\n{printed}"
    return shown


def is_sequence(page: str) -> bool:
    """Whether the blocks of a page run in one folder, one after the other; otherwise it is a list of scripts."""
    return any(b.title or b.kind == "console" for b in blocks(page))


SEQUENCES = [page for page in PAGES if is_sequence(page) and steps(page)]
SCRIPTS = [
    pytest.param(*step, id=f"{page}: {step[0].section}")
    for page in PAGES
    if not is_sequence(page)
    for step in steps(page)
]


@pytest.mark.parametrize("page", SEQUENCES)
def test_page_from_top_to_bottom(
    page: str,
    tmp_path: Path,
    python: PythonServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    for block, output in steps(page):
        if block.kind == "console":
            block.must_be(run_commands(python, tmp_path, block, capsys))
            continue
        printed = run_script(python, tmp_path, block)
        if output:
            output.must_be(printed)


@pytest.mark.parametrize(("script", "output"), SCRIPTS)
def test_script(script: Block, output: Block | None, tmp_path: Path, python: PythonServer) -> None:
    """The scripts check themselves; one whose packages are not installed is skipped with a warning."""
    assert script.kind == "python", f"{script.section}: say why it is not run, in a comment before the block"
    if missing := missing_packages(script.text):
        notice = f"NOT RUN: {script.page.name}, {script.section}: install {', '.join(missing)}"
        warnings.warn(notice, stacklevel=1)
        pytest.skip(notice)
    printed = run_script(python, tmp_path, script)
    if output:
        output.must_be(printed)


@pytest.mark.parametrize("page", PAGES)
def test_examples_run_on_the_pages_that_show_them(page: str) -> None:
    if notebook(page):
        return
    shown = {b.example for b in blocks(page) if b.is_run and b.example}
    commands = [c.split() for b in blocks(page) for c in b.commands]
    run = {script.example for script, _ in steps(page)} | {ROOT / c[1] for c in commands if c[0] == "python"}
    assert shown <= run


def test_blocks_are_of_a_known_kind() -> None:
    """A new kind of block is run, or listed here."""
    kinds = {b.kind for page in PAGES for b in blocks(page)}
    assert kinds <= {"python", "console", "bash", "text", "toml", "grammar", ""}, kinds


def test_tile_passes_are_listed_in_the_order_of_the_pipeline() -> None:
    table = PAGES["docs/architecture.md"].read_text(encoding="utf-8").split("| pass | effect |\n")[1].split("\n\n")[0]
    listed = [name for row in table.splitlines()[1:] for name in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert listed == ["delinearize", *TILE_PASSES.split(",")]


def test_the_readme_names_every_command() -> None:
    (commands,) = (a.choices for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    text = PAGES["README.md"].read_text(encoding="utf-8").split("## On the command line\n")[1].split("\n## ")[0]
    assert set(commands) <= set(re.findall(r"`(?:tilewright )?(\w+)", text)) | {"demo"}  # under a heading of its own


@pytest.mark.parametrize("described", [Options, Context])
def test_docstrings_describe_each_field(described: type) -> None:
    names = re.findall(r"^(\w+(?:, \w+)*): ", inspect.getdoc(described) or "", re.M)
    assert {n for group in names for n in group.split(", ")} == {f.name for f in fields(described) if f.name[0] != "_"}


GRAMMAR = re.compile(r"from \[`(?P<file>[\w/]+\.py)`\]\([^)]*\):\n\n```grammar\n(?P<text>.*?)\n```$", re.M | re.S)


@pytest.mark.parametrize(
    "quoted", GRAMMAR.finditer(PAGES["docs/ir.md"].read_text(encoding="utf-8")), ids=itemgetter("file")
)
def test_grammars_are_those_of_the_parsers(quoted: re.Match[str]) -> None:
    docstring = inspect.cleandoc(
        ast.get_docstring(ast.parse((ROOT / quoted["file"]).read_text(encoding="utf-8"))) or ""
    )
    rules = [textwrap.dedent(p) for p in docstring.split("\n\n") if "::=" in p]
    assert quoted["text"] == "\n\n".join(rules)


def test_every_grammar_names_its_parser() -> None:
    text = PAGES["docs/ir.md"].read_text(encoding="utf-8")
    assert len(GRAMMAR.findall(text)) == text.count("```grammar") > 0
