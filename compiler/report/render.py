"""How tables, sizes and places look, in a terminal and as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compiler.errors import Loc


def table(title: str, left: Sequence[str], right: Sequence[str] = (), last: Sequence[str] = ()) -> Table:
    """An empty table with columns of short text, then of numbers, then of long text, which give way first."""
    made = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        padding=(0, 1, 0, 0),
    )
    for head in left:
        made.add_column(head, no_wrap=True)
    for head in right:
        made.add_column(head, justify="right", no_wrap=True)
    for head in last:
        made.add_column(head, overflow="fold")
    return made


def truncated_text(text: str) -> Text:
    """Text for a cell that is cut off where the others leave no room."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def render_plain(renderable: Any, width: int = 120) -> str:
    """What a terminal would show, as text without colours."""
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().strip("\n").split("\n"))


def format_bytes(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def abbreviate(names: Sequence[str], max_names: int = 6) -> str:
    """Some names, the middle of a long list left out."""
    shown = (
        names
        if len(names) <= max_names
        else [*names[: max_names // 2], f"({len(names) - max_names} more)", *names[-(max_names // 2) :]]
    )
    return " ".join(shown)


def format_location(loc: Loc | None) -> str:
    """A line of the user's program: file, number and code."""
    return f"{Path(loc.file).name}:{loc.line} {loc.code}".rstrip() if loc else ""
