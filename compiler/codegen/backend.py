"""Backends: a family of targets, the passes that lead to them, and how their code is printed.

Each folder of compiler/codegen with a module `backend` that binds BACKEND is found by itself; others call `register_backend`.
"""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import compiler.codegen
from compiler.cost.machine import read_machine
from compiler.errors import TargetError, did_you_mean
from compiler.ir.tile.kernel import Kernel
from compiler.target import Target

QUANTIZED_PASSES = "hoist-quantize,split-reductions,legalize-signedness,integer-contraction,sink-scale"
"""Contractions of dequantized values read bytes, and scale their sums."""

FOLDING_PASSES = "fold-scale,reduce-precision,fold,narrow-constants,expand-finite-casts,fold-casts,widen-operands,pad-reductions,fold,cse,two-level-scan"
"""Compute constants, choose the dtypes of operands, share equal nodes, split long scans."""

GRAPH_PASSES = f"dce,decompose,canonicalize,{QUANTIZED_PASSES},{FOLDING_PASSES},winograd,eliminate-padding,cse,fuse"
"""Graph IR to Graph IR.  Expand composite ops, multiply bytes, fold constants, save multiplications, fuse."""

UNFUSED_GRAPH_PASSES = f"dce,decompose,canonicalize,{QUANTIZED_PASSES},{FOLDING_PASSES},fuse{{enabled=false}}"
"""The same with one kernel for each op."""


@dataclass(frozen=True)
class Pipelines:
    """Default passes of a backend as text: on Graph IR, then on the lowered program; the unfused ones make one kernel per op.

    `legalization` are those that a kernel needs before code generation, whoever scheduled it.
    """

    graph: str = GRAPH_PASSES
    program: str = ""
    unfused_graph: str = UNFUSED_GRAPH_PASSES
    unfused_program: str = ""
    legalization: str = ""

    @property
    def fused(self) -> tuple[str, str]:
        """The passes on the graph and on the program."""
        return self.graph, self.program

    @property
    def unfused(self) -> tuple[str, str]:
        """The same, with one kernel per op."""
        return self.unfused_graph, self.unfused_program


@dataclass(frozen=True)
class Backend:
    """A way from scheduled Tile IR to code.

    `printers` give the text of one kernel by the name of a stage: {"llvm": ..., "assembly": ...}.  `host` finds the target that
    stands for this machine.
    """

    name: str
    targets: Mapping[str, Target]
    pipelines: Pipelines
    printers: Mapping[str, Callable[[Kernel, Any], str]]
    host: Callable[[], Target] | None = None


_BACKENDS: dict[str, Backend] = {}


def register_backend(backend: Backend) -> Backend:
    """Enter a backend; a second one of the same name replaces the first."""
    _BACKENDS[backend.name] = backend
    return backend


@cache
def _discover() -> None:
    for package in pkgutil.iter_modules(compiler.codegen.__path__):
        name = f"compiler.codegen.{package.name}.backend"
        if package.ispkg and importlib.util.find_spec(name):
            register_backend(importlib.import_module(name).BACKEND)


def backends() -> Mapping[str, Backend]:
    """Every backend by name."""
    _discover()
    return _BACKENDS


def targets() -> Mapping[str, Target]:
    """Every target by name, those that stand for this machine left out."""
    return {name: target for b in backends().values() for name, target in b.targets.items()}


def target_by_name(name: str, machine: str = "") -> Target:
    """Return the target called `name`; "host" is this machine.  TargetError names the ones there are.

    `machine` is a file that describes it to the cost model, "" takes the target's own description.
    """
    if machine:
        return replace(target_by_name(name), machine=read_machine(machine))
    for backend in backends().values():
        if name == "host" and backend.host:
            return backend.host()
        if name in backend.targets:
            return backend.targets[name]
    missing = {"host": "", **{n: t.missing_features() for n, t in targets().items()}}
    runnable, others = ([n for n, m in missing.items() if bool(m) is lacks] for lacks in (False, True))
    raise TargetError(
        f"no target is called {name!r}{did_you_mean(name, missing)}\n"
        f"code for {', '.join(runnable)} runs here; for {', '.join(others)} it can be printed"
    )


def backend_of(target: Target) -> Backend:
    """Return the backend that makes code for `target`."""
    return backends()[target.backend]
