"""Pieces of Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence


def fenced(text: str, language: str = "text") -> str:
    """Return a fenced block; its fence is longer than any in the text."""
    fence = "`" * max([3, *(len(m) + 1 for m in re.findall(r"^`{3,}", text, re.M))])
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; `|` in a cell is escaped."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def docstring(text: str) -> str:
    """Return a docstring as Markdown: a paragraph with an arrow outside of code shows IR, and is a block."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n\n".join(fenced(p) if "->" in re.sub(r"`[^`]*`", "", p) else p for p in paragraphs)
