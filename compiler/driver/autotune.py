"""Autotuning: measure the alternatives of close decisions.

A pass that decides by the cost model may propose alternatives: itself with other options, or its absence (`Context.propose`).  A
candidate is a pipeline; its neighbors differ in one pass.  The tuner goes through the passes from first to last, measures the
alternatives of each beside the best candidate so far, and goes on from the fastest (greedy search).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch

import compiler.analysis
import compiler.cost
import compiler.math
import compiler.passes
from compiler.cost.estimates import roofline_seconds
from compiler.cost.machine import Machine
from compiler.ir.tile.digest import kernel_digest
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program, map_kernels
from compiler.passes.base import Alternative, Context, Pass
from compiler.passes.manager import KernelSink, PassInstrument, run_passes, run_pipeline, schedule_kernel
from compiler.passes.pipeline_text import Pipeline, parse_pipeline, print_pipeline, split_at_kernels
from compiler.passes.remark import Remark, format_seconds
from compiler.runtime.cache import ObjectCache, object_key, source_hash
from compiler.target import Target

MeasureKernels: TypeAlias = Callable[[Sequence[Kernel], int], list[float]]
"""Function (kernels, cold_bytes) that returns the seconds of one call of each of several kernels that compute the same.

Their constants are spread over `cold_bytes` of memory (see compiler.runtime.kernel_timer)."""

Candidate: TypeAlias = tuple[Pass[Any] | None, ...]
"""A pipeline with some passes replaced, or removed (None)."""

MIN_TIME_SHARE = 0.02
"""Share of a program's estimated time from which on a kernel is tuned; chosen empirically."""

MIN_GAIN = 0.03
"""Share of the time that another candidate must save, so that noise decides nothing; chosen empirically."""


@dataclass(frozen=True)
class TuningResult:
    """The best pipeline of a kernel, and how it differs from the default one ("": not at all).

    Both are measured side by side, in seconds; `measurements` has every other candidate by its difference.
    """

    passes: str
    change: str
    baseline_seconds: float
    tuned_seconds: float
    measurements: dict[str, float]

    def __str__(self) -> str:
        verdict = (
            f"{self.change}: {format_seconds(self.tuned_seconds)} instead of {format_seconds(self.baseline_seconds)}"
        )
        others = ", ".join(f"{candidate} {format_seconds(s)}" for candidate, s in self.measurements.items())
        unchanged = f"the cost model's choice stays: {format_seconds(self.baseline_seconds)}"
        return (verdict if self.change else unchanged) + (f"; measured: {others}" if others else "")


@dataclass(frozen=True)
class Tuner:
    """Run pipelines over programs as `run_pipeline` does, with other options where `measure` finds these faster."""

    target: Target
    cache: ObjectCache
    measure: MeasureKernels

    def run(
        self,
        ir: Program,
        passes: str,
        context: Context | None = None,
        instruments: Sequence[PassInstrument] = (),
        finished: KernelSink | None = None,
    ) -> Program:
        """Run the passes; those over kernels at the end of the pipeline with the options that are fastest for each kernel."""
        context = context or Context()
        program_passes, default = split_at_kernels(parse_pipeline(passes))
        program = run_pipeline(ir, program_passes, context, instruments)
        context.program = program
        cold_bytes = cold_cache_bytes(program, context.machine)
        tuned = {
            k.name: self.tune_kernel(k, default, cold_bytes, context) for k in hot_kernels(program, context.machine)
        }

        def schedule(kernel: Kernel) -> Kernel:
            chosen = tuned.get(kernel.name, default)
            return schedule_kernel(program, chosen, context, instruments, finished, kernel)

        return map_kernels(program, schedule)

    def tune_kernel(self, kernel: Kernel, passes: Pipeline, cold_bytes: int, context: Context) -> Pipeline:
        """Return the fastest pipeline for `kernel`, from the cache if it is known; a remark says what was measured."""
        key = self.cache_key(kernel, passes, cold_bytes)
        entry = self.cache.get(key)
        if entry is None:
            found = KernelSearch(kernel, passes, context, lambda kernels: self.measure(kernels, cold_bytes)).run()
            self.cache.put(key, json.dumps(asdict(found)).encode())
        else:
            found = TuningResult(**json.loads(entry))
        kind = "applied" if found.change else "missed"
        context.remarks.add(Remark("tune", kind, f"{found}{' (known)' if entry else ''}", kernel=kernel.name))
        return parse_pipeline(found.passes)

    def cache_key(self, kernel: Kernel, passes: Pipeline, cold_bytes: int) -> str:
        """Return the key of a result: kernel, passes and their sources, threads, and the machine."""
        sources = source_hash(compiler.passes, compiler.analysis, compiler.cost, compiler.math)
        parts = ("tuned", kernel_digest(kernel), print_pipeline(passes), torch.get_num_threads(), cold_bytes, sources)
        return object_key(" ".join(map(str, parts)), self.target)


def cold_cache_bytes(program: Program, machine: Machine) -> int:
    """Return the bytes to spread constants over while timing, so that they miss the last cache if a program's do; else 0."""
    return 2 * machine.l3 if program.external_bytes > machine.l3 else 0


def hot_kernels(program: Program, machine: Machine) -> Iterator[Kernel]:
    """Return the kernels whose launches take at least `MIN_TIME_SHARE` of the estimated time of the program."""
    launches = Counter(program.launched_kernels())
    seconds = {name: count * roofline_seconds(program.kernels[name], machine) for name, count in launches.items()}
    return (program.kernels[n] for n, s in seconds.items() if s >= MIN_TIME_SHARE * sum(seconds.values()))


class KernelSearch:
    """The greedy search for the fastest candidate for one kernel."""

    def __init__(
        self, kernel: Kernel, passes: Pipeline, context: Context, measure: Callable[[Sequence[Kernel]], list[float]]
    ) -> None:
        self.kernel, self.baseline, self.context, self.measure = kernel, passes, context, measure
        self.measurements: dict[str, float] = {}
        self.scheduled: dict[Candidate, tuple[Kernel, list[Alternative]]] = {}

    def run(self) -> TuningResult:
        """Return the best candidate, measured once more beside the default one."""
        best: Candidate = self.baseline
        for position in range(len(self.baseline)):
            best = self.fastest([best, *self.neighbors(best, position)])
        before, after = self.measure([self.schedule(c)[0] for c in (self.baseline, best)])
        if best == self.baseline or after > before * (1 - MIN_GAIN):
            best, after = self.baseline, before
        change = self.describe_change(best)
        tried = {c: s for c, s in self.measurements.items() if c not in ("", change)}
        return TuningResult(print_pipeline(p for p in best if p), change, before, after, tried)

    def neighbors(self, candidate: Candidate, position: int) -> Iterator[Candidate]:
        """Yield candidates with another pass at `position` that give new kernels."""
        kernel, alternatives = self.schedule(candidate)
        known = {kernel_digest(kernel)}
        for other in alternatives:
            if other.pass_ is candidate[position]:
                neighbor = (*candidate[:position], other.replacement, *candidate[position + 1 :])
                digest = kernel_digest(self.schedule(neighbor)[0])
                if digest not in known:
                    known.add(digest)
                    yield neighbor

    def fastest(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate that takes the least time; the first one, unless another saves enough."""
        if len(candidates) == 1:
            return candidates[0]
        seconds = dict(zip(candidates, self.measure([self.schedule(c)[0] for c in candidates]), strict=True))
        self.measurements |= {self.describe_change(c): s for c, s in seconds.items()}
        best = min(candidates, key=seconds.__getitem__)
        return best if seconds[best] < seconds[candidates[0]] * (1 - MIN_GAIN) else candidates[0]

    def schedule(self, candidate: Candidate) -> tuple[Kernel, list[Alternative]]:
        """Return the kernel after the passes of a candidate, and the alternatives they propose."""
        if candidate not in self.scheduled:
            context = self.context.trial()
            kernel = run_passes(self.kernel, tuple(p for p in candidate if p), context)
            self.scheduled[candidate] = kernel, context.alternatives
        return self.scheduled[candidate]

    def describe_change(self, candidate: Candidate) -> str:
        """Describe how a candidate differs from the default one: "tile{rows=6}, no prefetch"."""
        pairs = zip(self.baseline, candidate, strict=True)
        return ", ".join(str(new) if new else f"no {old.name}" for old, new in pairs if old and new != old)
