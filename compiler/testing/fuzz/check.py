"""Random graphs against their expectations: natively in every way they can be compiled, and in the interpreter of Tile IR."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from compiler.codegen.target import CPU_TARGETS
from compiler.driver.compiled_graph import SIZE_BUCKETS, CompiledGraph
from compiler.errors import DynamicShapeError
from compiler.ir.graph.graph import Graph
from compiler.ir.interpret.random_inputs import small_symbol_values
from compiler.ir.interpret.size_sampling import interpreted_statements
from compiler.ir.interpret.tile import run_program
from compiler.ir.symbolic.index_atoms import DEFAULT_SIZE_HINT, SMALL_SIZE_HINT, choose_size_hint
from compiler.ir.symbolic.index_expr import dynamic_size
from compiler.ir.tile.dynamic_sizes import bind_sizes
from compiler.ir.tile.program import Program
from compiler.ir.torch_types import as_array, as_tensor
from compiler.ir.verify.graph import verify_graph
from compiler.options import Options
from compiler.pipeline import GRAPH_PASSES, PROGRAM_PASSES, TILE_PASSES, lower_and_schedule
from compiler.testing.fuzz.inputs import Array, inputs_for
from compiler.testing.fuzz.op_calls import BUILD_ERRORS, MAX_VALUE_ELEMENTS, numel, result_types
from compiler.testing.fuzz.rounding_oracle import Expectation, expectations

AGGRESSIVE_PASSES = {
    "two-level-scan": "two-level-scan{min-length=8, block-size=4, max-rows=64}",
    "winograd": "winograd{max-time-ratio=1000.0}",
    "compute-at": "compute-at{min-steps-per-thread=0}",
    "online-softmax": "online-softmax{max-untiled-length=3, column-block=3, row-block=2, causal-block=2}",
    "cache-operand": "cache-operand{min-reuse=2}",
    "unroll-and-jam": "unroll-and-jam{min-lane-ops=4}",
    "parallelize": "parallelize{grain-size=1}",
}
"""Passes that wait for much work, told to do theirs on little."""

MAX_INTERPRETED_STATEMENTS = 20_000
"""The longest program that the interpreter of Tile IR is given."""

TILE_FILLING_SIZES = (19, 37, 69)
"""What open sizes begin with where tiles are to be full: one tile of 14, 32 or 64, and a rest."""


@dataclass(frozen=True)
class Configuration:
    """A way to run a graph: natively for a target, or interpreted after all passes, open sizes taken for about `usual`."""

    name: str
    options: Options
    threads: int = 1
    interpreted: bool = False
    size_hint: int = DEFAULT_SIZE_HINT


class PreparedGraph:
    """A graph about to run in one way: compiled once, for inputs of any sizes."""

    def __init__(self, graph: Graph, configuration: Configuration) -> None:
        self.graph, self.configuration = graph, configuration

    @cached_property
    def _compiled(self) -> CompiledGraph:
        return CompiledGraph(self.graph, self.configuration.options)

    @cached_property
    def _program(self) -> Program:
        """What the graph becomes for any sizes that share code, or where they must be known, for none."""
        likely = choose_size_hint(0, SIZE_BUCKETS[0], 0, self.configuration.size_hint)
        opened = {s: dynamic_size(s, 0, SIZE_BUCKETS[0], likely) for s in self.graph.symbols}
        return lower_and_schedule(self.graph.specialize(opened), self.configuration.options).scheduled

    def run(self, static_graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        """Every output of the graph, those that are written back to inputs included; `fixed` has the sizes of `inputs`."""
        if self.configuration.interpreted:
            return self._run_interpreted(static_graph, inputs)
        tensors = [as_tensor(x, n.dtype).clone() for x, n in zip(inputs, static_graph.inputs, strict=True)]
        if self.configuration.threads > 1:
            tensors = [_permuted_storage(t) for t in tensors]
        torch.set_num_threads(self.configuration.threads)
        returned, aliases = iter(self._compiled(tensors)), static_graph.output_aliases
        outputs = [tensors[aliases[k]] if k in aliases else next(returned) for k in range(len(static_graph.outputs))]
        return [as_array(t) for t in outputs]

    def _run_interpreted(self, static_graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        """The outputs by the interpreter of Tile IR; none where it would take too long."""
        try:
            program = self._program
        except DynamicShapeError:
            program = lower_and_schedule(static_graph, self.configuration.options).scheduled
        sizes = bind_sizes([program.buffers[n] for n in program.inputs], [x.shape for x in inputs])
        return (
            run_program(program, inputs) if interpreted_statements(program, sizes) <= MAX_INTERPRETED_STATEMENTS else []
        )


def _permuted_storage(t: torch.Tensor) -> torch.Tensor:
    """The same elements, stored in another order."""
    return t.mT.contiguous().mT if t.ndim > 1 else t


def make_aggressive(passes: str) -> str:
    """A pipeline whose passes have no options, with all of them eager."""
    return ",".join(AGGRESSIVE_PASSES.get(name, name) for name in passes.split(","))


def _make_configurations() -> dict[str, Configuration]:
    plain = Options(cache="", verify=True)
    targets = [name for name, t in CPU_TARGETS.items() if not t.missing_host_features()]
    made = [Configuration("fused", plain), Configuration("interpreted", plain, interpreted=True)]
    made += [Configuration("interpreted small", plain, interpreted=True, size_hint=SMALL_SIZE_HINT)]
    made += [Configuration(f"fused {t}", plain.with_(target=t, verify=False)) for t in targets]
    made += [Configuration(f"unfused {t}", plain.with_(target=t, fuse=False, verify=False)) for t in targets]
    tile_passes = make_aggressive(f"{PROGRAM_PASSES},{TILE_PASSES}")
    hasty = plain.with_(graph_passes=make_aggressive(GRAPH_PASSES), tile_passes=tile_passes)
    made += [Configuration("eager", hasty), Configuration("threads", hasty, 2)]
    made += [Configuration("unfused threads", plain.with_(fuse=False, tile_passes=tile_passes), 2)]
    return {w.name: w for w in made}


CONFIGURATIONS = _make_configurations()
"""Every way, by name.  "fused" is the default one, verified after every pass."""


@dataclass(frozen=True)
class Failure:
    """What went wrong, and in which way of running: `kind` is "wrong", an exception's name, "crash", "hang", or
    "refused" where a type rule accepts what the reference does not."""

    kind: str
    configuration: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.configuration}): {self.message}"

    def matches(self, other: Failure | None) -> bool:
        """Whether `other` is the same mistake, as far as one can tell."""
        return other is not None and (self.kind, self.configuration, self.signature) == (
            other.kind,
            other.configuration,
            other.signature,
        )

    @property
    def signature(self) -> str:
        """The message without numbers and names."""
        if self.kind == "wrong":
            return "nan" if "is np.float32(nan)" in self.message else ""
        return re.sub(r"[\d.]+|%[\w.]+|@[\w.]+|\[[^]]*\]", "", self.message.split("\n")[0])[:60]


@dataclass(frozen=True)
class CheckOutcome:
    """What came of one graph: the failure if there is one, and how many elements of results were held to something."""

    failure: Failure | None
    total_elements: int = 0
    checked_elements: int = 0


def configuration_for_seed(seed: int) -> Configuration:
    """The way for the graph of `seed`: the default one and the eager one by turns, the others one after the other for odd seeds.

    Many graphs in one way each find more in the same time than half as many in two.
    """
    often = [CONFIGURATIONS["fused"], CONFIGURATIONS["eager"]]
    others = [w for w in CONFIGURATIONS.values() if w not in often]
    return others[seed // 2 % len(others)] if seed % 2 else often[seed // 2 % 2]


def check_graph(
    graph: Graph, seed: int, configurations: Sequence[Configuration] = tuple(CONFIGURATIONS.values())
) -> CheckOutcome:
    """Run `graph` on the inputs that `seed` stands for, in each of `ways`, and compare; stops at the first failure."""
    try:
        verify_graph(graph)
        calls = [make_checked_call(fixed, seed) for fixed in static_specializations(graph, seed)]
    except (RuntimeError, *BUILD_ERRORS) as error:
        return CheckOutcome(Failure("refused", "interpreter", str(error)))
    answers = [e for c in calls for e in c.expected or ()]
    elements, certain = sum(e.value.size for e in answers), sum(e.checked_elements for e in answers)
    for way in configurations:
        prepared = PreparedGraph(graph, way)
        for call in calls:
            failure = call.find_failure(prepared) if call.expected is not None else call.check_index_error(prepared)
            if failure:
                return CheckOutcome(failure, elements, certain)
    return CheckOutcome(None, elements, certain)


def static_specializations(graph: Graph, seed: int) -> list[Graph]:
    """`graph` with its symbolic dimensions small, and again large enough that tiles are full, where the graph takes that."""
    if not graph.symbols:
        return [graph]
    few = graph.specialize(small_symbol_values(graph, 3 + seed % 5))
    try:
        many = graph.specialize(small_symbol_values(graph, TILE_FILLING_SIZES[seed % len(TILE_FILLING_SIZES)]))
    except BUILD_ERRORS:
        return [few]
    return [few, many] if all(numel(t) <= 16 * MAX_VALUE_ELEMENTS for n in many for t in result_types(n)) else [few]


@dataclass(frozen=True)
class CheckedCall:
    """A graph of known sizes, its inputs, and what may come of them: None where an index is out of range."""

    static_graph: Graph
    seed: int
    inputs: Sequence[Array]
    expected: Sequence[Expectation] | None

    def find_failure(self, prepared: PreparedGraph) -> Failure | None:
        """What goes wrong in one way; a wrong number is believed only after many more worlds."""
        way = prepared.configuration.name
        try:
            got = prepared.run(self.static_graph, self.inputs)
        except Exception as error:  # whatever the compiler raises is what this is here to find
            if isinstance(error, IndexError) and not any(e.checked_elements for e in self.expected or ()):
                return None
            return Failure(type(error).__name__, way, str(error))
        if not _problems(got, self.expected or ()):
            return None
        problems = _problems(got, expectations(self.static_graph, self.inputs, self.seed + 1, 64))
        return Failure("wrong", way, "; ".join(problems)) if problems else None

    def check_index_error(self, prepared: PreparedGraph) -> Failure | None:
        """An index is out of range, and every way must say so."""
        way = prepared.configuration
        try:
            if not prepared.run(self.static_graph, self.inputs) and way.interpreted:
                return None
        except IndexError:
            return None
        except Exception as error:
            return Failure(type(error).__name__, way.name, str(error))
        return Failure("no IndexError", way.name, "an index out of range goes unnoticed")


def make_checked_call(static_graph: Graph, seed: int) -> CheckedCall:
    """The call of a graph of known sizes that `seed` stands for."""
    inputs = inputs_for(static_graph, seed)
    try:
        return CheckedCall(static_graph, seed, inputs, expectations(static_graph, inputs, seed))
    except IndexError:
        return CheckedCall(static_graph, seed, inputs, None)


def _problems(got: Sequence[Array], expected: Sequence[Expectation]) -> list[str]:
    return [
        f"output {k}: {p}"
        for k, (g, e) in enumerate(zip(got, expected, strict=False))
        if (p := e.describe_mismatch(np.asarray(g)))
    ]
