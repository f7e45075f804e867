"""The glossary has every term that passes, IR text and headings use; the old vocabulary is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compiler.ir.tile.kernel import ROLES
from compiler.passes.pipeline_text import available_passes

ROOT = Path(__file__).parent.parent
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = {
    term.strip(" `").lower()
    for row in re.findall(r"^\| ([^|]+) \|", GLOSSARY, re.M)
    for term in (row, *row.split(", "))
}

PLAIN = {
    "overview", "architecture", "glossary", "passes", "keywords of ir text", "decisions, and why", "results", "models", "see also",
}  # fmt: skip
"""Headings that need no entry."""

OLD = (
    "block-sums", "block-scans", "scale-weights", "open size", "open sizes", "told_by", "tellers", "overhang", "unpad", "per_place",
    "sized_by_data", "reason_to_call", "otherwise_if_small", "known_extent", "leaves_rest", "laid_side_by_side", "lying apart",
    "stopwatch", "check_spoilt", "way_in_turn", "repeat_while", "run_on_program", "is_half", "promotes_half", "upcast_half",
)  # fmt: skip
"""Names that the field's terms have replaced."""


def test_every_pass_is_there() -> None:
    built_in = {n for n, f in available_passes().items() if f.__module__.startswith("compiler.passes")}
    assert built_in <= TERMS, sorted(built_in - TERMS)


def test_every_keyword_is_there() -> None:
    grammar = "".join(
        (ROOT / "compiler" / "ir" / path).read_text(encoding="utf-8").split('"""')[1]
        for path in ("tile/kernel.py", "text/tile_parser.py", "text/graph_parser.py")
    )
    words = {w for w in re.findall(r'"([a-z_]+)"', grammar) if len(w) > 2} | set(ROLES)
    known = {w for term in TERMS for w in re.findall(r"[a-z_]+", term)}
    assert words <= known, sorted(words - known)


@pytest.mark.parametrize("path", ["architecture.md", "add-an-op.md", "write-a-pass.md", "add-a-target.md"])
def test_headings_use_its_terms(path: str) -> None:
    """Each word of a heading that is a term of art is in the glossary: one term at least of each heading."""
    for heading in re.findall(r"^##+ (.+)$", (ROOT / "docs" / path).read_text(encoding="utf-8"), re.M):
        text = heading.lower()
        known = text in PLAIN or any(re.search(rf"\b{re.escape(term)}s?\b", text) for term in TERMS if len(term) > 1)
        assert known, f"{path}: {heading} has no term of the glossary"


@pytest.mark.parametrize("folder", ["compiler", "docs", "examples", "benchmarks"])
def test_old_names_are_gone(folder: str) -> None:
    for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md"), ROOT / "README.md"]:
        text = path.read_text(encoding="utf-8").lower()
        found = [name for name in OLD if re.search(rf"\b{re.escape(name)}\b", text)]
        assert not found, f"{path.relative_to(ROOT)} says {', '.join(found)}"
