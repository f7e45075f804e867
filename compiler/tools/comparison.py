"""Comparison of one model compiled in two configurations with PyTorch eager: errors, workload and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table
from torch.utils._pytree import tree_leaves

from compiler.api import as_exported_program, compile
from compiler.options import Options, as_options
from compiler.report.measure import NumericalError, Workload, eager_workload, interleaved_medians
from compiler.report.render import render_plain, table
from compiler.testing.accuracy import OWN, float64_references, numerical_errors

if TYPE_CHECKING:
    from compiler.api import Model


@dataclass(frozen=True)
class ComparisonRow:
    """Errors against float64 by their heading, workload of one call, and median seconds per call of one configuration."""

    name: str
    errors: Mapping[str, NumericalError]
    workload: Workload
    seconds: float
    compile_seconds: float = 0.0

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
        heads = [*self.rows[0].errors, "ulp", "kernels", "MFLOP", "MB", "ms", "speed", "compiled"]
        rows, eager_seconds = table(self.title, [""], heads), self.rows[0].seconds
        for r in self.rows:
            rows.add_row(
                r.name,
                *(f"{e.relative:.1e}" for e in r.errors.values()),
                f"{r.error.ulps:.2g}",
                f"{r.workload.kernels}",
                f"{r.workload.flops / 1e6:.1f}",
                f"{r.workload.bytes / 1e6:.1f}",
                f"{r.seconds * 1e3:.3f}",
                f"{eager_seconds / r.seconds:.2f}x",
                f"{r.compile_seconds:.2f} s" if r.compile_seconds else "",
            )
        return rows

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        return render_plain(self)


def compare(
    model: Model,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    a: str | Options = "unfused",
    b: str | Options = "fused",
    reference: Model | None = None,
    options: Options | dict[str, Any] | None = None,
    seconds: float = 0.5,
) -> Comparison:
    """Compile `model` in configurations `a` and `b` and compare both with PyTorch eager on `args`.

    A configuration is "fused", "unfused", a pipeline of graph passes as text, or Options.  Errors are against the same program in
    float64, and against `reference`, the model that it was quantized from.  Times are medians of interleaved
    calls, about `seconds` for each configuration.
    """
    program, inputs, named = as_exported_program(model, args, kwargs)
    eager = model if isinstance(model, torch.nn.Module) else program.module()
    references = float64_references(program, inputs, named, reference)
    settings = {_configuration_name(c): _configuration_options(c, as_options(options)) for c in (a, b)}
    compiled = {name: compile(program, inputs, named, options=o) for name, o in settings.items()}
    with torch.no_grad():
        models: list[Callable[..., Any]] = [eager, *compiled.values()]
        calls = [partial(m, *inputs, **named) for m in models]
        errors = [numerical_errors(tree_leaves(call()), references) for call in calls]
        workloads = [eager_workload(calls[0]), *(c.workload for c in compiled.values())]
        times = interleaved_medians(calls, seconds)
    compile_seconds = [0.0, *(c.compile_seconds["total"] for c in compiled.values())]
    names = ["PyTorch", *compiled]
    title = compiled[_configuration_name(b)].compiled_graph.graph.name
    return Comparison(title, tuple(map(ComparisonRow, names, errors, workloads, times, compile_seconds)))


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
