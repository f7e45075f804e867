"""Two ways to compile one model, beside PyTorch: errors against float64, kernels, arithmetic, bytes moved and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from torch.utils._pytree import tree_leaves

from compiler.api import compile, load
from compiler.measure import Error, Work, eager_work, error, medians, reference
from compiler.options import Options, as_options
from compiler.render import plain, table

if TYPE_CHECKING:
    from compiler.api import Model


@dataclass(frozen=True)
class Row:
    """One contender: its error, the work of one call, and the median of its seconds."""

    name: str
    error: Error
    work: Work
    seconds: float
    compile_seconds: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, PyTorch first; renders as a table."""

    title: str
    rows: tuple[Row, ...]

    def __getitem__(self, name: str) -> Row:
        """The row called `name`; KeyError where there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def table(self) -> Table:
        """The rows as a rich table."""
        heads = ["error", "ulp", "kernels", "MFLOP", "MB", "ms", "speed", "compiled"]
        made, base = table(self.title, [""], heads), self.rows[0].seconds
        for r in self.rows:
            made.add_row(
                r.name,
                f"{r.error.relative:.1e}",
                f"{r.error.ulps:.2g}",
                f"{r.work.kernels}",
                f"{r.work.flops / 1e6:.1f}",
                f"{r.work.bytes / 1e6:.1f}",
                f"{r.seconds * 1e3:.3f}",
                f"{base / r.seconds:.2f}x",
                f"{r.compile_seconds:.2f} s" if r.compile_seconds else "",
            )
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table()

    def __str__(self) -> str:
        return plain(self)


def compare(
    model: Model,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    a: str | Options = "unfused",
    b: str | Options = "fused",
    options: Options | dict[str, Any] | None = None,
    seconds: float = 0.5,
) -> Comparison:
    """Compile `model` in the ways `a` and `b` and measure both beside PyTorch on `args`.

    A way is "fused", "unfused", a pipeline of graph passes as text, or Options.  Times are medians of calls in turns.
    """
    program, given, named = load(model, args, kwargs)
    eager = model if isinstance(model, torch.nn.Module) else program.module()
    truth = reference(program, given, named)
    ways = {_name(way): _options(way, as_options(options)) for way in (a, b)}
    compiled = {name: compile(program, given, named, options=way) for name, way in ways.items()}
    with torch.no_grad():
        models: list[Callable[..., Any]] = [eager, *compiled.values()]
        calls = [partial(m, *given, **named) for m in models]
        errors = [error(tree_leaves(call()), truth) for call in calls]
        works = [eager_work(calls[0]), *(c.work for c in compiled.values())]
        times = medians(calls, seconds)
    spent = [0.0, *(c.seconds["total"] for c in compiled.values())]
    names = ["PyTorch", *compiled]
    title = compiled[_name(b)].graph.graph.name
    return Comparison(title, tuple(map(Row, names, errors, works, times, spent)))


def _name(way: str | Options) -> str:
    if isinstance(way, str):
        return way
    return way.graph_passes or ("fused" if way.fuse else "unfused")


def _options(way: str | Options, base: Options) -> Options:
    if isinstance(way, Options):
        return way
    if way in ("fused", "unfused"):
        return base.with_(fuse=way == "fused")
    return base.with_(graph_passes=way)
