"""HTML: templates, and tables and IR text for notebooks."""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from compiler.ir.types import KERNEL_DTYPES, PACKED_DTYPES

TOKEN_PATTERN = re.compile(
    r"(?P<c>//[^\n]*)|(?P<v>%(?:&quot;.*?&quot;|[\w.]+))|(?P<g>@(?:&quot;.*?&quot;|[\w.]+))"
    r"|\b(?P<k>graph|kernel|program|return|parallel|for|in|out|inout|const|scratch|tile|lanes|unroll|accumulators|balanced|reduce|yield|store"
    r"|nontemporal|local|check|prefetch|launch|copy|view|repeat)\b"
    rf"|\b(?P<t>(?:{'|'.join((*KERNEL_DTYPES, *PACKED_DTYPES))})\[[^\]]*\](?:\{{[^}}]*\}})?)"
)
"""Tokens of IR text after HTML escaping; the group is the class in ir.css: comment, value, global, keyword, type."""


def highlight(text: str) -> Any:
    """Convert IR text to HTML with names, types, keywords and comments marked."""
    from markupsafe import Markup

    def mark(m: re.Match[str]) -> str:
        return f'<i class="{m.lastgroup}">{m[0]}</i>'

    return Markup(TOKEN_PATTERN.sub(mark, html.escape(text)))


def table_html(table: Table) -> Any:
    """Convert a rich table without its title to an HTML table."""
    from markupsafe import Markup

    heads = [(str(c.header), c.justify == "right") for c in table.columns]
    rows = list(zip(*([_plain(cell) for cell in c.cells] for c in table.columns), strict=True))
    return Markup(render_template("table.html", heads=heads, rows=rows))


def _plain(cell: Any) -> str:
    return cell.plain if isinstance(cell, Text) else Text.from_markup(cell).plain


def ir_html(text: str) -> str:
    """Return IR text as a part of a page with its style."""
    return render_template("ir.html", text=text)


@cache
def _templates() -> Any:
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    templates = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    templates.filters["ir"] = highlight
    return templates


def render_template(name: str, **values: Any) -> str:
    """Return the template compiler/report/`name` filled with `values`."""
    text: str = _templates().get_template(name).render(**values)
    return text
