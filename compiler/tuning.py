"""The tuner: passes decide by the cost model, and where they say that a decision was close, the machine is asked.

A pass that decides may *offer* what it decided against, as a pass with other options or as its own absence (`Context.offer`).  A
way to make a kernel is thus a pipeline, and another way is the same pipeline with one pass exchanged.  The tuner takes the passes
from first to last; at each it measures what is offered beside the best way so far, and goes on from the fastest.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch

import compiler.passes
import compiler.perf
from compiler.codegen.target import Target
from compiler.ir.digest import kernel_digest
from compiler.ir.tile import Kernel, Program
from compiler.passes.base import Context, Offer, Pass
from compiler.passes.lower import map_kernels
from compiler.passes.manager import (
    Instrument,
    Pipeline,
    finish_kernel,
    parse_pipeline,
    print_pass,
    print_pipeline,
    run_passes,
    run_pipeline,
)
from compiler.passes.remark import Remark
from compiler.perf.cost import least_cycles
from compiler.perf.machine import Machine
from compiler.runtime.cache import ObjectCache, object_key, version

Measure: TypeAlias = Callable[[Sequence[Kernel], int], list[float]]
"""Seconds of one call of each of several kernels that compute the same, with constants spread over so many bytes (see
compiler.runtime.stopwatch)."""

Way: TypeAlias = tuple[Pass[Any] | None, ...]
"""A pipeline with some passes exchanged, or gone (None)."""

SHARE = 0.02
"""Kernels are tuned that take at least this share of a program's time by the cost model."""

MARGIN = 0.03
"""Share of the time that another way must save, so that noise decides nothing."""


@dataclass(frozen=True)
class Tuned:
    """What was learned about a kernel: the best pipeline, and how it differs from the one given ("": not at all).

    `before` and `after` are the seconds of both, measured side by side; `tried` has every other way by how it differs.
    """

    passes: str
    change: str
    before: float
    after: float
    tried: dict[str, float]

    def __str__(self) -> str:
        verdict = f"{self.change}: {_time(self.after)} instead of {_time(self.before)}"
        others = ", ".join(f"{way} {_time(s)}" for way, s in self.tried.items())
        kept = f"the cost model's choice stays: {_time(self.before)}"
        return (verdict if self.change else kept) + (f"; measured: {others}" if others else "")


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


@dataclass(frozen=True)
class Tuner:
    """Runs pipelines over programs as `run_pipeline` does, with other options where `measure` finds these faster."""

    target: Target
    store: ObjectCache
    measure: Measure

    def run(
        self, ir: Program, passes: str, context: Context | None = None, instruments: Sequence[Instrument] = ()
    ) -> Program:
        """The program after `passes`, of which those over kernels at the end are tuned."""
        context, pipeline = context or Context(), parse_pipeline(passes)
        start = max((k + 1 for k, p in enumerate(pipeline) if p.takes is not Kernel), default=0)
        program, own = run_pipeline(ir, pipeline[:start], context, instruments), pipeline[start:]
        context.repeated = program.repeated
        machine = context.machine or Machine()
        far = spread(program, machine)
        chosen = {k.name: self.best(k, own, far, context) for k in dear(program, machine)}

        def finish(kernel: Kernel) -> Kernel:
            return finish_kernel(program, kernel, chosen.get(kernel.name, own), context, instruments)

        return map_kernels(program, finish)

    def best(self, kernel: Kernel, passes: Pipeline, far: int, context: Context) -> Pipeline:
        """The fastest pipeline for `kernel`, with a remark that says what was measured."""
        key = self.key(kernel, passes, far)
        entry = self.store.get(key)
        if entry is None:
            found = Search(kernel, passes, context, lambda kernels: self.measure(kernels, far)).run()
            self.store.put(key, json.dumps(asdict(found)).encode())
        else:
            found = Tuned(**json.loads(entry))
        kind = "applied" if found.change else "missed"
        context.remarks.add(Remark("tune", kind, f"{found}{' (known)' if entry else ''}", kernel=kernel.name))
        return parse_pipeline(found.passes)

    def key(self, kernel: Kernel, passes: Pipeline, far: int) -> str:
        """The name of what is known about a kernel: on this machine, with so many threads, for these passes as they are written."""
        sources = version(compiler.passes, compiler.perf)
        parts = ("tuned", kernel_digest(kernel), print_pipeline(passes), torch.get_num_threads(), far, sources)
        return object_key(" ".join(map(str, parts)), self.target)


def spread(program: Program, machine: Machine) -> int:
    """The bytes that constants are spread over when kernels are timed: enough to miss the last cache, if all together do."""
    total = sum(size for name in program.constants if isinstance(size := program.buffers[name].nbytes, int))
    return 2 * machine.l3 if total > machine.l3 else 0


def dear(program: Program, machine: Machine) -> Iterator[Kernel]:
    """The kernels that take much of the program's time by the cost model, all their launches together."""
    launches = Counter(program.kernel_names())
    cycles = {name: count * least_cycles(program.kernels[name], machine) for name, count in launches.items()}
    return (program.kernels[n] for n, c in cycles.items() if c >= SHARE * sum(cycles.values()))


class Search:
    """The search for the fastest way to make one kernel."""

    def __init__(
        self, kernel: Kernel, passes: Pipeline, context: Context, measure: Callable[[Sequence[Kernel]], list[float]]
    ) -> None:
        self.kernel, self.given, self.context, self.measure = kernel, passes, context, measure
        self.tried: dict[str, float] = {}
        self.made: dict[Way, tuple[Kernel, list[Offer]]] = {}

    def run(self) -> Tuned:
        """The best way, after one more measurement beside the given one."""
        best: Way = self.given
        for position in range(len(self.given)):
            best = self.fastest([best, *self.rivals(best, position)])
        before, after = self.measure([self.make(w)[0] for w in (self.given, best)])
        if best == self.given or after > before * (1 - MARGIN):
            best, after = self.given, before
        change = self.change(best)
        tried = {c: s for c, s in self.tried.items() if c not in ("", change)}
        return Tuned(print_pipeline(p for p in best if p), change, before, after, tried)

    def rivals(self, way: Way, position: int) -> Iterator[Way]:
        """Ways that differ from `way` in one pass, and give another kernel than it or each other."""
        kernel, offers = self.make(way)
        known = {kernel_digest(kernel)}
        for offer in offers:
            if offer.pass_ is way[position]:
                rival = (*way[:position], offer.instead, *way[position + 1 :])
                digest = kernel_digest(self.make(rival)[0])
                if digest not in known:
                    known.add(digest)
                    yield rival

    def fastest(self, ways: Sequence[Way]) -> Way:
        """The way that takes the least time; the first one, unless another saves enough."""
        if len(ways) == 1:
            return ways[0]
        seconds = dict(zip(ways, self.measure([self.make(w)[0] for w in ways]), strict=True))
        self.tried |= {self.change(w): s for w, s in seconds.items()}
        best = min(ways, key=seconds.__getitem__)
        return best if seconds[best] < seconds[ways[0]] * (1 - MARGIN) else ways[0]

    def make(self, way: Way) -> tuple[Kernel, list[Offer]]:
        """The kernel after the passes of a way, and what these offer."""
        if way not in self.made:
            context = Context(self.context.machine, self.context.options, repeated=self.context.repeated)
            kernel = run_passes(self.kernel, tuple(p for p in way if p), context)
            self.made[way] = kernel, context.offers
        return self.made[way]

    def change(self, way: Way) -> str:
        """How a way differs from the given one: "tile{rows=6}, no prefetch"."""
        pairs = zip(self.given, way, strict=True)
        return ", ".join(print_pass(new) if new else f"no {old.name}" for old, new in pairs if old and new != old)
