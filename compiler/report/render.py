"""Tables, byte counts and source locations, as rich objects and plain text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compiler.errors import Loc

PLAIN_WIDTH = 160
"""Width in characters of wide tables as plain text."""


def table(
    title: str, left: Sequence[str], right: Sequence[str] = (), last: Sequence[str] = (), padding: int = 1
) -> Table:
    """Return an empty table: columns `left` of short text, `right` of numbers, and `last` of text that may wrap.

    There are `padding` + 1 spaces between columns.
    """
    style: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "header_style": "dim"}
    columns = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, padding, 0, 0), **style)
    for head in left:
        columns.add_column(head, no_wrap=True)
    for head in right:
        columns.add_column(head, justify="right", no_wrap=True)
    for head in last:
        columns.add_column(head, overflow="fold")
    return columns


def truncated_text(text: str) -> Text:
    """Return text for a table cell, truncated with an ellipsis if it does not fit."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def render_plain(renderable: Any, width: int = 120) -> str:
    """Render as text without colours, `width` characters wide."""
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().strip("\n").split("\n"))


def format_bytes(count: float) -> str:
    """Format a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def format_count(count: float) -> str:
    """Format a number to three digits with a decimal prefix."""
    for prefix in ("", "k", "M"):
        if count < 999.5:
            return f"{count:.3g}{prefix}"
        count /= 1000
    return f"{count:.3g}G"


def abbreviate(names: Sequence[str], max_names: int = 6) -> str:
    """Join names with spaces; of more than `max_names`, leave out the middle ones."""
    if len(names) <= max_names:
        return " ".join(names)
    half = max_names // 2
    return " ".join([*names[:half], f"({len(names) - max_names} more)", *names[-half:]])


def format_location(loc: Loc | None) -> str:
    """Format a place in the user's program: the module, file, line number and code."""
    if loc is None:
        return ""
    line = f"{Path(loc.file).name}:{loc.line} {loc.code}".rstrip() if loc.file else ""
    return " ".join(filter(None, (loc.module, line)))
