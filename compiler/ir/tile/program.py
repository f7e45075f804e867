"""Tile IR of programs: buffers, and the steps that launch kernels on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, Union

from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.tile.kernel import Kernel, dim_hint
from compiler.ir.types import TensorType


@dataclass(frozen=True)
class Launch:
    """One call of kernel `kernel` on the program's buffers `arguments`, in the order of its parameters."""

    kernel: str
    arguments: tuple[str, ...]
    node: str = ""


@dataclass(frozen=True)
class OpaqueCall:
    """A call into PyTorch between kernels: graph op `op` with `attrs`, reading and writing program buffers."""

    op: str
    attrs: tuple[tuple[str, Any], ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    node: str = ""


@dataclass(frozen=True)
class Copy:
    """Where an output is an input, a constant or another output: one buffer's bytes copied into another."""

    source: str
    target: str


@dataclass(frozen=True)
class View:
    """From here on, buffer `name` is entry `index` along the first dimension of `buffer`: the same memory."""

    name: str
    buffer: str
    index: Dim


@dataclass(frozen=True)
class Repeat:
    """Run `steps` for every index 0..count-1 of `var`, one after the other; slices inside may follow it."""

    var: str
    count: Dim
    steps: tuple[Step, ...]


Step: TypeAlias = Union[Launch, OpaqueCall, Copy, View, Repeat]


@dataclass(frozen=True)
class Program:
    """What a whole graph becomes: kernels, buffers and the steps that run them, in order.

    `inputs` and `outputs` name buffers in call order; `constants` holds arrays keyed by buffer, in dense logical order,
    which the runtime stores in the layout of the buffer's type; every other buffer is a slice of one or an intermediate.
    """

    buffers: dict[str, TensorType]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: dict[str, Any]
    kernels: dict[str, Kernel]
    steps: tuple[Step, ...]

    name: ClassVar[str] = "program"

    def launched_kernels(self) -> tuple[str, ...]:
        """The kernel of every launch, in repeated steps as often as it runs."""
        return tuple(
            s.kernel for s, times in execution_counts(self.steps) if isinstance(s, Launch) for _ in range(times)
        )

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """Every launch, those inside repeated steps once."""
        return tuple(s for s in walk_steps(self.steps) if isinstance(s, Launch))

    @cached_property
    def looped_kernels(self) -> frozenset[str]:
        """The kernels that a loop launches again and again."""
        loops = (s.steps for s in self.steps if isinstance(s, Repeat))
        return frozenset(s.kernel for steps in loops for s in walk_steps(steps) if isinstance(s, Launch))

    @cached_property
    def views(self) -> dict[str, View]:
        """Every slice by its name."""
        return {s.name: s for s in walk_steps(self.steps) if isinstance(s, View)}

    def root_buffer(self, name: str) -> str:
        """The buffer that `name` is a slice of, or itself."""
        while name in self.views:
            name = self.views[name].buffer
        return name


def walk_steps(steps: Iterable[Step]) -> Iterator[Step]:
    """Every step, and after a repeated one those inside it."""
    for step in steps:
        yield step
        if isinstance(step, Repeat):
            yield from walk_steps(step.steps)


def expand_steps(steps: Iterable[Step], rule: Callable[[Step], Iterable[Step]]) -> tuple[Step, ...]:
    """Every step replaced by the steps `rule` gives for it; repeated ones keep their places."""
    return tuple(
        new
        for step in steps
        for new in ([replace(step, steps=expand_steps(step.steps, rule))] if isinstance(step, Repeat) else rule(step))
    )


def execution_counts(steps: Iterable[Step], times: int = 1) -> Iterator[tuple[Step, int]]:
    """Every step that does something, and how often it is likely to run."""
    for step in steps:
        if isinstance(step, Repeat):
            yield from execution_counts(step.steps, times * dim_hint(step.count))
        elif not isinstance(step, View):
            yield step, times


def non_launch_buffers(step: Step) -> set[str]:
    """The buffers that a step names, unless it is a launch."""
    if isinstance(step, Copy):
        return {step.source, step.target}
    if isinstance(step, View):
        return {step.name, step.buffer}
    return {*step.arguments, *step.results} if isinstance(step, OpaqueCall) else set()


def view_type(buffer_type: TensorType) -> TensorType:
    """The type of one entry along the first dimension of a buffer that is stored entry after entry."""
    return TensorType(buffer_type.dtype, buffer_type.shape[1:])


def map_kernels(program: Program, rule: Callable[[Kernel], Kernel]) -> Program:
    """The program with every kernel replaced, and constants and buffers for work in the layouts that the new kernels ask for."""
    kernels = {name: rule(k) for name, k in program.kernels.items()}
    buffers = dict(program.buffers)
    constants: dict[str, Any] = dict(program.constants)

    def with_packed_arguments(step: Step) -> Iterator[Step]:
        if not isinstance(step, Launch):
            yield step
            return
        arguments = []
        for argument, param in zip(step.arguments, kernels[step.kernel].params, strict=True):
            if param.type.layout != buffers[argument].layout and argument in constants:
                packed = (
                    f"{argument}.{'_'.join(str(d).replace('/', 'o').replace('%', 'i') for d in param.type.layout.physical_dims)}"
                    if param.type.layout
                    else argument
                )
                buffers[packed], constants[packed] = param.type, constants[argument]
                argument = packed
            elif param.role == "scratch":
                buffers[argument] = param.type
            arguments.append(argument)
        yield replace(step, arguments=tuple(arguments))

    steps = expand_steps(program.steps, with_packed_arguments)
    used = {b for s in walk_steps(steps) for b in _buffers_used(s)} | set(program.inputs) | set(program.outputs)
    return Program(
        {n: t for n, t in buffers.items() if n in used},
        program.inputs,
        program.outputs,
        {n: c for n, c in constants.items() if n in used},
        kernels,
        steps,
    )


def _buffers_used(step: Step) -> tuple[str, ...]:
    if isinstance(step, Copy):
        return (step.source, step.target)
    if isinstance(step, View):
        return (step.name, step.buffer)
    if isinstance(step, OpaqueCall):
        return (*step.arguments, *step.results)
    return step.arguments if isinstance(step, Launch) else ()
