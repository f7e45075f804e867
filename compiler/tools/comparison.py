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

from compiler.api import as_exported_program, compile
from compiler.options import Options, as_options
from compiler.report.measure import (
    NumericalError,
    Workload,
    eager_workload,
    float64_reference,
    interleaved_medians,
    numerical_error,
)
from compiler.report.render import render_plain, table

if TYPE_CHECKING:
    from compiler.api import Model


@dataclass(frozen=True)
class ComparisonRow:
    """One contender: its error, the work of one call, and the median of its seconds."""

    name: str
    error: NumericalError
    workload: Workload
    seconds: float
    compile_seconds: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, PyTorch first; renders as a table."""

    title: str
    rows: tuple[ComparisonRow, ...]

    def __getitem__(self, name: str) -> ComparisonRow:
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
                f"{r.workload.kernels}",
                f"{r.workload.flops / 1e6:.1f}",
                f"{r.workload.bytes / 1e6:.1f}",
                f"{r.seconds * 1e3:.3f}",
                f"{base / r.seconds:.2f}x",
                f"{r.compile_seconds:.2f} s" if r.compile_seconds else "",
            )
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table()

    def __str__(self) -> str:
        return render_plain(self)


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
    program, given, named = as_exported_program(model, args, kwargs)
    eager = model if isinstance(model, torch.nn.Module) else program.module()
    truth = float64_reference(program, given, named)
    ways = {_configuration_name(way): _configuration_options(way, as_options(options)) for way in (a, b)}
    compiled = {name: compile(program, given, named, options=way) for name, way in ways.items()}
    with torch.no_grad():
        models: list[Callable[..., Any]] = [eager, *compiled.values()]
        calls = [partial(m, *given, **named) for m in models]
        errors = [numerical_error(tree_leaves(call()), truth) for call in calls]
        works = [eager_workload(calls[0]), *(c.workload for c in compiled.values())]
        times = interleaved_medians(calls, seconds)
    spent = [0.0, *(c.compile_seconds["total"] for c in compiled.values())]
    names = ["PyTorch", *compiled]
    title = compiled[_configuration_name(b)].compiled_graph.graph.name
    return Comparison(title, tuple(map(ComparisonRow, names, errors, works, times, spent)))


def _configuration_name(configuration: str | Options) -> str:
    if isinstance(configuration, str):
        return configuration
    return configuration.graph_passes or ("fused" if configuration.fuse else "unfused")


def _configuration_options(configuration: str | Options, base: Options) -> Options:
    if isinstance(configuration, Options):
        return configuration
    if configuration in ("fused", "unfused"):
        return base.with_(fuse=configuration == "fused")
    return base.with_(graph_passes=configuration)
