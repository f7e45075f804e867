"""Comparison of one model compiled in several ways with PyTorch eager: errors, workload and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from torch.utils._pytree import tree_leaves

from compiler.api import compile
from compiler.frontend.model_source import as_exported_program, resolve_model
from compiler.options import Options, as_options
from compiler.report.measure import NumericalError, Workload, eager_workload
from compiler.report.page import table_html
from compiler.report.render import render_plain, table
from compiler.report.ways import Way, named_ways
from compiler.runtime.timing import Timing, interleaved_timings
from compiler.testing.accuracy import OWN, float64_references, numerical_errors

if TYPE_CHECKING:
    from compiler.frontend.model_source import Model


@dataclass(frozen=True)
class ComparisonRow:
    """Errors against float64 by their heading, workload of one call, and seconds of calls of a model compiled in one way."""

    name: str
    errors: Mapping[str, NumericalError]
    workload: Workload
    timing: Timing
    compile_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Median seconds of a call."""
        return self.timing.median

    @property
    def error(self) -> NumericalError:
        """Error against the same program in float64."""
        return self.errors[OWN]


@dataclass(frozen=True)
class Comparison:
    """Rows of a comparison, PyTorch eager first; prints as a table."""

    title: str
    rows: tuple[ComparisonRow, ...]

    def __getitem__(self, name: str) -> ComparisonRow:
        """Return the row called `name`.  Raises KeyError."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def table(self) -> Table:
        """Return the rows as a rich table; "speed" is relative to PyTorch."""
        heads = [*self.rows[0].errors, "ulp", "kernels", "MFLOP", "MB", "ms", "fastest", "spread", "speed", "compiled"]
        rows, eager_seconds = table(self.title, [""], heads, padding=0), self.rows[0].seconds  # fits 80 columns
        for r in self.rows:
            rows.add_row(
                r.name,
                *(f"{e.relative:.1e}" for e in r.errors.values()),
                f"{r.error.ulps:.2g}",
                f"{r.workload.kernels}",
                f"{r.workload.flops / 1e6:.1f}",
                f"{r.workload.bytes / 1e6:.1f}",
                *(f"{s * 1e3:.3f}" for s in (r.seconds, r.timing.minimum)),
                f"{100 * r.timing.spread:.0f} %",
                f"{eager_seconds / r.seconds:.2f}x",
                f"{r.compile_seconds:.2f} s" if r.compile_seconds else "",
            )
        return rows

    @property
    def warning(self) -> str:
        """Warning about noisy rows; empty if there are none."""
        return next((r.timing.warning for r in self.rows if r.timing.is_noisy), "")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table()
        if self.warning:
            yield Text(self.warning, "bold red")

    def __str__(self) -> str:
        return render_plain(self)

    def _repr_html_(self) -> str:
        return f"<p>{self.title}. {self.warning}</p>{table_html(self.table())}"


def compare(
    model: Model,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    ways: Mapping[str, Way] | Sequence[Way] = ("unfused", "fused"),
    reference: Model | None = None,
    options: Options | dict[str, Any] | None = None,
    seconds: float = 0.5,
) -> Comparison:
    """Compile `model` in several `ways` and compare all with PyTorch eager on `args`.

    `ways` may give names; others are called after what differs from `options`.  Errors are against the same program in float64,
    and against `reference`, the model that it was quantized from.  Calls take turns, about `seconds` for each way.
    """
    source = resolve_model(model)
    program, inputs, named = as_exported_program(source, args, kwargs)
    eager = source if isinstance(source, torch.nn.Module) else program.module()
    references = float64_references(program, inputs, named, reference)
    settings = named_ways(ways, as_options(options))
    compiled = {name: compile(program, inputs, named, options=o) for name, o in settings.items()}
    with torch.no_grad():
        models: list[Callable[..., Any]] = [eager, *compiled.values()]
        calls = [partial(m, *inputs, **named) for m in models]
        errors = [numerical_errors(tree_leaves(call()), references) for call in calls]
        workloads = [eager_workload(calls[0]), *(c.workload for c in compiled.values())]
        timings = interleaved_timings(calls, seconds)
    compile_seconds = [0.0, *(c.compile_seconds["total"] for c in compiled.values())]
    names = ["PyTorch", *compiled]
    title = next((c.compiled_graph.graph.name for c in compiled.values()), "")
    return Comparison(title, tuple(map(ComparisonRow, names, errors, workloads, timings, compile_seconds)))
