"""Lowering of recurrences: a repeat step launches the kernels of the body on views of operands and results.

Each state lives in a ring buffer: an iteration reads the entry that the previous one wrote.  If the states of all
iterations are a result, that sequence is the ring and nothing is copied.  The initial state is first copied into the
entry that is written last.

    view %y.first = %y[511]   copy %h0 -> %y.first
    repeat %t in 0..512 { view %x.t = %x[%t]   view %h = %y[(%t - 1) % 512]   view %new = %y[%t]   launch @step(%x.t, %h, %w, %new) }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.errors import DynamicShapeError, LoweringError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.ops.recurrence import stacked_type
from compiler.ir.symbolic.index_expr import Dim, interval, mod, var, variables
from compiler.ir.tile.program import Copy, OpaqueCall, Repeat, Step, View, view_type

if TYPE_CHECKING:
    from compiler.lowering.program import ProgramLowering


@dataclass(frozen=True)
class RingBuffer:
    """A buffer of `length` entries that iterations write cyclically, from the last to the first with `reverse`."""

    buffer: str
    length: Dim
    reverse: bool = False


class RecurrenceLowering:
    """Lowers one recurrence `n`, named `name`, into the program of `outer`."""

    def __init__(self, outer: ProgramLowering, n: Node, name: str) -> None:
        self.outer, self.n, self.name = outer, n, name
        self.body: Graph = n.attrs["body"]
        self.inner = outer.nested_lowering(self.body, name)
        self.num_sequences, self.num_states = n.attrs["num_scanned"], n.attrs["num_carried"]
        self.reverse: bool = n.attrs["reverse"]
        self.num_steps = n.operands[0].shape[0]
        bounds = interval(self.num_steps, {})
        if bounds is None or bounds[0] < 1:
            raise DynamicShapeError(f"%{name} has trip count {self.num_steps}, which may be 0")
        self.min_steps = bounds[0]
        self.step_var = f"{name}.t"
        self.views: list[View] = []

    def run(self) -> None:
        """Append the steps to `outer` and record the result buffers; LoweringError if the body has opaque calls."""
        outer, inputs, t = self.outer, self.body.inputs, var(self.step_var)
        results = [
            RingBuffer(self.result_buffer(self.num_states + k, o), self.num_steps, self.reverse)
            for k, o in enumerate(self.stacked_outputs)
        ]
        rings = [self.state_ring(k, results) for k in range(self.num_states)]
        for k, x in enumerate(inputs[: self.num_sequences]):
            source = RingBuffer(outer.buffer_of(self.n.operands[k]), self.num_steps, self.reverse)
            self.inner.result_buffers[x, 0] = self.entry_view(source, t, f"x{k}")
        for k, ring in enumerate(rings):
            self.inner.result_buffers[inputs[self.num_sequences + k], 0] = self.entry_view(ring, t - 1, f"old{k}")
        first_invariant = self.num_sequences + self.num_states
        for x, operand in list(zip(inputs, self.n.operands, strict=True))[first_invariant:]:
            self.inner.result_buffers[x, 0] = outer.buffer_of(operand)
        distinct = dict.fromkeys([*results, *rings])
        entries = {ring: self.entry_view(ring, t, f"new{k}") for k, ring in enumerate(distinct)}
        destinations = list(zip(self.body.outputs, [entries[r] for r in (*rings, *results)], strict=True))
        for node, buffer in destinations:
            self.inner.destinations.setdefault(node, buffer)
        self.copy_initial_states(rings)
        outer.steps.append(Repeat(self.step_var, self.num_steps, (*self.views, *self.body_steps(destinations))))
        self.bind_final_states(rings)

    @property
    def stacked_outputs(self) -> tuple[Node, ...]:
        """The outputs of the body that are stacked over all iterations."""
        return self.body.outputs[self.num_states :]

    def result_buffer(self, k: int, entry: Node) -> str:
        """Declare and return the buffer of result `k`, the stacked values of `entry`."""
        buffer = f"{self.name}.{k}" if isinstance(self.n.result_type, tuple) else self.name
        self.outer.buffers[buffer] = stacked_type(entry.type, self.num_steps)
        self.outer.result_buffers[self.n, k] = buffer
        return buffer

    def state_ring(self, k: int, results: list[RingBuffer]) -> RingBuffer:
        """Return the ring of state `k`: its stacked result of two or more entries, else a buffer of two entries."""
        node = self.body.outputs[k]
        if self.min_steps > 1 and node in self.stacked_outputs and node not in self.body.outputs[:k]:
            return results[self.stacked_outputs.index(node)]
        buffer = f"{self.name}.state{k}"
        self.outer.buffers[buffer] = stacked_type(node.type, 2)
        return RingBuffer(buffer, 2)

    def entry_view(self, ring: RingBuffer, step: Dim, suffix: str) -> str:
        """Add a view of the entry of `ring` at iteration `step`, in the loop if `step` varies; return its name."""
        entry = ring.length - 1 - step if ring.reverse else step
        entry = mod(entry, ring.length, {self.step_var: (0, self.num_steps - 1)})
        view = View(f"{self.name}.{suffix}", ring.buffer, entry)
        self.outer.buffers[view.name] = view_type(self.outer.buffers[ring.buffer])
        self.outer.views.add(view.name)
        (self.views if self.step_var in variables(step) else self.outer.steps).append(view)
        return view.name

    def copy_initial_states(self, rings: list[RingBuffer]) -> None:
        """Copy the initial states into the entries that the first iteration reads."""
        for k, (ring, operand) in enumerate(zip(rings, self.n.operands[self.num_sequences :], strict=False)):
            self.outer.steps.append(Copy(self.outer.buffer_of(operand), self.entry_view(ring, -1, f"first{k}")))

    def body_steps(self, destinations: list[tuple[Node, str]]) -> list[Step]:
        """Return the steps of the body, and copies of the outputs that are not computed in their destinations."""
        for node in self.body.nodes:
            self.inner.lower_node(node)
        if any(isinstance(s, OpaqueCall) for s in self.inner.steps):
            raise LoweringError(f"the body of %{self.name} contains an opaque call, which a repeat step cannot run")
        copies = [Copy(source, to) for node, to in destinations if (source := self.inner.buffer_of(node)) != to]
        return [*self.inner.steps, *copies]

    def bind_final_states(self, rings: list[RingBuffer]) -> None:
        """Add views of the states after the last iteration, for those that are used."""
        used = {0}
        if isinstance(self.n.result_type, tuple):
            used = {u.attrs["index"] for u in self.outer.graph.users[self.n]}
        for k, ring in enumerate(rings):
            if k in used:
                self.outer.result_buffers[self.n, k] = self.entry_view(ring, self.num_steps - 1, f"last{k}")
