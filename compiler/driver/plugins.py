"""Plugins: modules of other packages that declare ops, conversions, rewrites, passes and backends when they are imported.

A package names its module in the entry point group `tilewright.plugins`:

    [project.entry-points."tilewright.plugins"]
    my-passes = "my_package.passes"
"""

from __future__ import annotations

import importlib
import traceback
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
        package = point.dist.name if point.dist else "that names it"
        _load(f"plugin {point.name} ({point.value})", point.load, f"repair or uninstall the package {package}")


def load_modules(names: Iterable[str]) -> None:
    """Import modules by name; PluginError names one that fails."""
    for name in names:
        remedy = "give the name of a module that Python finds, or repair it"
        _load(f"module {name}", partial(importlib.import_module, name), remedy)


def _load(what: str, load: Callable[[], object], remedy: str) -> None:
    try:
        load()
    except Exception as error:  # whatever a foreign module raises
        problem = f"{what} cannot be loaded: {type(error).__name__}: {error}"
        raise PluginError(f"{problem}{_own_line(error)}; {remedy}") from error


def _own_line(error: Exception) -> str:
    """Return the line of the module at which loading it failed, "" where it was not found."""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename != __file__ and "importlib" not in frame.filename:
            return f" ({frame.filename}:{frame.lineno})"
    return ""
