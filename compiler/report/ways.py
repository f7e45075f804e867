"""Ways to compile one model, for comparisons: options by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias, Union

from compiler.options import Options

Way: TypeAlias = Union[str, Options, dict[str, Any]]
"""A way to compile: "fused", "unfused", a pipeline of graph passes, Options, or the options that differ from the others'."""


def named_ways(ways: Mapping[str, Way] | Sequence[Way], base: Options) -> dict[str, Options]:
    """Return the options of each way by name; names that occur again are numbered."""
    named: dict[str, Options] = {}
    for name, way in ways.items() if isinstance(ways, Mapping) else (("", w) for w in ways):
        chosen = _way_options(way, base)
        label = name or (way if isinstance(way, str) else _changes(chosen, base))
        taken = (label if k == 1 else f"{label} ({k})" for k in range(1, len(named) + 2))
        named[next(n for n in taken if n not in named)] = chosen
    return named


def _way_options(way: Way, base: Options) -> Options:
    if isinstance(way, Options):
        return way
    if isinstance(way, dict):
        return base.with_(**way)
    return base.with_(fuse=way == "fused") if way in ("fused", "unfused") else base.with_(graph_passes=way)


def _changes(options: Options, base: Options) -> str:
    """Return the fields in which `options` differ from `base`, as text."""
    values = {f.name: getattr(options, f.name) for f in fields(options)}
    return ", ".join(f"{k}={v}" for k, v in values.items() if v != getattr(base, k)) or "default"
