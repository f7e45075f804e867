"""Plots of the tables in docs/performance.md: how many times as long others take, one row of points for each row."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure

matplotlib.rcParams["svg.hashsalt"] = "tilewright"  # the same file from the same table
matplotlib.rcParams["svg.fonttype"] = "none"

TABLE = re.compile(r"(?:^\|.*\|\n)+", re.M)
FACTOR = re.compile(r"^(?:[\d.]+ )?\(?(\d+(?:\.\d+)?)x\)?$|^[\d.]+ \((\d+(?:\.\d+)?)\)$")
"""A cell with a factor: `1.83x`, `17.8 (1.75x)` or `0.413 (1.16)`."""

INK = "#808080"
"""Color of text and axes, readable on light and dark pages."""


@dataclass(frozen=True)
class Comparison:
    """Factors of one table: for each row, a name and the factor of each system that has one."""

    rows: tuple[str, ...]
    systems: tuple[str, ...]
    factors: dict[tuple[str, str], float]


def with_figures(page: str) -> tuple[str, dict[str, str]]:
    """Return a page with a figure below each table of factors, and the figures by their path on the site."""
    figures: dict[str, str] = {}

    def add(m: re.Match[str]) -> str:
        comparison = read_table(m[0])
        if comparison is None:
            return m[0]
        path = f"figures/performance-{len(figures) + 1}.svg"
        figures[path] = plot(comparison)
        about = "Times of other systems divided by ours"
        return f"{m[0]}\n![{about}]({path})\n"

    return TABLE.sub(add, page), figures


def read_table(text: str) -> Comparison | None:
    """Return the factors of a table; None if fewer than half of its rows have one.

    Columns of one name are told apart by the column without factors before them.
    """
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    found = {(k, n): m for k, row in enumerate(rows) for n, cell in enumerate(row) if (m := FACTOR.match(cell))}
    columns, names = sorted({n for _, n in found}), sorted({k for k, _ in found})
    if 2 * len(names) < len(rows) or len(names) < 2:
        return None
    labels = {
        n: head[n] if head.count(head[n]) == 1 else f"{head[n]} ({last_plain(head, n, columns)})" for n in columns
    }
    factors = {(rows[k][0], labels[n]): float(m[1] or m[2]) for (k, n), m in found.items()}
    return Comparison(tuple(rows[k][0] for k in names), tuple(labels.values()), factors)


def last_plain(head: list[str], column: int, columns: list[int]) -> str:
    """Return the name of the last column before `column` that has no factors."""
    return next(head[n] for n in reversed(range(column)) if n not in columns)


def plot(c: Comparison) -> str:
    """Return the factors as SVG: a logarithmic axis, and a line where others take as long as we do."""
    figure = Figure(figsize=(8, 0.7 + 0.28 * len(c.rows) + 0.25 * -(-len(c.systems) // 3)), layout="constrained")
    axes = figure.add_subplot()
    for system, marker in zip(c.systems, "osD^vP*X<>", strict=False):
        points = [(c.factors[row, system], k) for k, row in enumerate(c.rows) if (row, system) in c.factors]
        axes.plot(*zip(*points, strict=True), marker, label=system, alpha=0.85, markersize=6)
    axes.set_xscale("log")
    low, high = min(c.factors.values()), max(c.factors.values())
    ticks = [t for t in (0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50) if low / 1.5 <= t <= high * 1.5]
    axes.set_xticks(ticks, [f"{t:g}x" for t in ticks], color=INK)
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(c.rows)), c.rows, color=INK)
    axes.invert_yaxis()
    axes.axvline(1, color=INK, linewidth=1)
    axes.grid(axis="x", color=INK, alpha=0.25)
    axes.tick_params(color=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.legend(loc="outside upper left", ncols=min(3, len(c.systems)), frameon=False, labelcolor=INK)
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return text.getvalue()
