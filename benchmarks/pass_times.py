"""CPU seconds of each pass over graphs that grow: `python -m benchmarks pass_times [chain linear dag recurrence]`.

A pass whose time grows like the number of nodes has a last column of about 10.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable

import numpy as np

from benchmarks.arguments import BenchmarkArguments, print_table
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, constant_node, input_node
from compiler.ir.types import TensorType, f32
from compiler.options import Options
from compiler.passes.instrument import PassTiming
from compiler.pipeline import lower_and_schedule
from compiler.report.render import table

SIZES = (100, 1000, 10_000)
"""Numbers of nodes."""

SHOWN = 12
"""Passes in each table, those that take longest."""


def matrix(name: str, rows: int, columns: int) -> Node:
    """Return an input f32[rows, columns]."""
    return input_node(name, TensorType(f32, (rows, columns)))


def weights(count: int) -> list[Node]:
    """Return constants f32[32, 32]."""
    numbers = np.random.default_rng(0)
    return [constant_node(numbers.standard_normal((32, 32), np.float32)) for _ in range(count)]


def chain(nodes: int) -> Graph:
    """Return elementwise ops one after the other."""
    x = y = matrix("x", 64, 64)
    for _ in range(nodes // 2):
        y = ops.relu(ops.add(y, x))
    return Graph((x,), (y,), "chain")


def linear(nodes: int) -> Graph:
    """Return matrix products and ReLU in turns."""
    x = y = matrix("x", 8, 32)
    for w in weights(nodes // 2):
        y = ops.relu(ops.matmul(y, w))
    return Graph((x,), (y,), "linear")


def dag(nodes: int) -> Graph:
    """Return ops on any two of the last 50 values, every fifth a sum over rows."""
    choose, x = random.Random(0), matrix("x", 16, 32)
    values = [x]
    for _ in range(nodes):
        a, b = choose.choices(values[-50:], k=2)
        if choose.random() < 0.8:
            values.append(choose.choice([ops.add, ops.mul, ops.maximum])(a, b))
        else:
            values.append(ops.exp(a) if a.shape[1] == 1 else ops.sum_(a, dims=[1], keepdim=True))
    return Graph((x,), tuple(values[-10:]), "dag")


def recurrence(nodes: int) -> Graph:
    """Return the steps of a recurrent network, one after the other."""
    steps, (w, u) = nodes // 6, weights(2)
    x, first = input_node("x", TensorType(f32, (steps, 4, 32))), matrix("h", 4, 32)
    h = first
    for t in range(steps):
        h = ops.tanh(ops.add(ops.matmul(ops.select(x, 0, t), w), ops.matmul(h, u)))
    return Graph((x, first), (h,), "recurrence")


GRAPHS: dict[str, Callable[[int], Graph]] = {"chain": chain, "linear": linear, "dag": dag, "recurrence": recurrence}


def pass_seconds(graph: Graph) -> Counter[str]:
    """Return the CPU seconds of each pass, code generation not included."""
    timing = PassTiming()
    lower_and_schedule(graph, Options(cache=""), [timing])
    seconds = Counter[str]()
    for run in timing.runs:
        seconds[run.pass_.name] += run.seconds
    return seconds


def main(arguments: BenchmarkArguments) -> None:
    """Print a table for each kind of graph; its last column divides the two largest graphs."""
    pass_seconds(chain(10))  # loads all modules
    for name in arguments.select_rows(GRAPHS):
        columns = []
        for nodes in SIZES:
            columns.append(pass_seconds(GRAPHS[name](nodes)))
            print(f"{name}, {nodes} nodes: {columns[-1].total():.2f} s", file=sys.stderr)
        rows = table(f"{name}: CPU seconds of passes", ["pass"], [*(f"{n} nodes" for n in SIZES), "growth"])
        for pass_, _ in columns[-1].most_common(SHOWN):
            times = [c[pass_] for c in columns]
            rows.add_row(pass_, *(f"{s:.3f}" for s in times), f"{times[-1] / max(times[-2], 1e-9):.1f}")
        totals = [c.total() for c in columns]
        rows.add_row("all", *(f"{s:.3f}" for s in totals), f"{totals[-1] / totals[-2]:.1f}")
        print_table(rows)
