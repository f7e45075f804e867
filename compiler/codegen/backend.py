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
from compiler.codegen.listing import Listing
from compiler.cost.machine import read_machine, shipped_machine, shipped_names
from compiler.errors import ArgumentError, TargetError, did_you_mean
from compiler.ir.tile.kernel import Kernel
from compiler.options import Options
from compiler.target import Target

QUANTIZED_PASSES = (
    "hoist-quantize,split-reductions,legalize-signedness,integer-contraction,sink-scale,remove-clamps,saturate-codes"
)
"""Contractions of dequantized values read bytes, and scale their sums; values are clamped once."""

FOLDING_PASSES = (
    "fold-scale,reduce-precision,fold,integer-slices,narrow-constants,expand-finite-casts,scale-rows,fold-casts,widen-operands,pad-reductions,"
    "fold,constant-indices,cse,two-level-scan"
)
"""Compute constants, choose the dtypes of operands, share equal nodes, split long scans."""

UNFUSED_PASSES = f"dce,decompose,canonicalize,flush-exponentials,{QUANTIZED_PASSES},{FOLDING_PASSES}"
"""Expand composite ops, and choose what is computed; what follows chooses how it is shared and fused."""

GRAPH_PASSES = f"{UNFUSED_PASSES},sink-expand,sink-gather,separate-windows,two-level-argmax,two-level-reduction,lower-to-col2im,winograd,eliminate-padding,cse,fuse,defer-rounding"
"""Graph IR to Graph IR.  Expand composite ops, multiply bytes, fold constants, save arithmetic, share long reductions, fuse, round once."""

FAST_GRAPH_PASSES = GRAPH_PASSES.replace("fuse", "fuse{max-nodes=16}")
"""The same with smaller kernels, so that each attempt to fuse lowers less."""

UNFUSED_GRAPH_PASSES = f"{UNFUSED_PASSES},fuse{{enabled=false}}"
"""The same with one kernel for each op."""


@dataclass(frozen=True)
class Pipelines:
    """Default passes of a backend as text: on Graph IR, then on the lowered program.

    The unfused ones make one kernel per op, the fast ones compile sooner.  `legalization` are those that a kernel needs
    before code generation, whoever scheduled it.
    """

    graph: str = GRAPH_PASSES
    program: str = ""
    unfused_graph: str = UNFUSED_GRAPH_PASSES
    unfused_program: str = ""
    fast_graph: str = FAST_GRAPH_PASSES
    fast_program: str = ""
    legalization: str = ""

    def chosen(self, options: Options) -> tuple[str, str]:
        """Return the passes on the graph and on the program that the user's options ask for."""
        if not options.fuse:
            return self.unfused_graph, self.unfused_program
        if options.effort == "fast":
            return self.fast_graph, self.fast_program or self.program
        return self.graph, self.program


@dataclass(frozen=True)
class Backend:
    """Family of targets: the passes that lead to them, and the listings of their code.

    `listings` give the code of one kernel by the name of a stage: {"llvm": ..., "assembly": ...}.  `host` finds the target that
    stands for this machine.
    """

    name: str
    targets: Mapping[str, Target]
    pipelines: Pipelines
    listings: Mapping[str, Callable[[Kernel, Any], Listing]]
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
    """Return every backend by name."""
    _discover()
    return _BACKENDS


def targets() -> Mapping[str, Target]:
    """Return every target by name, without those that stand for this machine."""
    return {name: target for b in backends().values() for name, target in b.targets.items()}


def target_by_name(name: str, machine: str = "") -> Target:
    """Return the target called `name`; "host" is this machine.  TargetError names the ones there are.

    `machine` describes it to the cost model: a shipped description by name, or a file; "" takes the target's own.
    """
    if machine:
        described = shipped_machine(machine) if machine in shipped_names() else read_machine(machine)
        return replace(target_by_name(name), machine=described)
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


def code_text(kernel: Kernel, stage: str, target: Target) -> str:
    """Return the code of a scheduled kernel at a stage of code generation ("" is the last); ArgumentError if there is none."""
    listings = backend_of(target).listings
    if stage and stage not in listings:
        raise ArgumentError(f"there is no stage {stage!r}; choose one of {', '.join(listings)}")
    return listings[stage or list(listings)[-1]](kernel, target).text
