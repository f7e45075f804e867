"""Measurement of one program: errors, times of ours and of peers in one interleaved run, and times of our kernels."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import compiler
from benchmarks.peer_comparison import burst_medians
from benchmarks.peers import PEERS, attempt_peer
from benchmarks.survey.features import features
from benchmarks.survey.program import Loaded, Program
from benchmarks.survey.roofline import roofline_seconds, workload
from benchmarks.survey.rows import KernelRow, Row
from compiler.api import CompiledModule
from compiler.codegen.llvm.targets import host_target
from compiler.cost.machine import Machine
from compiler.report.measure import float64_reference, numerical_error

ROUNDS, BURST_SECONDS, PROFILED_CALLS = 3, 0.15, 5
"""Turns of each call, seconds of a turn, and calls whose kernels are timed."""

Report = Callable[[str], None]
"""Is told the name of each stage as it begins, so that a crash can be attributed."""


def measure(program: Program, peers: Sequence[str], threads: int, report: Report) -> Row:
    """Return the row of `program`; a failure of ours or of a peer is part of it."""
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    report("warm-up")
    load_compilers(tuple(peers))
    report("eager")
    loaded = program.load()
    row = Row(program.seed, program.kind, program.index, program.family, threads)
    with torch.no_grad():
        report("ours")
        try:
            compiled, results, first = first_result(loaded)
        except Exception as error:  # a row like any other
            return replace(row, failures={"ours": describe_error(error)})
        return compare(program, loaded, row, compiled, results, first, peers, report)


def compare(
    program: Program, loaded: Loaded, row: Row, compiled: CompiledModule, results: list[Tensor], first: float, peers: Sequence[str], report: Report
) -> Row:  # fmt: skip
    """Return `row` with everything measured."""
    model, args = loaded.model, loaded.args
    report("float64")
    expected = tree_leaves(model(*args))
    truth = float64_reference(torch.export.export(model, args), args)
    error, eager_error = (numerical_error(r, truth).relative for r in (results, expected))
    ready, failures = [], {}
    torch._dynamo.reset()
    for name in peers:
        report(name)
        made = attempt_peer(name, partial(PEERS[name], model, args), cold=True)
        if isinstance(made, str):
            failures[name] = made
        else:
            ready.append(made)
    report("timing")
    seconds, *others = burst_medians([partial(compiled, *args), *(p.call for p in ready)], ROUNDS, BURST_SECONDS)
    report("profile")
    profile = compiled.profile(repeats=PROFILED_CALLS)
    found = features(compiled.compiled_graph.graph)
    if not all(a.is_contiguous() for a in args):
        found.append("permuted argument")
    return Row(
        row.seed, row.kind, row.index, row.family, row.threads, found, seconds,
        {p.name: s for p, s in zip(ready, others, strict=True)},
        {"ours": first, **{p.name: p.first_result_seconds for p in ready}},
        roofline_seconds(workload(program), host_target().machine or Machine(), row.threads),
        error, eager_error, [KernelRow(k.name, k.seconds, k.predicted) for k in profile.kernels], failures,
    )  # fmt: skip


def first_result(loaded: Loaded) -> tuple[CompiledModule, list[Tensor], float]:
    """Compile without caches; return the compiled model, its first results, and the seconds until then."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        options = compiler.Options(cache=folder)
        compiled = compiler.compile(loaded.model, loaded.args, dynamic_shapes=loaded.dynamic_shapes, options=options)
        results = tree_leaves(compiled(*loaded.args))
        return compiled, results, time.perf_counter() - start


@cache
def load_compilers(peers: tuple[str, ...]) -> None:
    """Compile something small, so that no row counts the time to import a compiler."""
    torch._inductor.config.compile_threads = 1  # no pool of processes beside each worker
    model, x = nn.ReLU().eval(), torch.zeros(8)
    with torch.no_grad():
        first_result(Loaded(model, (x,), None))
        for name in peers:
            attempt_peer(name, partial(PEERS[name], model, [x]))


def describe_error(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
