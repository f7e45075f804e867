"""Rank variants of kernels by the cost model and by the clock, and compare the two orders.

    python -m benchmarks rank [--count N]            compare with the recorded times
    python -m benchmarks rank record [--count N]     measure again, on one thread, and write the record

A variant of a kernel is the default pipeline with a pass left out or given other options: those that passes propose, and
`COMMON_CHANGES`.  Variants with identical code count once.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.arguments import print_table
from benchmarks.rank_corpus import GRAPHS, corpus_graph
from compiler.codegen.backend import backend_of
from compiler.codegen.llvm.targets import host_target
from compiler.cost.estimates import roofline_seconds
from compiler.cost.kernel_time import predicted_seconds
from compiler.cost.machine import Machine
from compiler.driver.autotune import Candidate, KernelSearch
from compiler.ir.tile.digest import kernel_digest
from compiler.ir.tile.kernel import Kernel
from compiler.lowering.program import lower
from compiler.passes.base import Context, Pass
from compiler.passes.manager import run_pipeline
from compiler.passes.pipeline_text import Pipeline, parse_pipeline
from compiler.report.render import table
from compiler.runtime.kernel_timer import KernelTimer

RECORD = Path(__file__).parent.parent / "tests" / "cost" / "measured_variants.json"
"""The recorded times."""

COMMON_CHANGES = {
    "vectorize": ("vectorize{skipped-choices=1}", "vectorize{skipped-choices=2}"),
    "tile": ("tile{registers=1}", "tile{registers=2}", "tile{registers=8}"),
    "reorder": ("",),
    "cache-blocking": ("", "cache-blocking{cache-fraction=0.1}", "cache-blocking{depth-block=0}"),
    "unroll": ("",),
    "cache-operand": ("",),
    "unroll-and-jam": ("",),
    "split-epilogue": ("",),
    "collapse": ("",),
}
"""Replacements of passes that are tried on every kernel, besides those that the passes propose; "" leaves a pass out."""

PAIRED_PASSES = (
    ("vectorize", "tile"),
    ("vectorize", "cache-operand"),
    ("tile", "unroll"),
    ("vectorize", "unroll"),
    ("vectorize", "cache-blocking"),
    ("vectorize", "collapse"),
)
"""Passes whose first replacements are also tried together, for kernels that would have few variants otherwise."""

MIN_VARIANTS, MAX_VARIANTS = 4, 10
"""Fewest and most variants of a kernel, with the default."""

ROUNDS = 3
"""Rounds over all kernels; the least time of a variant counts, because disturbances only add time."""

MIN_DIFFERENCE = 0.03
"""Share by which two times differ at least if their order is to count: the autotuner's limit for noise."""


@dataclass(frozen=True)
class Variant:
    """One way to schedule a kernel: how its pipeline differs from the default, and the result."""

    change: str
    kernel: Kernel


@dataclass(frozen=True)
class Ranking:
    """Agreement of predicted and measured times of the variants of one kernel.

    `tau`: Kendall's rank correlation over the pairs that differ by MIN_DIFFERENCE; `strict_tau` over all pairs.
    `regret`: share of time lost by taking the variant with the least predicted time.
    """

    name: str
    tau: float
    strict_tau: float
    regret: float
    pairs: int
    predicted_best: str
    measured_best: str


def dominant_kernel(name: str, machine: Machine) -> tuple[Kernel, Pipeline]:
    """Return the kernel of a corpus graph that takes longest by its roofline, before tile passes, and these passes."""
    pipelines, context = backend_of(host_target()).pipelines, Context(machine=machine)
    graph_passes = [p for p in parse_pipeline(pipelines.graph) if p.name != "winograd"]
    passes = parse_pipeline(pipelines.program)
    start = max(k + 1 for k, p in enumerate(passes) if p.ir_type is not Kernel)
    program = run_pipeline(lower(run_pipeline(corpus_graph(name), graph_passes, context)), passes[:start], context)
    kernel = max(program.kernels.values(), key=lambda k: roofline_seconds(k, machine))
    return kernel, passes[start:]


def kernel_variants(name: str, machine: Machine) -> list[Variant]:
    """Return the variants of a corpus kernel that differ in their code, the default first."""
    kernel, passes = dominant_kernel(name, machine)
    search = KernelSearch(kernel, passes, Context(machine=machine), lambda _: [])
    found: dict[str, Variant] = {}
    for candidate in candidates(search):
        scheduled = search.schedule(candidate)[0]
        found.setdefault(kernel_digest(scheduled), Variant(search.describe_change(candidate), scheduled))
        if len(found) == MAX_VARIANTS:
            break
    if len(found) < MIN_VARIANTS:  # without vectors
        candidate = exchanged(search.baseline, "vectorize", None)
        scheduled = search.schedule(candidate)[0]
        found.setdefault(kernel_digest(scheduled), Variant(search.describe_change(candidate), scheduled))
    return list(found.values())


def candidates(search: KernelSearch) -> Iterator[Candidate]:
    """Yield the default pipeline, those that differ in one pass, and those that differ in a pair of `PAIRED_PASSES`."""
    passes = search.baseline
    yield passes
    _, alternatives = search.schedule(passes)
    changes: dict[str, list[Pass[Any] | None]] = {name: [] for name in COMMON_CHANGES}
    for a in alternatives:
        if a.pass_.name in changes:
            changes[a.pass_.name].append(a.replacement)
    for name, texts in COMMON_CHANGES.items():
        changes[name] += [parse_pipeline(text)[0] if text else None for text in texts]

    # one change of each pass before the second of any: no pass may crowd out the others
    for k in range(max(map(len, changes.values()))):
        for name, news in changes.items():
            if k < len(news):
                yield exchanged(passes, name, news[k])
    for first, second in PAIRED_PASSES:
        yield exchanged(exchanged(passes, first, changes[first][0]), second, changes[second][0])


def exchanged(candidate: Candidate, name: str, replacement: Pass[Any] | None) -> Candidate:
    """Return `candidate` with `replacement` for the pass `name`; None leaves it out."""
    return tuple(replacement if p is not None and p.name == name else p for p in candidate)


def record(names: Sequence[str]) -> None:
    """Measure the variants of the kernels `names` on this machine and write `RECORD`."""
    torch.set_num_threads(1)
    target, start = host_target(), time.perf_counter()
    machine = target.machine or Machine()
    variants = {name: kernel_variants(name, machine) for name in names}
    timer = KernelTimer(target)
    seconds = {name: [float("inf")] * len(vs) for name, vs in variants.items()}
    for number in range(ROUNDS):
        for name, vs in variants.items():
            seconds[name] = list(map(min, seconds[name], timer([v.kernel for v in vs])))
        print(f"round {number + 1} of {ROUNDS}: {time.perf_counter() - start:.0f} s", flush=True)
    measured = {
        name: [
            {"change": v.change, "digest": kernel_digest(v.kernel), "microseconds": round(s * 1e6, 2)}
            for v, s in zip(vs, seconds[name], strict=True)
        ]
        for name, vs in variants.items()
    }
    header = {
        "command": "python -m benchmarks rank record",
        "date": time.strftime("%Y-%m-%d"),
        "cpu": f"{target.cpu}, {platform.system()}",
        "threads": 1,
        "machine": asdict(machine),
    }
    RECORD.write_text(json.dumps({**header, "kernels": measured}, indent=1) + "\n")


def recorded_rankings(
    names: Sequence[str] = tuple(GRAPHS), predict: Callable[[Kernel, Machine], float] = predicted_seconds
) -> tuple[list[Ranking], int]:
    """Return the rankings of the recorded kernels among `names`, and the number of variants whose code is not as recorded."""
    data = json.loads(RECORD.read_text())
    machine, rankings, stale = Machine(**data["machine"]), [], 0
    for name in (n for n in names if n in data["kernels"]):
        entries = {e["change"]: e for e in data["kernels"][name]}
        known = [(v, entries[v.change]) for v in kernel_variants(name, machine) if v.change in entries]
        changed = sum(kernel_digest(v.kernel) != e["digest"] for v, e in known)
        stale += changed + len(entries) - len(known)
        if len(known) > 1:
            rankings.append(rank(name, [(predict(v.kernel, machine), e["microseconds"], v.change) for v, e in known]))
    return rankings, stale


def rank(name: str, times: Sequence[tuple[float, float, str]]) -> Ranking:
    """Compare the orders of variants, given as (predicted time, measured time, change)."""
    pairs = list(combinations(times, 2))
    distinct = [(a, b) for a, b in pairs if max(a[1], b[1]) > min(a[1], b[1]) * (1 + MIN_DIFFERENCE)]
    by_model, by_clock = min(times, key=lambda t: t[0]), min(times, key=lambda t: t[1])
    regret = by_model[1] / by_clock[1] - 1
    return Ranking(
        name, kendall_tau(distinct), kendall_tau(pairs), regret, len(distinct), by_model[2] or "default",
        by_clock[2] or "default",
    )  # fmt: skip


def kendall_tau(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Return (concordant - discordant) / all pairs; pairs of equal predictions are neither.  1 without pairs."""
    signs = [(a[0] > b[0]) - (a[0] < b[0]) if a[1] > b[1] else (b[0] > a[0]) - (b[0] < a[0]) for a, b in pairs]
    return fmean(signs) if signs else 1.0


def main(arguments: Sequence[str]) -> None:
    """Record, or print how well the cost model ranks the recorded variants."""
    c = argparse.ArgumentParser("python -m benchmarks rank")
    c.add_argument("action", nargs="?", choices=["record"], help="measure again (else compare with the record)")
    c.add_argument("--count", type=int, default=len(GRAPHS), help="kernels, from the first (all)")
    given = c.parse_args(list(arguments))
    names = list(GRAPHS)[: given.count]
    if given.action:
        record(names)
    rankings, stale = recorded_rankings(names)
    result = table(
        "cost model against measured time", ["kernel"], ["tau", "all pairs", "regret"], ["chosen", "fastest"]
    )
    for r in sorted(rankings, key=lambda r: r.tau):
        result.add_row(
            r.name, f"{r.tau:.2f}", f"{r.strict_tau:.2f}", f"{r.regret:.1%}", r.predicted_best, r.measured_best
        )
    print_table(result, summary(rankings), f"{stale} recorded variants have other code now" if stale else "")


def summary(rankings: Sequence[Ranking]) -> str:
    """Return the means in words."""
    tau, strict, regret = (fmean(getattr(r, f) for r in rankings) for f in ("tau", "strict_tau", "regret"))
    return (
        f"{len(rankings)} kernels: mean Kendall tau {tau:.3f} ({strict:.3f} with pairs that differ by less than "
        f"{MIN_DIFFERENCE:.0%}), mean top-1 regret {regret:.1%}"
    )
