"""Lowering of a graph of fused groups to a program: kernels, buffers, and the steps that launch them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from compiler.analysis.placement import as_concat, copy_and_fill_kernel, find_placements, placed_type
from compiler.analysis.structural_key import structural_key
from compiler.cost.machine import AVX512, Machine
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph, unique_names
from compiler.ir.graph.node import CONSTANT, INPUT, Node
from compiler.ir.graph.structure import Fused, Recurrence, TupleGet
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Copy, Launch, OpaqueCall, Program, Step
from compiler.ir.types import TensorType
from compiler.lowering.kernel import lower_kernel
from compiler.lowering.recurrence import RecurrenceLowering


def lower(graph: Graph, lowered_kernels: Mapping[Hashable, Kernel] | None = None, machine: Machine = AVX512) -> Program:
    """Return the program of `graph`: one kernel of scalar loops per distinct fused body, and the steps in order.

    `lowered_kernels` are kernels of bodies that have been lowered before, by structural key.
    """
    return ProgramLowering(graph, lowered_kernels or {}, machine).run()


class ProgramLowering:
    """The state of one lowering.

    `result_buffers` maps result `k` of a node to its buffer, `destinations` a node to the buffer it must be stored in.
    `views` are the buffers that are views of others.  `kernel_names` finds kernels by what they were lowered from.
    """

    def __init__(self, graph: Graph, lowered_kernels: Mapping[Hashable, Kernel], machine: Machine) -> None:
        self.graph, self.lowered_kernels, self.machine = graph, lowered_kernels, machine
        self.names = unique_names(graph.nodes)
        self.buffers: dict[str, TensorType] = {}
        self.result_buffers: dict[tuple[Node, int], str] = {}
        self.destinations: dict[Node, str] = {}
        self.views: set[str] = set()
        self.constants: dict[str, ConstantData] = {}
        self.kernels: dict[str, Kernel] = {}
        self.kernel_names: dict[Hashable, str] = {}
        self.steps: list[Step] = []
        self.placements = find_placements(graph)

    def nested_lowering(self, body: Graph, name: str) -> ProgramLowering:
        """Return a lowering of a recurrence body into the same program, with steps of its own."""
        inner = copy(self)
        inner.graph, inner.placements = body, find_placements(body)
        inner.names = {n: f"{name}.{own}" for n, own in unique_names(body.nodes).items()}
        inner.result_buffers, inner.destinations, inner.steps = {}, {}, []
        return inner

    def run(self) -> Program:
        """Lower all nodes and return the program; outputs that are inputs, constants, views or repeated are copied."""
        for n in self.graph.nodes:
            self.lower_node(n)
        inputs, outputs = tuple(self.names[n] for n in self.graph.inputs), list[str]()
        for k, o in enumerate(self.graph.outputs):
            source = self.buffer_of(o)
            if source in outputs or source in inputs or source in self.constants or source in self.views:
                target = f"result{k}"
                self.buffers[target] = self.buffers[source]
                self.steps.append(Copy(source, target))
                source = target
            outputs.append(source)
        aliases = {outputs[k]: inputs[target] for k, target in self.graph.output_aliases.items()}
        constants, steps = dict(self.constants), tuple(self.steps)
        return Program(self.buffers, inputs, tuple(outputs), constants, self.kernels, steps, aliases)

    def standalone_buffer(self, n: Node) -> str:
        """Return a buffer of the value that is not a view, for opaque calls; a view is copied."""
        name = self.buffer_of(n)
        if name not in self.views:
            return name
        copy = f"{name}.copy"
        self.buffers[copy] = self.buffers[name]
        self.steps.append(Copy(name, copy))
        return copy

    def buffer_of(self, n: Node) -> str:
        """Return the buffer of a value; a tuple item has that of its producer's result."""
        if isinstance(n.structure, TupleGet):
            return self.result_buffers[n.operands[0], n.attrs["index"]]
        return self.result_buffers[n, 0]

    def lower_node(self, n: Node) -> None:
        """Add the steps of a node, unless it already has a buffer."""
        name = self.names[n]
        if (n, 0) in self.result_buffers:
            return
        if n.op is INPUT or n.op is CONSTANT:
            self.buffers[name], self.result_buffers[n, 0] = n.type, name
            if n.op is CONSTANT:
                self.constants[name] = n.attrs["value"]
        elif isinstance(n.structure, TupleGet):
            return
        elif (inner := as_concat(n)) is not None:
            self.lower_concat(n, inner, name)
        elif isinstance(n.structure, Fused):
            self.lower_fused(n, name)
        elif isinstance(n.structure, Recurrence):
            RecurrenceLowering(self, n, name).run()
        else:
            results = self.allocate_results(n, name)
            arguments = tuple(self.standalone_buffer(o) for o in n.operands)
            self.steps.append(OpaqueCall(n.op.name, tuple(n.attrs.items()), arguments, results, name))

    def allocate_results(self, n: Node, name: str) -> tuple[str, ...]:
        """Declare and return the buffers of the results of a node: its own, its destinations, or those of its containers."""
        buffers = []
        for k, t in enumerate(n.result_types):
            result = self.result_node(n, k)
            buffer = name if not isinstance(n.result_type, tuple) else f"{name}.{k}"
            buffer = self.destinations.get(result, buffer)
            if place := self.placements.get(result):
                buffer, t = self.destinations.get(place.container, self.names[place.container]), place.container.type
            self.buffers[buffer], self.result_buffers[n, k] = TensorType(t.dtype, t.shape), buffer
            buffers.append(buffer)
        return tuple(buffers)

    def result_node(self, n: Node, k: int) -> Node:
        """Return the node of result `k` of `n`: its tuple item, or `n` for a single result or an unused item."""
        if not isinstance(n.result_type, tuple):
            return n
        return next((u for u in self.graph.users[n] if isinstance(u.structure, TupleGet) and u.attrs["index"] == k), n)

    def stored_type(self, n: Node) -> TensorType:
        """Return the type of a value as it is stored: in its own buffer, or inside that of its container."""
        place = self.placements.get(n)
        return n.type if place is None else placed_type(n.type, place)

    def lower_concat(self, n: Node, inner: Node, name: str) -> None:
        """Launch the copies and fills of concat or pad `inner`, for operands of `n` that are not stored in place."""
        self.allocate_results(n, name)
        body: Graph = n.attrs["body"]
        copied = [k for k, o in enumerate(n.operands) if o not in self.placements or self.placements[o].concat is not n]
        kernel = copy_and_fill_kernel(inner, [body.inputs[k] for k in copied], f"{inner.op.name}_{len(self.kernels)}")
        if kernel is not None:
            key = ("concat", structural_key(body), tuple(copied))
            self.add_launch(n, name, lambda: kernel, [n.operands[k] for k in copied], key)

    def lower_fused(self, n: Node, name: str) -> None:
        """Launch the kernel of a fused group."""
        self.allocate_results(n, name)
        body: Graph = n.attrs["body"]
        kernel_name = f"{body.name}_{len(self.kernels)}"
        key = structural_key(body)

        def build() -> Kernel:
            known = self.lowered_kernels.get(key)
            return replace(known, name=kernel_name) if known else lower_kernel(body, kernel_name, self.machine)

        self.add_launch(n, name, build, n.operands, key)

    def add_launch(
        self, n: Node, name: str, build_kernel: Callable[[], Kernel], operands: Sequence[Node], key: Hashable
    ) -> None:
        """Launch the kernel with this `key` and these operand and result types; build it if there is none yet."""
        count = len(n.result_types)
        values = [*operands, *(self.result_node(n, k) for k in range(count))]
        types = [self.stored_type(v) if not isinstance(v.result_type, tuple) else None for v in values]
        constants = tuple(self.buffer_of(o) in self.constants for o in operands)
        key = (key, constants, tuple(map(str, types)))
        if key not in self.kernel_names:
            kernel = build_kernel()
            params = tuple(
                replace(p, type=t or p.type, role="const" if k < len(constants) and constants[k] else p.role)
                for k, (p, t) in enumerate(zip(kernel.params, types, strict=True))
            )
            self.kernels[kernel.name] = replace(kernel, params=params)
            self.kernel_names[key] = kernel.name
        arguments = (*(self.buffer_of(o) for o in operands), *(self.result_buffers[n, k] for k in range(count)))
        self.steps.append(Launch(self.kernel_names[key], arguments, name))
