"""Plugins: modules of other packages that declare ops, conversions, rewrites, passes and backends when they are imported.

A package names its module in the entry point group `tilewright.plugins`:

    [project.entry-points."tilewright.plugins"]
    my-passes = "my_package.passes"
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.metadata import entry_points

from compiler.errors import PluginError

GROUP = "tilewright.plugins"
"""Entry points of modules to import."""


@cache
def load_plugins() -> None:
    """Import the plugins of all installed packages, once; PluginError names one that fails."""
    for point in sorted(entry_points(group=GROUP), key=lambda p: p.name):
        package = f" of package {point.dist.name}" if point.dist else ""
        _load(f"plugin {point.name} ({point.value}){package}", point.load)


def load_modules(names: Iterable[str]) -> None:
    """Import modules by name; PluginError names one that fails."""
    for name in names:
        _load(f"module {name}", partial(importlib.import_module, name))


def _load(what: str, load: Callable[[], object]) -> None:
    try:
        load()
    except Exception as error:  # whatever a foreign module raises
        raise PluginError(f"{what} cannot be loaded: {type(error).__name__}: {error}") from error
