"""The bridge: a graph whose nodes are fused groups becomes a program of kernels over buffers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import replace

from compiler.analysis.placement import as_concat, copy_and_fill_kernel, find_placements, placed_type
from compiler.analysis.structural_key import structural_key
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph, unique_names
from compiler.ir.graph.node import CONSTANT, INPUT, Node
from compiler.ir.graph.structure import Fused, Recurrence, TupleGet
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Copy, Launch, OpaqueCall, Program, Step
from compiler.ir.types import TensorType
from compiler.lowering.kernel import lower_kernel
from compiler.lowering.recurrence import RecurrenceLowering


def lower(graph: Graph) -> Program:
    """Kernels as scalar loops, one per distinct fused body, and the steps that call them in order."""
    return ProgramLowering(graph).run()


class ProgramLowering:
    """One lowering in progress."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
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
        """The lowering of a loop's body into the same program, with steps of its own."""
        inner = copy(self)
        inner.graph, inner.placements = body, find_placements(body)
        inner.names = {n: f"{name}.{own}" for n, own in unique_names(body.nodes).items()}
        inner.result_buffers, inner.destinations, inner.steps = {}, {}, []
        return inner

    def run(self) -> Program:
        for n in self.graph.nodes:
            self.lower_node(n)
        outputs = []
        for k, o in enumerate(self.graph.outputs):
            source = self.buffer_of(o)
            made_here = source not in self.constants and not any(source == self.names[i] for i in self.graph.inputs)
            made_here &= source not in self.views
            if made_here and source not in outputs:
                outputs.append(source)
                continue
            target = f"result{k}"
            self.buffers[target] = self.buffers[source]
            self.steps.append(Copy(source, target))
            outputs.append(target)
        inputs = tuple(self.names[n] for n in self.graph.inputs)
        return Program(self.buffers, inputs, tuple(outputs), dict(self.constants), self.kernels, tuple(self.steps))

    def standalone_buffer(self, n: Node) -> str:
        """The buffer that holds a value and nothing else, for PyTorch to read: a slice is copied."""
        name = self.buffer_of(n)
        if name not in self.views:
            return name
        own = f"{name}.own"
        self.buffers[own] = self.buffers[name]
        self.steps.append(Copy(name, own))
        return own

    def buffer_of(self, n: Node) -> str:
        """The buffer that holds a value; an item is its producer's buffer of that number."""
        if isinstance(n.structure, TupleGet):
            return self.result_buffers[n.operands[0], n.attrs["index"]]
        return self.result_buffers[n, 0]

    def lower_node(self, n: Node) -> None:
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
        """Buffers for the results of a node."""
        types = n.result_type if isinstance(n.result_type, tuple) else (n.result_type,)
        made = []
        for k, t in enumerate(types):
            buffer = name if not isinstance(n.result_type, tuple) else f"{name}.{k}"
            buffer = self.destinations.get(self.result_node(n, k), buffer)
            place = self.placements.get(self.result_node(n, k))
            if place is not None:
                buffer, t = self.destinations.get(place.host, self.names[place.host]), place.host.type
            self.buffers[buffer], self.result_buffers[n, k] = TensorType(t.dtype, t.shape), buffer
            made.append(buffer)
        return tuple(made)

    def result_node(self, n: Node, k: int) -> Node:
        """The node that stands for result `k` of `n`."""
        if not isinstance(n.result_type, tuple):
            return n
        return next((u for u in self.graph.users[n] if isinstance(u.structure, TupleGet) and u.attrs["index"] == k), n)

    def stored_type(self, n: Node) -> TensorType:
        """The type of a value as it is stored: on its own, or inside another."""
        place = self.placements.get(n)
        return n.type if place is None else placed_type(n.type, place)

    def lower_concat(self, n: Node, inner: Node, name: str) -> None:
        """What is left of `inner`, which puts the operands of `n` side by side, once they are computed in place."""
        self.allocate_results(n, name)
        body: Graph = n.attrs["body"]
        left = [k for k, o in enumerate(n.operands) if o not in self.placements or self.placements[o].concat is not n]
        kernel = copy_and_fill_kernel(inner, [body.inputs[k] for k in left], f"{inner.op.name}_{len(self.kernels)}")
        if kernel is not None:
            read = [n.operands[k] for k in left]
            self.add_launch(n, name, lambda: kernel, read, ("put", structural_key(body), tuple(left)))

    def lower_fused(self, n: Node, name: str) -> None:
        self.allocate_results(n, name)
        body: Graph = n.attrs["body"]
        name_ = f"{body.name}_{len(self.kernels)}"
        self.add_launch(n, name, lambda: lower_kernel(body, name_), n.operands, structural_key(body))

    def add_launch(
        self, n: Node, name: str, build_kernel: Callable[[], Kernel], operands: Sequence[Node], key: Hashable
    ) -> None:
        """Call the kernel known by `key` for operands and results like these; `make` it where there is none yet."""
        count = len(n.result_type) if isinstance(n.result_type, tuple) else 1
        values = [*operands, *(self.result_node(n, k) for k in range(count))]
        types = [self.stored_type(v) if not isinstance(v.result_type, tuple) else None for v in values]
        constants = tuple(self.buffer_of(o) in self.constants for o in operands)
        full = (key, constants, tuple(map(str, types)))
        if full not in self.kernel_names:
            kernel = build_kernel()
            params = tuple(
                replace(p, type=t or p.type, role="const" if k < len(constants) and constants[k] else p.role)
                for k, (p, t) in enumerate(zip(kernel.params, types, strict=True))
            )
            self.kernels[kernel.name] = replace(kernel, params=params)
            self.kernel_names[full] = kernel.name
        arguments = (*(self.buffer_of(o) for o in operands), *(self.result_buffers[n, k] for k in range(count)))
        self.steps.append(Launch(self.kernel_names[full], arguments, name))
