"""Differential check of a graph: native code in many configurations and the Tile IR interpreter, against expectations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from compiler.codegen.backend import GRAPH_PASSES, target_by_name
from compiler.codegen.llvm.backend import PROGRAM_PASSES, TILE_PASSES
from compiler.codegen.llvm.targets import CPU_TARGETS
from compiler.codegen.triton.targets import GPU_TARGETS
from compiler.driver.compiled_graph import CompiledGraph
from compiler.driver.specialization import with_dynamic_sizes
from compiler.errors import DynamicShapeError, TargetError
from compiler.ir.float_format import Array
from compiler.ir.graph.graph import Graph
from compiler.ir.interpret.random_inputs import small_symbol_values
from compiler.ir.interpret.size_sampling import interpreted_statements
from compiler.ir.interpret.tile import run_program
from compiler.ir.symbolic.index_atoms import DEFAULT_SIZE_HINT, SMALL_SIZE_HINT
from compiler.ir.tile.dynamic_sizes import bind_sizes
from compiler.ir.tile.program import Program
from compiler.ir.torch_types import as_array, as_tensor
from compiler.ir.verify.graph import verify_graph
from compiler.options import Options
from compiler.pipeline import lower_and_schedule
from compiler.testing.fuzz.inputs import inputs_for
from compiler.testing.fuzz.op_calls import BUILD_ERRORS, MAX_VALUE_ELEMENTS, numel
from compiler.testing.fuzz.rounding_oracle import Expectation, Reference

AGGRESSIVE_PASSES = {
    "two-level-scan": "two-level-scan{min-length=8, block-size=4, max-rows=64}",
    "sink-gather": "sink-gather{max-share=100.0}",
    "separate-windows": "separate-windows{max-time-ratio=1000.0}",
    "two-level-argmax": "two-level-argmax{min-seconds=0, min-block=2, lookup-ops=0}",
    "two-level-reduction": "two-level-reduction{min-seconds=0, steps-per-thread=1}",
    "integer-slices": "integer-slices{min-bytes=8, min-columns=1}",
    "narrow-constants": "narrow-constants{min-bytes=8}",
    "scale-rows": "scale-rows{min-bytes=8, max-rows=64}",
    "winograd": "winograd{max-time-ratio=1000.0}",
    "compute-at": "compute-at{min-steps-per-thread=0}",
    "online-softmax": "online-softmax{max-untiled-length=3, column-block=3, row-block=2, causal-block=2}",
    "reduce-columns": "reduce-columns{min-bytes=0}",
    "distribute-bindings": "distribute-bindings{min-bytes=0}",
    "cache-operand": "cache-operand{min-reuse=2}",
    "unroll-and-jam": "unroll-and-jam{min-lane-ops=4}",
    "parallelize": "parallelize{min-seconds=0}",
}
"""Pass options with thresholds so low that small graphs trigger the passes, by pass name."""

MAX_INTERPRETED_STATEMENTS = 20_000
"""Limit of statements that the Tile IR interpreter executes for a graph; chosen empirically."""

TILE_FILLING_SIZES = (19, 37, 69)
"""Values of symbolic sizes that fill tiles: one full tile of 14, 32 or 64 elements, and a partial one."""


@dataclass(frozen=True)
class Configuration:
    """Options to run a graph with, on `threads` threads or in the interpreter; dynamic sizes have the hint `size_hint`."""

    name: str
    options: Options
    threads: int = 1
    interpreted: bool = False
    size_hint: int = DEFAULT_SIZE_HINT

    @property
    def missing_features(self) -> str:
        """Features that this machine lacks to run the configuration, in words; empty if it can run it."""
        return target_by_name(self.options.target).missing_features()


class PreparedGraph:
    """A graph in one configuration, compiled once for inputs of any sizes."""

    def __init__(self, graph: Graph, configuration: Configuration) -> None:
        self.graph, self.configuration = graph, configuration

    @cached_property
    def _compiled(self) -> CompiledGraph:
        return CompiledGraph(self.graph, self.configuration.options)

    @cached_property
    def _program(self) -> Program:
        """Scheduled program with dynamic sizes in the first size bucket; raises DynamicShapeError if they must be static."""
        graph = with_dynamic_sizes(self.graph, self.configuration.size_hint)
        return lower_and_schedule(graph, self.configuration.options).scheduled

    def run(self, static_graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        """Run the graph and return all outputs, also those written back to inputs; `static_graph` has the sizes of `inputs`."""
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
        """Interpret the Tile IR and return the outputs; none above MAX_INTERPRETED_STATEMENTS."""
        try:
            program = self._program
        except DynamicShapeError:
            program = lower_and_schedule(static_graph, self.configuration.options).scheduled
        sizes = bind_sizes([program.buffers[n] for n in program.inputs], [x.shape for x in inputs])
        fits = interpreted_statements(program, sizes) <= MAX_INTERPRETED_STATEMENTS
        return run_program(program, inputs) if fits else []


def _permuted_storage(t: torch.Tensor) -> torch.Tensor:
    """Return the same tensor with another element order in memory."""
    return t.mT.contiguous().mT if t.ndim > 1 else t


def make_aggressive(passes: str) -> str:
    """Add the options of `AGGRESSIVE_PASSES` to a pipeline without options."""
    return ",".join(AGGRESSIVE_PASSES.get(name, name) for name in passes.split(","))


def _make_configurations() -> dict[str, Configuration]:
    plain = Options(cache="", verify=True)
    targets = [name for name, t in CPU_TARGETS.items() if not t.missing_features()]
    result = [Configuration("fused", plain), Configuration("interpreted", plain, interpreted=True)]
    result += [Configuration("interpreted small hint", plain, interpreted=True, size_hint=SMALL_SIZE_HINT)]
    result += [Configuration(f"fused {t}", plain.with_(target=t, verify=False)) for t in targets]
    result += [Configuration(f"unfused {t}", plain.with_(target=t, fuse=False, verify=False)) for t in targets]
    tile_passes = make_aggressive(f"{PROGRAM_PASSES},{TILE_PASSES}")
    aggressive = plain.with_(graph_passes=make_aggressive(GRAPH_PASSES), tile_passes=tile_passes)
    result += [Configuration("aggressive", aggressive), Configuration("aggressive threads", aggressive, 2)]
    result += [Configuration("unfused threads", plain.with_(fuse=False, tile_passes=tile_passes), 2)]
    return {c.name: c for c in result}


CONFIGURATIONS = _make_configurations()
"""All configurations for CPUs by name; "fused" is the default one, verified after every pass."""


def _make_gpu_configurations() -> dict[str, Configuration]:
    result = []
    for name in GPU_TARGETS:
        plain = Options(cache="", verify=True, target=name)
        aggressive = plain.with_(graph_passes=make_aggressive(GRAPH_PASSES))
        result += [Configuration(f"fused {name}", plain), Configuration(f"unfused {name}", plain.with_(fuse=False))]
        result += [Configuration(f"aggressive {name}", aggressive)]
    return {c.name: c for c in result}


GPU_CONFIGURATIONS = _make_gpu_configurations()
"""Configurations for GPUs by name; they run where the GPU is, or in Triton's interpreter."""

KNOWN_CONFIGURATIONS = CONFIGURATIONS | GPU_CONFIGURATIONS
"""All of them by name."""


@dataclass(frozen=True)
class Failure:
    """A failure in one configuration.

    `kind` is "mismatch", the name of an exception, "missing-IndexError", "crash", "timeout", or "rejected" if a type rule accepts
    a call that the reference rejects.
    """

    kind: str
    configuration: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.configuration}): {self.message}"

    def matches(self, other: Failure | None) -> bool:
        """Return True if `other` seems to have the same cause: same kind, configuration and signature."""
        return other is not None and all(
            getattr(self, name) == getattr(other, name) for name in ("kind", "configuration", "signature")
        )

    @property
    def signature(self) -> str:
        """The message without numbers and names."""
        if self.kind == "mismatch":
            return "nan" if "is np.float32(nan)" in self.message else ""
        return re.sub(r"[\d.]+|%[\w.]+|@[\w.]+|\[[^]]*\]", "", self.message.split("\n")[0])[:60]


@dataclass(frozen=True)
class CheckOutcome:
    """Result of checking one graph: the failure if any, and how many of its result elements were held to a finite error bound."""

    failure: Failure | None
    total_elements: int = 0
    checked_elements: int = 0


def configuration_for_seed(seed: int, target: str = "host") -> Configuration:
    """Return the configuration for `seed`: "fused" and "aggressive" in turn for even seeds, the others in turn for odd ones.

    Those of a given `target` take turns; TargetError without any.  Many graphs in one configuration each find more failures in the
    same time than half as many in two.
    """
    if target != "host":
        own = [c for c in KNOWN_CONFIGURATIONS.values() if c.options.target == target_by_name(target).name]
        if not own:
            raise TargetError(f"no configuration runs code for {target} here")
        return own[seed % len(own)]
    frequent = [CONFIGURATIONS["fused"], CONFIGURATIONS["aggressive"]]
    others = [c for c in CONFIGURATIONS.values() if c not in frequent]
    return others[seed // 2 % len(others)] if seed % 2 else frequent[seed // 2 % 2]


def check_graph(
    graph: Graph, seed: int, configurations: Sequence[Configuration] = tuple(CONFIGURATIONS.values())
) -> CheckOutcome:
    """Run `graph` on the inputs of `seed` in each of `configurations` and compare; stop at the first failure."""
    try:
        verify_graph(graph)
        calls = [make_checked_call(static_graph, seed) for static_graph in static_specializations(graph, seed)]
    except (RuntimeError, *BUILD_ERRORS) as error:
        return CheckOutcome(Failure("rejected", "interpreter", str(error)))
    failure = next(filter(None, find_failures(calls, [PreparedGraph(graph, c) for c in configurations])), None)
    return CheckOutcome(failure, sum(c.num_elements for c in calls), sum(c.checked_elements for c in calls))


def find_failures(calls: Sequence[CheckedCall], graphs: Sequence[PreparedGraph]) -> Iterator[Failure | None]:
    """Yield the result of each call of each prepared graph."""
    for prepared in graphs:
        for call in calls:
            yield call.find_failure(prepared) if call.reference else call.check_index_error(prepared)


def static_specializations(graph: Graph, seed: int) -> list[Graph]:
    """Return `graph` with small symbolic dimensions, and if it allows them, also with ones that fill tiles."""
    if not graph.symbols:
        return [graph]
    small = graph.specialize(small_symbol_values(graph, 3 + seed % 5))
    try:
        large = graph.specialize(small_symbol_values(graph, TILE_FILLING_SIZES[seed % len(TILE_FILLING_SIZES)]))
    except BUILD_ERRORS:
        return [small]
    fits = all(numel(t) <= 16 * MAX_VALUE_ELEMENTS for n in large for t in n.result_types)
    return [small, large] if fits else [small]


@dataclass(frozen=True)
class CheckedCall:
    """A static graph, its inputs and its reference, which is None if an index is out of range."""

    static_graph: Graph
    seed: int
    inputs: Sequence[Array]
    reference: Reference | None

    @cached_property
    def expected(self) -> Sequence[Expectation]:
        """Expected outputs, which are only worked out where some result is not near to the reference."""
        return self.reference.expectations(self.seed) if self.reference else ()

    @property
    def num_elements(self) -> int:
        """Number of result elements with a reference."""
        return self.reference.num_elements if self.reference else 0

    @property
    def checked_elements(self) -> int:
        """Number of result elements with a finite error bound; all of them where the least bound was enough."""
        return sum(e.checked_elements for e in self.expected) if "expected" in vars(self) else self.num_elements

    def find_failure(self, prepared: PreparedGraph) -> Failure | None:
        """Return the failure in one configuration; a mismatch must persist with the bounds of 16, 64 and 256 perturbed runs."""
        assert self.reference
        name = prepared.configuration.name
        try:
            got = [np.asarray(x) for x in prepared.run(self.static_graph, self.inputs)]
        except Exception as error:  # any error of the compiler is a failure
            if isinstance(error, IndexError) and not any(e.checked_elements for e in self.expected):
                return None
            return Failure(type(error).__name__, name, str(error))
        if self.reference.meets_every_expectation(got):
            return None
        problems = _problems(got, self.expected)
        for runs in (16, 64, 256):
            problems = problems and _problems(got, self.reference.expectations(self.seed + 1, runs))
        return Failure("mismatch", name, "; ".join(problems)) if problems else None

    def check_index_error(self, prepared: PreparedGraph) -> Failure | None:
        """Return a failure unless the configuration raises IndexError."""
        configuration = prepared.configuration
        try:
            if not prepared.run(self.static_graph, self.inputs) and configuration.interpreted:
                return None
        except IndexError:
            return None
        except Exception as error:
            return Failure(type(error).__name__, configuration.name, str(error))
        return Failure("missing-IndexError", configuration.name, "an out-of-range index was not reported")


def make_checked_call(static_graph: Graph, seed: int) -> CheckedCall:
    """Return the call of a static graph on the inputs of `seed`."""
    inputs = inputs_for(static_graph, seed)
    try:
        return CheckedCall(static_graph, seed, inputs, Reference.of(static_graph, inputs))
    except IndexError:
        return CheckedCall(static_graph, seed, inputs, None)


def _problems(got: Sequence[Array], expected: Sequence[Expectation]) -> list[str]:
    return [
        f"output {k}: {p}" for k, (g, e) in enumerate(zip(got, expected, strict=False)) if (p := e.describe_mismatch(g))
    ]
