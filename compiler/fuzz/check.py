"""Random graphs against their expectations: natively in every way they can be compiled, and in the interpreter of Tile IR."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from compiler.codegen.target import TARGETS
from compiler.driver import SHARED, CompiledGraph
from compiler.errors import OpenSizeError
from compiler.fuzz.calls import LARGEST, REFUSED, numel, results
from compiler.fuzz.inputs import Array, inputs_for
from compiler.fuzz.worlds import Expectation, expectations
from compiler.ir.atoms import FEW, MANY, expected
from compiler.ir.graph import Graph
from compiler.ir.index import size
from compiler.ir.interpret_tile import run_program
from compiler.ir.random_inputs import small_sizes
from compiler.ir.sizes import bind_sizes
from compiler.ir.tile import Program
from compiler.ir.torch_types import as_array, as_tensor
from compiler.ir.trial import interpreted_steps
from compiler.ir.verify_graph import verify_graph
from compiler.options import Options
from compiler.pipeline import GRAPH_PASSES, PROGRAM_PASSES, TILE_PASSES, run_passes

EAGER = {
    "block-scans": "block-scans{long=8, block=4, rows=64}",
    "winograd": "winograd{gain=1000.0}",
    "contract": "contract{steps=0}",
    "online": "online{longest=3, part=3, rows=2, causal=2}",
    "stage": "stage{reuse=2}",
    "interleave": "interleave{heavy=4}",
    "parallelize": "parallelize{grain=1}",
}
"""Passes that wait for much work, told to do theirs on little."""

STEPS = 20_000
"""The longest program that the interpreter of Tile IR is given."""

FILLING = (19, 37, 69)
"""What open sizes begin with where tiles are to be full: one tile of 14, 32 or 64, and a rest."""


@dataclass(frozen=True)
class Way:
    """A way to run a graph: natively for a target, or interpreted after all passes, open sizes taken for about `usual`."""

    name: str
    options: Options
    threads: int = 1
    interpreted: bool = False
    usual: int = MANY


class Prepared:
    """A graph about to run in one way: compiled once, for inputs of any sizes."""

    def __init__(self, graph: Graph, way: Way) -> None:
        self.graph, self.way = graph, way

    @cached_property
    def _compiled(self) -> CompiledGraph:
        return CompiledGraph(self.graph, self.way.options)

    @cached_property
    def _program(self) -> Program:
        """What the graph becomes for any sizes that share code, or where they must be known, for none."""
        likely = expected(0, SHARED[0], 0, self.way.usual)
        opened = {s: size(s, 0, SHARED[0], likely) for s in self.graph.symbols}
        return run_passes(self.graph.specialize(opened), self.way.options).scheduled

    def run(self, fixed: Graph, inputs: Sequence[Array]) -> list[Array]:
        """Every output of the graph, those that are written back to inputs included; `fixed` has the sizes of `inputs`."""
        if self.way.interpreted:
            return self._interpreted(fixed, inputs)
        tensors = [as_tensor(x, n.dtype).clone() for x, n in zip(inputs, fixed.inputs, strict=True)]
        if self.way.threads > 1:
            tensors = [_strided(t) for t in tensors]
        torch.set_num_threads(self.way.threads)
        returned, aliases = iter(self._compiled(tensors)), fixed.aliases
        outputs = [tensors[aliases[k]] if k in aliases else next(returned) for k in range(len(fixed.outputs))]
        return [as_array(t) for t in outputs]

    def _interpreted(self, fixed: Graph, inputs: Sequence[Array]) -> list[Array]:
        """The outputs by the interpreter of Tile IR; none where it would take too long."""
        try:
            program = self._program
        except OpenSizeError:
            program = run_passes(fixed, self.way.options).scheduled
        sizes = bind_sizes([program.buffers[n] for n in program.inputs], [x.shape for x in inputs])
        return run_program(program, inputs) if interpreted_steps(program, sizes) <= STEPS else []


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
    made += [Way("interpreted small", plain, interpreted=True, usual=FEW)]
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
    try:
        verify_graph(graph)
        calls = [call_of(fixed, seed) for fixed in of_several_sizes(graph, seed)]
    except (RuntimeError, *REFUSED) as error:
        return Outcome(Failure("refused", "interpreter", str(error)))
    answers = [e for c in calls for e in c.expected or ()]
    elements, certain = sum(e.value.size for e in answers), sum(e.certain for e in answers)
    for way in ways:
        prepared = Prepared(graph, way)
        for call in calls:
            failure = call.failure(prepared) if call.expected is not None else call.unnoticed(prepared)
            if failure:
                return Outcome(failure, elements, certain)
    return Outcome(None, elements, certain)


def of_several_sizes(graph: Graph, seed: int) -> list[Graph]:
    """`graph` with its symbolic dimensions small, and again large enough that tiles are full, where the graph takes that."""
    if not graph.symbols:
        return [graph]
    few = graph.specialize(small_sizes(graph, 3 + seed % 5))
    try:
        many = graph.specialize(small_sizes(graph, FILLING[seed % len(FILLING)]))
    except REFUSED:
        return [few]
    return [few, many] if all(numel(t) <= 16 * LARGEST for n in many for t in results(n)) else [few]


@dataclass(frozen=True)
class Call:
    """A graph of known sizes, its inputs, and what may come of them: None where an index is out of range."""

    fixed: Graph
    seed: int
    inputs: Sequence[Array]
    expected: Sequence[Expectation] | None

    def failure(self, prepared: Prepared) -> Failure | None:
        """What goes wrong in one way; a wrong number is believed only after many more worlds."""
        way = prepared.way.name
        try:
            got = prepared.run(self.fixed, self.inputs)
        except Exception as error:  # whatever the compiler raises is what this is here to find
            if isinstance(error, IndexError) and not any(e.certain for e in self.expected or ()):
                return None
            return Failure(type(error).__name__, way, str(error))
        if not _problems(got, self.expected or ()):
            return None
        problems = _problems(got, expectations(self.fixed, self.inputs, self.seed + 1, 64))
        return Failure("wrong", way, "; ".join(problems)) if problems else None

    def unnoticed(self, prepared: Prepared) -> Failure | None:
        """An index is out of range, and every way must say so."""
        way = prepared.way
        try:
            if not prepared.run(self.fixed, self.inputs) and way.interpreted:
                return None
        except IndexError:
            return None
        except Exception as error:
            return Failure(type(error).__name__, way.name, str(error))
        return Failure("no IndexError", way.name, "an index out of range goes unnoticed")


def call_of(fixed: Graph, seed: int) -> Call:
    """The call of a graph of known sizes that `seed` stands for."""
    inputs = inputs_for(fixed, seed)
    try:
        return Call(fixed, seed, inputs, expectations(fixed, inputs, seed))
    except IndexError:
        return Call(fixed, seed, inputs, None)


def _problems(got: Sequence[Array], expected: Sequence[Expectation]) -> list[str]:
    return [
        f"output {k}: {p}"
        for k, (g, e) in enumerate(zip(got, expected, strict=False))
        if (p := e.problem(np.asarray(g)))
    ]
