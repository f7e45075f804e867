"""A graph as something that can be called: one executable for the sizes of each call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from compiler.driver.specialization import Specialization, size_buckets, specialize
from compiler.driver.variant import CompiledVariant, SizeRanges, require_executable
from compiler.errors import ArgumentError, DynamicShapeError, TypeRuleError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.binding import bind_symbols
from compiler.ir.symbolic.index_expr import IndexExpr, evaluate
from compiler.options import Options
from compiler.passes.remark import Remark
from compiler.pipeline import Stages
from compiler.runtime.call_stub import RunFunction
from compiler.runtime.executable import Executable

MAX_CACHED_SIZES = 256
"""Sets of sizes whose memory plans are kept."""

DISPATCHER_TEMPLATE = """def run(inputs):
    try: cached = runs[({key})]
    except (KeyError, IndexError, AttributeError): cached = resolve(inputs)
    return cached(inputs)
"""


class ExecutedProgram(NamedTuple):
    """A program that takes part in a call: what was compiled, its code if it can run here, and its inputs."""

    variant: CompiledVariant
    executable: Executable | None
    inputs: Sequence[torch.Tensor]

    @property
    def stages(self) -> Stages:
        """The IR of every stage."""
        return self.variant.stages


@dataclass(eq=False)
class CompiledGraph:
    """A graph as native code: takes and returns flat lists of tensors.

    A static graph is compiled at once.  A graph with dynamic sizes is compiled for the inputs of the first call, and for all sizes
    in `bounds` that share a bucket with them; if that is impossible (a remark says why), for each set of sizes by itself.
    Results that alias inputs (`graph.output_aliases`) are copied there and left out of what is returned.
    """

    graph: Graph
    options: Options = field(default_factory=Options)
    bounds: SizeRanges = field(default_factory=dict)
    specializations: list[Specialization] = field(default_factory=list)
    _dynamic_failure: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.symbols = tuple(sorted(self.graph.symbols))
        self._dynamic_inputs = [
            k for k, node in enumerate(self.graph.inputs) if any(isinstance(d, IndexExpr) for d in node.shape)
        ]
        single = (n for n in self.graph.nodes if not isinstance(n.result_type, tuple))
        self._symbolic_dims = {d for n in single for d in n.shape if isinstance(d, IndexExpr)}
        self._executables: dict[tuple[int | None, ...], tuple[CompiledVariant, Executable | None]] = {}
        self._dispatch_cache: dict[tuple[tuple[int, ...], ...], RunFunction] = {}
        self.run: RunFunction = self._resolve_dispatch({}) if not self.symbols else self._make_dispatcher()

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return write_back_aliases(self.graph, inputs, self.run(inputs))

    def call_with_sizes(
        self, inputs: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], Callable[[], Mapping[str, int]]]:
        """Return the results of a call, and a function that gives the sizes of its inputs."""
        return self(inputs), lambda: self.input_sizes(inputs)

    def executed_programs(self, inputs: Sequence[torch.Tensor]) -> list[ExecutedProgram]:
        """Return the one program that serves these inputs; ArgumentError where their shapes do not fit."""
        sizes = self.input_sizes(inputs)
        for node, x in zip(self.graph.inputs, inputs, strict=True):
            if not node.type.fits(x.shape):
                raise ArgumentError(f"input {node.name} must be {node.type}, but has the shape {list(x.shape)}")
        return [ExecutedProgram(*self.executable_for(sizes), inputs)]

    @property
    def last_sizes(self) -> dict[str, int]:
        """Sizes that were served for the first time last; empty before the first call."""
        return dict(zip(self.symbols, next(reversed(self._executables), ()), strict=False))  # type: ignore[arg-type]

    @property
    def compile_seconds(self) -> dict[str, float]:
        """Seconds spent in passes and in code generation so far."""
        variants = [v for s in self.specializations for v in (s.default_variant, s.small_variant) if v]
        return {kind: sum(v.seconds[kind] for v in variants) for kind in ("passes", "code")}

    def _make_dispatcher(self) -> RunFunction:
        """Write the function that calls the executable for the shapes of its inputs; shapes seen before cost one look-up."""
        key = "".join(f"inputs[{k}].shape, " for k in self._dynamic_inputs)
        namespace: dict[str, Any] = {"runs": self._dispatch_cache, "resolve": self._resolve_shapes}
        exec(compile(DISPATCHER_TEMPLATE.format(key=key), "<tilewright dispatcher>", "exec"), namespace)
        run: RunFunction = namespace["run"]
        return run

    def _resolve_dispatch(self, sizes: Mapping[str, int]) -> RunFunction:
        """Return the function that runs the program for `sizes`; it raises TargetError where this machine cannot."""
        variant, executable = self.executable_for(sizes)
        return executable.run if executable else lambda inputs: require_executable(variant, None).run(inputs)

    def _resolve_shapes(self, inputs: Sequence[torch.Tensor]) -> RunFunction:
        """Return the function for these inputs, cached from then on; or one that says what is wrong with them."""
        executable = require_executable(*self.executable_for(self.input_sizes(inputs)))
        names = [executable.program.inputs[k] for k in self._dynamic_inputs]
        shapes = tuple(tuple(inputs[k].shape) for k in self._dynamic_inputs)
        if not executable.accepts_shapes(dict(zip(names, shapes, strict=True))):
            return executable.run
        with self._lock:
            evict_oldest(self._dispatch_cache)
            run = self._dispatch_cache[shapes] = executable.without_shape_checks(names)
        return run

    def executable_for(self, sizes: Mapping[str, int]) -> tuple[CompiledVariant, Executable | None]:
        """Return the program for these sizes; compile it where no specialization covers them."""
        key = tuple(map(sizes.get, self.symbols))
        with self._lock:
            if key not in self._executables:
                self._check_empty_dims(sizes)
                variant = self._specialization_for(sizes).select_variant(sizes)
                evict_oldest(self._executables)
                self._executables[key] = variant, variant.executable_for(sizes)
            return self._executables[key]

    def _check_empty_dims(self, sizes: Mapping[str, int]) -> None:
        """Raise ArgumentError where these sizes leave a value empty and an op does not take that: a window that does not fit."""
        if all(evaluate(d, sizes) > 0 for d in self._symbolic_dims):
            return
        try:
            self.graph.specialize(sizes)
        except TypeRuleError as error:
            given = ", ".join(f"{name} = {n}" for name, n in sorted(sizes.items()))
            raise ArgumentError(f"these sizes do not fit ({given}): {error}") from error

    def _specialization_for(self, sizes: Mapping[str, int]) -> Specialization:
        """Return the specialization that covers these sizes; ArgumentError for a size out of bounds."""
        covering = next((s for s in self.specializations if s.covers(sizes)), None)
        if covering is None:
            self._check_bounds(sizes)
            covering = self._specialize(sizes)
            self.specializations.append(covering)
        return covering

    def _specialize(self, sizes: Mapping[str, int]) -> Specialization:
        """Compile for the buckets of these sizes if possible, else for these sizes alone."""
        if sizes and not self._dynamic_failure:
            try:
                return specialize(self.graph, self.options, size_buckets(sizes, self.bounds), sizes)
            except DynamicShapeError as error:
                self._dynamic_failure = f"compiled for each set of sizes by itself: {error}"
        static = specialize(self.graph, self.options, {name: (n, n) for name, n in sizes.items()}, sizes)
        if self._dynamic_failure:
            variant, note = static.default_variant, Remark("driver", "missed", self._dynamic_failure)
            return replace(static, default_variant=replace(variant, notes=(*variant.notes, note)))
        return static

    def _check_bounds(self, sizes: Mapping[str, int]) -> None:
        """Raise ArgumentError for a size out of bounds."""
        for name, size in sizes.items():
            low, high = self.bounds.get(name, (size, size))
            if not low <= size <= high:
                raise ArgumentError(f"the size {name} must be in {low}..{high}, but is {size}")

    def input_sizes(self, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
        """Return the value of every symbolic dimension of the inputs; ArgumentError where they contradict."""
        return infer_sizes(self.graph.inputs, inputs)


def write_back_aliases(graph: Graph, inputs: Sequence[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copy results that alias inputs there, unless they were updated in place, and return the others."""
    for position, target in graph.output_aliases.items():
        if results[position] is not inputs[target]:
            inputs[target].detach().copy_(results[position])
    return [r for k, r in enumerate(results) if k not in graph.output_aliases] if graph.output_aliases else results


def infer_sizes(nodes: Sequence[Node], tensors: Sequence[torch.Tensor]) -> dict[str, int]:
    """Return the sizes for which `tensors` are values of `nodes`; ArgumentError where there are none."""
    if len(tensors) != len(nodes):
        raise ArgumentError(f"expected {len(nodes)} tensors, got {len(tensors)}")
    for node, tensor in zip(nodes, tensors, strict=True):
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(
                f"input {node.name} must be a tensor of type {node.type}, not a {type(tensor).__name__}"
            )
        if len(node.shape) != tensor.dim():
            raise ArgumentError(f"input {node.name} must have {len(node.shape)} dimensions, but has {tensor.dim()}")
    pairs = [p for n, t in zip(nodes, tensors, strict=True) for p in zip(n.shape, t.shape, strict=True)]
    try:
        return bind_symbols((d, size) for d, size in pairs if isinstance(d, IndexExpr))
    except ArgumentError as error:
        given = ", ".join(f"{n.name}: {n.type} is {list(t.shape)}" for n, t in zip(nodes, tensors, strict=True))
        raise ArgumentError(f"{error} ({given})") from None


def evict_oldest(cache: dict[Any, Any]) -> None:
    """Remove the oldest entry of a full cache."""
    if len(cache) >= MAX_CACHED_SIZES:
        del cache[next(iter(cache))]
