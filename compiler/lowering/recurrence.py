"""A recurrence becomes the kernels of its body, launched again and again on slices of its operands and results.

A state goes round a ring of entries: each step reads what the step before wrote.  Where the states of all steps are wanted
anyway, their sequence is the ring and nothing is copied; the initial state waits in the entry that is written last.

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
    """A buffer of `size` entries that the steps write one after the other and over again, backward with `reverse`."""

    buffer: str
    length: Dim
    reverse: bool = False


class RecurrenceLowering:
    """One recurrence, called `name`, being lowered as part of `outer`."""

    def __init__(self, outer: ProgramLowering, n: Node, name: str) -> None:
        self.outer, self.n, self.name = outer, n, name
        self.body: Graph = n.attrs["body"]
        self.inner = outer.nested_lowering(self.body, name)
        self.num_sequences, self.num_states = n.attrs["sequences"], n.attrs["states"]
        self.reverse: bool = n.attrs["reverse"]
        self.num_steps = n.operands[0].shape[0]
        known = interval(self.num_steps, {})
        if known is None or known[0] < 1:
            raise DynamicShapeError(f"%{name} takes {self.num_steps} steps, which may be none")
        self.min_steps = known[0]
        self.step_var = f"{name}.t"
        self.views: list[View] = []

    def run(self) -> None:
        """Append the steps to those of `outer` and note where the results lie; LowerError for calls into PyTorch."""
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
        for x, operand in list(zip(inputs, self.n.operands, strict=True))[self.num_sequences + self.num_states :]:
            self.inner.result_buffers[x, 0] = outer.buffer_of(operand)
        written = {
            ring: self.entry_view(ring, t, f"new{k}") for k, ring in enumerate(dict.fromkeys([*results, *rings]))
        }
        goals = list(zip(self.body.outputs, [written[r] for r in (*rings, *results)], strict=True))
        for node, goal in goals:
            self.inner.destinations.setdefault(node, goal)
        self.copy_initial_states(rings)
        outer.steps.append(Repeat(self.step_var, self.num_steps, (*self.views, *self.body_steps(goals))))
        self.bind_final_states(rings)

    @property
    def stacked_outputs(self) -> tuple[Node, ...]:
        """The body's nodes whose values are kept for every step."""
        return self.body.outputs[self.num_states :]

    def result_buffer(self, k: int, entry: Node) -> str:
        """The buffer of result `k`, a sequence."""
        buffer = f"{self.name}.{k}" if isinstance(self.n.result_type, tuple) else self.name
        self.outer.buffers[buffer] = stacked_type(entry.type, self.num_steps)
        self.outer.result_buffers[self.n, k] = buffer
        return buffer

    def state_ring(self, k: int, results: list[RingBuffer]) -> RingBuffer:
        """Where state `k` goes round: the sequence of its values if there is one, of two at least, else two entries."""
        node = self.body.outputs[k]
        if self.min_steps > 1 and node in self.stacked_outputs and node not in self.body.outputs[:k]:
            return results[self.stacked_outputs.index(node)]
        buffer = f"{self.name}.state{k}"
        self.outer.buffers[buffer] = stacked_type(node.type, 2)
        return RingBuffer(buffer, 2)

    def entry_view(self, ring: RingBuffer, step: Dim, suffix: str) -> str:
        """A slice of what `ring` holds at step number `step`: inside the loop where that follows its counter."""
        place = mod(
            ring.length - 1 - step if ring.reverse else step, ring.length, {self.step_var: (0, self.num_steps - 1)}
        )
        made = View(f"{self.name}.{suffix}", ring.buffer, place)
        self.outer.buffers[made.name] = view_type(self.outer.buffers[ring.buffer])
        self.outer.views.add(made.name)
        (self.views if self.step_var in variables(step) else self.outer.steps).append(made)
        return made.name

    def copy_initial_states(self, rings: list[RingBuffer]) -> None:
        """The states before the first step."""
        for k, (ring, operand) in enumerate(zip(rings, self.n.operands[self.num_sequences :], strict=False)):
            self.outer.steps.append(Copy(self.outer.buffer_of(operand), self.entry_view(ring, -1, f"first{k}")))

    def body_steps(self, goals: list[tuple[Node, str]]) -> list[Step]:
        """The steps of the body, and copies of what is not computed where it should lie."""
        for node in self.body.nodes:
            self.inner.lower_node(node)
        if any(isinstance(s, OpaqueCall) for s in self.inner.steps):
            raise LoweringError(f"the body of %{self.name} calls PyTorch, which no loop can")
        copies = [Copy(source, goal) for node, goal in goals if (source := self.inner.buffer_of(node)) != goal]
        return [*self.inner.steps, *copies]

    def bind_final_states(self, rings: list[RingBuffer]) -> None:
        """The states after the last step, those that somebody reads."""
        read = (
            {u.attrs["index"] for u in self.outer.graph.users[self.n]} if isinstance(self.n.result_type, tuple) else {0}
        )
        for k, ring in enumerate(rings):
            if k in read:
                self.outer.result_buffers[self.n, k] = self.entry_view(ring, self.num_steps - 1, f"last{k}")
