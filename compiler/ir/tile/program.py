"""Tile IR of programs: buffers, and steps that launch kernels on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any, ClassVar, TypeAlias, Union

from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.tile.kernel import Kernel, dim_hint
from compiler.ir.types import TensorType


@dataclass(frozen=True)
class Launch:
    """Call of kernel `kernel` on buffers `arguments`, in the order of its parameters."""

    kernel: str
    arguments: tuple[str, ...]
    node: str = ""


@dataclass(frozen=True)
class OpaqueCall:
    """Call into PyTorch: graph op `op` with `attrs`, from buffers `arguments` to buffers `results`."""

    op: str
    attrs: tuple[tuple[str, Any], ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    node: str = ""

    @property
    def operator(self) -> str:
        """Name of the operator: that of PyTorch if the op stands for any of them."""
        return str(dict(self.attrs).get("overload", self.op))


@dataclass(frozen=True)
class Copy:
    """Copy of a buffer, for an output that is an input, a constant or another output."""

    source: str
    target: str


@dataclass(frozen=True)
class View:
    """Definition of buffer `name` as entry `index` along the first dimension of `buffer`, in the same memory.

    With a `count` it is so many entries from `index` on, and keeps the dimension.
    """

    name: str
    buffer: str
    index: Dim
    count: int | None = None

    @property
    def stop(self) -> Dim:
        """Index of the first entry behind the view."""
        return self.index + (1 if self.count is None else self.count)


@dataclass(frozen=True)
class Repeat:
    """Sequential loop: run `steps` for every `var` in 0..count-1; the indices of views inside may depend on it."""

    var: str
    count: Dim
    steps: tuple[Step, ...]


Step: TypeAlias = Union[Launch, OpaqueCall, Copy, View, Repeat]


@dataclass(frozen=True)
class Program:
    """Compiled form of a graph: kernels, buffers, and the steps that run them in order.

    `inputs` and `outputs` name buffers in call order.  `constants` maps buffers to arrays in dense logical order, which the
    runtime packs into the layout of the buffer's type.  All other buffers are views or intermediates.  `output_aliases` maps
    outputs to the inputs into which a call writes them back; an output that is an input is updated in place.
    """

    buffers: dict[str, TensorType]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: dict[str, Any]
    kernels: dict[str, Kernel]
    steps: tuple[Step, ...]
    output_aliases: Mapping[str, str] = field(default_factory=dict)

    name: ClassVar[str] = "program"

    def launched_kernels(self) -> tuple[str, ...]:
        """Return the kernel of every launch, as often as it runs under the size hints."""
        counts = execution_counts(self.steps)
        return tuple(s.kernel for s, times in counts if isinstance(s, Launch) for _ in range(times))

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """All launches, those inside loops once."""
        return tuple(s for s in walk_steps(self.steps) if isinstance(s, Launch))

    @cached_property
    def looped_kernels(self) -> frozenset[str]:
        """Names of the kernels that are launched inside loops."""
        loops = (s.steps for s in self.steps if isinstance(s, Repeat))
        return frozenset(s.kernel for steps in loops for s in walk_steps(steps) if isinstance(s, Launch))

    @cached_property
    def external_bytes(self) -> int:
        """Bytes of inputs and constants under the size hints: what a call reads without computing it."""
        return sum(dim_hint(self.buffers[name].nbytes) for name in {*self.inputs, *self.constants})

    def external_params(self, kernel: str) -> frozenset[str]:
        """Return the parameters of a kernel for which every launch passes an input or a constant, or a view of one."""
        arguments = [step.arguments for step in self.launches if step.kernel == kernel]
        params = self.kernels[kernel].params if arguments else ()
        columns = zip(params, zip(*arguments, strict=True), strict=True)
        external = {*self.inputs, *self.constants}
        return frozenset(p.name for p, column in columns if all(self.root_buffer(a) in external for a in column))

    def reuse_bytes(self, kernel: str) -> dict[str, float]:
        """Return the most bytes that steps touch from a launch of a kernel on until another one reads each argument, by parameter.

        0 if none does; infinite for what inputs, constants and outputs are passed for, and if the launch is in a loop.
        """
        touched, external = self.touched_buffers, {*self.inputs, *self.constants, *self.outputs}
        found = dict[str, float]()
        for k, s in enumerate(self.steps):
            for launch in (t for t in walk_steps((s,)) if isinstance(t, Launch) and t.kernel == kernel):
                for p, b in zip(self.kernels[kernel].params, map(self.root_buffer, launch.arguments), strict=True):
                    later = next((j for j in range(k + 1, len(touched)) if b in touched[j]), k)
                    distance = inf if b in external or launch is not s else self.touched_bytes(k, later)
                    found[p.name] = max(found.get(p.name, 0), distance)
        return found

    def touched_bytes(self, first: int = 0, end: int | None = None) -> int:
        """Return the bytes of the buffers that the steps first..end-1 use under the size hints; `end` None for all that follow."""
        names = frozenset[str]().union(*self.touched_buffers[first:end])
        return sum(dim_hint(self.buffers[b].nbytes) for b in names)

    @cached_property
    def touched_buffers(self) -> tuple[frozenset[str], ...]:
        """The buffers that each step uses, without views."""
        used = (frozenset(b for t in walk_steps((s,)) for b in _buffers_used(t)) for s in self.steps)
        return tuple(frozenset(map(self.root_buffer, names)) for names in used)

    @cached_property
    def views(self) -> dict[str, View]:
        """All views by name."""
        return {s.name: s for s in walk_steps(self.steps) if isinstance(s, View)}

    def root_buffer(self, name: str) -> str:
        """Return the buffer at the end of the chain of views that starts with `name`; `name` itself if it is no view."""
        while name in self.views:
            name = self.views[name].buffer
        return name


def walk_steps(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield every step, and after a loop the steps inside it."""
    for step in steps:
        yield step
        if isinstance(step, Repeat):
            yield from walk_steps(step.steps)


def expand_launches(steps: Iterable[Step], rule: Callable[[Launch], Iterable[Step]]) -> tuple[Step, ...]:
    """Replace every launch by the steps `rule(launch)`, inside loops too; other steps stay."""
    new: list[Step] = []
    for step in steps:
        if isinstance(step, Repeat):
            new.append(replace(step, steps=expand_launches(step.steps, rule)))
        else:
            new += rule(step) if isinstance(step, Launch) else (step,)
    return tuple(new)


def execution_counts(steps: Iterable[Step], times: int = 1) -> Iterator[tuple[Step, int]]:
    """Yield every step that is executed, and how often it runs under the size hints."""
    for step in steps:
        if isinstance(step, Repeat):
            yield from execution_counts(step.steps, times * dim_hint(step.count))
        elif not isinstance(step, View):
            yield step, times


def non_launch_buffers(step: Step) -> set[str]:
    """Return the buffers that a step names, or an empty set for a launch."""
    return set() if isinstance(step, Launch) else set(_buffers_used(step))


def view_type(buffer_type: TensorType, count: int | None = None) -> TensorType:
    """Return the type of an entry along the first dimension of a buffer, or of `count` entries; they are contiguous."""
    return TensorType(buffer_type.dtype, (*(() if count is None else (count,)), *buffer_type.shape[1:]))


def map_kernels(program: Program, rule: Callable[[Kernel], Kernel]) -> Program:
    """Replace every kernel by `rule(kernel)`, and repack constants and scratch buffers into the layouts of its parameters."""
    kernels = {name: rule(k) for name, k in program.kernels.items()}
    buffers = dict(program.buffers)
    constants: dict[str, Any] = dict(program.constants)

    def with_packed_arguments(step: Launch) -> Iterator[Step]:
        arguments = []
        for argument, param in zip(step.arguments, kernels[step.kernel].params, strict=True):
            packed = param.type.elementwise(buffers[argument].shape)
            if packed.layout != buffers[argument].layout and argument in constants:
                source, layout = argument, packed.layout
                if layout:
                    dims = (str(d).replace("/", "o").replace("%", "i") for d in layout.physical_dims)
                    argument = f"{source}.{'_'.join(dims)}"
                buffers[argument], constants[argument] = packed, constants[source]
            elif param.role == "scratch":
                buffers[argument] = param.type
            arguments.append(argument)
        yield replace(step, arguments=tuple(arguments))

    steps = expand_launches(program.steps, with_packed_arguments)
    used = {b for s in walk_steps(steps) for b in _buffers_used(s)} | set(program.inputs) | set(program.outputs)
    buffers = {n: t for n, t in buffers.items() if n in used}
    constants = {n: c for n, c in constants.items() if n in used}
    return replace(program, buffers=buffers, constants=constants, kernels=kernels, steps=steps)


def _buffers_used(step: Step) -> tuple[str, ...]:
    if isinstance(step, Copy):
        return (step.source, step.target)
    if isinstance(step, View):
        return (step.name, step.buffer)
    if isinstance(step, OpaqueCall):
        return (*step.arguments, *step.results)
    return step.arguments if isinstance(step, Launch) else ()
