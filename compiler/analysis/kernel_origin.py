"""Origin of a kernel: the ops that it computes, and the places in the user's program that they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from compiler.errors import Loc
from compiler.ir.graph.graph import Graph, unique_names
from compiler.ir.graph.structure import Fused, Leaf, Recurrence, is_view


@dataclass(frozen=True)
class KernelOrigin:
    """Origin of a kernel: the ops it fuses (views only if there is nothing else), a line of the user's program, and modules.

    `modules` are the paths of those, `values` the names and lines of all values computed in it.
    """

    ops: tuple[str, ...] = ()
    loc: Loc | None = None
    modules: tuple[str, ...] = ()
    values: frozenset[tuple[str, Loc | None]] = frozenset()

    @property
    def place(self) -> Loc | None:
        """The line, with all modules in one text."""
        return replace(self.loc or Loc(), module=merge_module_paths(self.modules)) if self.loc or self.modules else None


def kernel_origins(fused: Graph) -> dict[str, KernelOrigin]:
    """Return the origin of each node of a fused graph, by the node name of its step."""
    origins: dict[str, KernelOrigin] = {}
    for node, name in unique_names(fused.nodes).items():
        if isinstance(node.structure, Recurrence):
            origins |= {f"{name}.{inner}": origin for inner, origin in kernel_origins(node.attrs["body"]).items()}
            continue
        body = node.attrs["body"].nodes if isinstance(node.structure, Fused) else (node,)
        inner = [n for n in body if not isinstance(n.structure, Leaf)] or [node]
        computed = [n for n in inner if not is_view(n.structure, n)] or inner[-1:]
        loc = node.loc or next((n.loc for n in reversed(inner) if n.loc), None)
        modules = dict.fromkeys(n.loc.module for n in computed if n.loc and n.loc.module)
        values = frozenset((n.name or n.op.name, n.loc) for n in inner)
        origins[name] = KernelOrigin(tuple(n.op.name for n in computed), loc, tuple(modules), values)
    return origins


def merge_origins(origins: Iterable[KernelOrigin]) -> KernelOrigin:
    """Return the origin of a kernel that several steps run: the first one, with the modules of all."""
    first, *rest = dict.fromkeys(origins)
    modules = tuple(dict.fromkeys(m for o in (first, *rest) for m in o.modules))
    return replace(first, modules=modules, values=first.values.union(*(o.values for o in rest)))


def merge_module_paths(paths: Iterable[str]) -> str:
    """Return paths as one text, without those of modules around others.

    Paths that differ in one number are written with its range, as in `layers.0-11.linear1`.
    """
    distinct = dict.fromkeys(filter(None, paths))
    by_form: dict[str, list[str]] = {}
    for path in (p for p in distinct if not any(other.startswith(f"{p}.") for other in distinct)):
        by_form.setdefault(module_form(path), []).append(path)
    return ", ".join(path for same in by_form.values() for path in _merge_numbers(same))


def module_form(path: str) -> str:
    """Return a path without its numbers: equal for the same module of repeated layers."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def _merge_numbers(paths: list[str]) -> list[str]:
    """Return paths of one form, merged if they differ in one number only."""
    columns = list(zip(*(path.split(".") for path in paths), strict=True))
    varying = [k for k, column in enumerate(columns) if len(set(column)) > 1]
    if len(varying) != 1:
        return paths
    merged = [column[0] for column in columns]
    merged[varying[0]] = _ranges(sorted(map(int, set(columns[varying[0]]))))
    return [".".join(merged)]


def _ranges(numbers: list[int]) -> str:
    """Return sorted numbers as text, runs of them as ranges: `0-3,7`."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
