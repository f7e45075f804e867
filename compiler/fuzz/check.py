"""Random graphs against their expectations: natively in every way they can be compiled, and in the interpreter of Tile IR."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from compiler.codegen.target import TARGETS
from compiler.driver import compile_graph
from compiler.fuzz.calls import REFUSED
from compiler.fuzz.inputs import Array, inputs_for
from compiler.fuzz.worlds import Expectation, expectations
from compiler.ir.graph import Graph
from compiler.ir.interpret_graph import as_array, as_tensor
from compiler.ir.interpret_tile import run_program
from compiler.ir.random_inputs import small_sizes
from compiler.ir.verify_graph import verify_graph
from compiler.options import Options
from compiler.passes.instrument import interpreted_steps
from compiler.pipeline import GRAPH_PASSES, PROGRAM_PASSES, TILE_PASSES, run_passes

EAGER = {
    "block-scans": "block-scans{long=8, block=4, rows=64}",
    "winograd": "winograd{gain=1000.0}",
    "online": "online{longest=3, part=3, rows=2, causal=2}",
    "stage": "stage{reuse=2}",
    "interleave": "interleave{heavy=4}",
    "parallelize": "parallelize{grain=1}",
}
"""Passes that wait for much work, told to do theirs on little."""

STEPS = 20_000
"""The longest program that the interpreter of Tile IR is given."""


@dataclass(frozen=True)
class Way:
    """A way to run a graph: natively for a target, or interpreted after all passes."""

    name: str
    options: Options
    threads: int = 1
    interpreted: bool = False

    def run(self, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        """Every output of `graph`, those that are written back to inputs included."""
        if self.interpreted:
            program = run_passes(graph, self.options).scheduled
            return run_program(program, inputs) if interpreted_steps(program) <= STEPS else []
        tensors = [as_tensor(x, n.dtype).clone() for x, n in zip(inputs, graph.inputs, strict=True)]
        if self.threads > 1:
            tensors = [_strided(t) for t in tensors]
        torch.set_num_threads(self.threads)
        returned = iter(compile_graph(graph, self.options)(tensors))
        outputs = [
            tensors[graph.aliases[k]] if k in graph.aliases else next(returned) for k in range(len(graph.outputs))
        ]
        return [as_array(t) for t in outputs]


def _strided(t: torch.Tensor) -> torch.Tensor:
    """The same elements, stored in another order."""
    return t.mT.contiguous().mT if t.ndim > 1 else t


def eager(passes: str) -> str:
    """A pipeline whose passes have no options, with all of them eager."""
    return ",".join(EAGER.get(name, name) for name in passes.split(","))


def _ways() -> dict[str, Way]:
    plain = Options(cache="", verify=True)
    targets = [name for name, t in TARGETS.items() if not t.lacking_here()]
    made = [Way("fused", plain), Way("interpreted", plain, interpreted=True)]
    made += [Way(f"fused {t}", plain.with_(target=t, verify=False)) for t in targets]
    made += [Way(f"unfused {t}", plain.with_(target=t, fuse=False, verify=False)) for t in targets]
    tile_passes = eager(f"{PROGRAM_PASSES},{TILE_PASSES}")
    hasty = plain.with_(graph_passes=eager(GRAPH_PASSES), tile_passes=tile_passes)
    made += [Way("eager", hasty), Way("threads", hasty, 2)]
    made += [Way("unfused threads", plain.with_(fuse=False, tile_passes=tile_passes), 2)]
    return {w.name: w for w in made}


WAYS = _ways()
"""Every way, by name.  "fused" is the default one, verified after every pass."""


@dataclass(frozen=True)
class Failure:
    """What went wrong, and in which way of running: `kind` is "wrong", an exception's name, "crash", "hang", or
    "refused" where a type rule accepts what the reference does not."""

    kind: str
    way: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.way}): {self.message}"

    def like(self, other: Failure | None) -> bool:
        """Whether `other` is the same mistake, as far as one can tell."""
        return other is not None and (self.kind, self.way, self.gist) == (other.kind, other.way, other.gist)

    @property
    def gist(self) -> str:
        """The message without numbers and names."""
        if self.kind == "wrong":
            return "nan" if "is np.float32(nan)" in self.message else ""
        return re.sub(r"[\d.]+|%[\w.]+|@[\w.]+|\[[^]]*\]", "", self.message.split("\n")[0])[:60]


@dataclass(frozen=True)
class Outcome:
    """What came of one graph: the failure if there is one, and how many elements of results were held to something."""

    failure: Failure | None
    elements: int = 0
    certain: int = 0


def way_in_turn(seed: int) -> Way:
    """The way for the graph of `seed`: the default one and the eager one by turns, the others one after the other for odd seeds.

    Many graphs in one way each find more in the same time than half as many in two.
    """
    often = [WAYS["fused"], WAYS["eager"]]
    others = [w for w in WAYS.values() if w not in often]
    return others[seed // 2 % len(others)] if seed % 2 else often[seed // 2 % 2]


def check(graph: Graph, seed: int, ways: Sequence[Way] = tuple(WAYS.values())) -> Outcome:
    """Run `graph` on the inputs that `seed` stands for, in each of `ways`, and compare; stops at the first failure."""
    fixed = graph.specialize(small_sizes(graph, 3 + seed % 5)) if graph.symbols else graph
    try:
        verify_graph(graph)
        inputs = inputs_for(fixed, seed)
        expected = expectations(fixed, inputs, seed)
    except IndexError:  # which is what every way must come to
        return _check_faults(graph, fixed, inputs, ways)
    except (RuntimeError, *REFUSED) as error:
        return Outcome(Failure("refused", "interpreter", str(error)))
    elements, certain = sum(e.value.size for e in expected), sum(e.certain for e in expected)
    for way in ways:
        failure = _try(way, graph, fixed, inputs, lambda: expectations(fixed, inputs, seed + 1, 64), expected)
        if failure:
            return Outcome(failure, elements, certain)
    return Outcome(None, elements, certain)


def _try(
    way: Way,
    graph: Graph,
    fixed: Graph,
    inputs: Sequence[Array],
    again: Callable[[], list[Expectation]],
    expected: Sequence[Expectation],
) -> Failure | None:
    """What goes wrong in one way; a wrong number is believed only after many more worlds."""
    try:
        got = way.run(fixed if way.interpreted else graph, inputs)
    except Exception as error:  # whatever the compiler raises is what this is here to find
        return Failure(type(error).__name__, way.name, str(error))
    if not _problems(got, expected):
        return None
    problems = _problems(got, again())
    return Failure("wrong", way.name, "; ".join(problems)) if problems else None


def _check_faults(graph: Graph, fixed: Graph, inputs: Sequence[Array], ways: Sequence[Way]) -> Outcome:
    """An index is out of range, and every way must say so."""
    for way in ways:
        try:
            if way.run(fixed if way.interpreted else graph, inputs) or not way.interpreted:
                return Outcome(Failure("no IndexError", way.name, "an index out of range goes unnoticed"))
        except IndexError:
            continue
        except Exception as error:
            return Outcome(Failure(type(error).__name__, way.name, str(error)))
    return Outcome(None)


def _problems(got: Sequence[Array], expected: Sequence[Expectation]) -> list[str]:
    return [
        f"output {k}: {p}"
        for k, (g, e) in enumerate(zip(got, expected, strict=False))
        if (p := e.problem(np.asarray(g)))
    ]
