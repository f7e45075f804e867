"""Every rewrite is counted, and none follows the limit but those that later stages need."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.ir_text import parse_ir, print_ir
from compiler.options import Options
from compiler.passes.base import PASSES, Context, GraphPass
from compiler.passes.manager import run_pipeline
from compiler.pipeline import Stages, lower_and_schedule
from compiler.testing.fuzz import CONFIGURATIONS, check_graph, random_graph

EXAMPLES = Path(__file__).parents[2] / "examples"
CHAIN = "graph(%x: f32[4]) { %a = neg %x  %b = neg %a  %c = mul %b, 1.0  %d = exp %c  return %d }"
SOFTMAX = (EXAMPLES / "softmax.ir").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Careless(GraphPass):
    """Replaces the results by their negation and asks nobody."""

    name = "test-careless"

    def run(self, ir: Graph, context: Context) -> Graph:
        return replace(ir, outputs=tuple(ops.neg(n) for n in ir.outputs))


def stages(graph: Graph, limit: int | None) -> Stages:
    return lower_and_schedule(graph, Options(target="x86-64-v3", cache="", rewrite_limit=limit))


@pytest.mark.parametrize(("limit", "kept"), [(0, 6), (1, 4), (2, 2), (None, 2)])
def test_only_the_first_rewrites_are_made(limit: int | None, kept: int) -> None:
    context = Context(rewrite_limit=limit)
    result = run_pipeline(parse_ir(CHAIN), "canonicalize", context)
    assert len(result.nodes) == kept
    assert len(context.rewrites) == (2 if limit is None else limit)
    assert [r.message for r in context.rewrites] == ["elementwise identity"] * len(context.rewrites)


def test_what_later_stages_need_is_counted_but_made() -> None:
    context = Context(rewrite_limit=0)
    result = run_pipeline(parse_ir(SOFTMAX), "decompose", context)
    assert "softmax" not in print_ir(result).partition("\n")[2]
    assert [(r.pass_, r.message, r.node) for r in context.rewrites] == [("decompose", "softmax expanded", "y")]
    refusing = Context(rewrite_limit=0, refuses_required=True)
    assert print_ir(run_pipeline(parse_ir(SOFTMAX), "decompose", refusing)) == print_ir(parse_ir(SOFTMAX))


def test_a_pass_that_does_not_ask_is_one_rewrite() -> None:
    graph = parse_ir(CHAIN)
    counting, refusing = Context(), Context(rewrite_limit=0)
    assert run_pipeline(graph, [Careless()], counting) is not graph
    assert [(r.pass_, r.message) for r in counting.rewrites] == [("test-careless", "the whole pass")]
    assert run_pipeline(graph, [Careless()], refusing) is graph
    assert Careless.name not in PASSES


def test_a_limit_takes_the_first_rewrites_of_the_same_compilation() -> None:
    graph = parse_graph(SOFTMAX)
    every = stages(graph, None).context.rewrites
    assert len({r.pass_ for r in every}) > 6
    for limit in (1, len(every) // 2, len(every)):
        made = stages(graph, limit).context.rewrites
        assert made[:limit] == every[:limit]


GRAPHS = {
    path.stem: parse_graph(path.read_text(encoding="utf-8"))
    for path in (EXAMPLES / f"{n}.ir" for n in ("softmax", "padded", "silu"))
}
GRAPHS |= {f"random {seed}": random_graph(seed) for seed in (3, 8, 17, 21)}


@pytest.mark.parametrize("name", GRAPHS)
def test_any_number_of_rewrites_gives_right_code(name: str) -> None:
    graph, configuration = GRAPHS[name], CONFIGURATIONS["aggressive"]
    total = len(lower_and_schedule(graph, configuration.options).context.rewrites)
    for limit in (0, random.Random(name).randint(1, total)):
        limited = replace(configuration, options=configuration.options.with_(rewrite_limit=limit))
        failure = check_graph(graph, 0, [limited]).failure
        assert failure is None, f"with {limit} of {total} rewrites: {failure}"
