"""A recurrence becomes the kernels of its body, launched again and again on slices of its operands and results.

A state goes round a ring of entries: each step reads what the step before wrote.  Where the states of all steps are wanted
anyway, their sequence is the ring and nothing is copied; the initial state waits in the entry that is written last.

    slice %y.first = %y[511]   copy %h0 -> %y.first
    repeat %t in 0..512 { slice %x.t = %x[%t]   slice %h = %y[(%t - 1) % 512]   slice %new = %y[%t]   launch @step(%x.t, %h, %w, %new) }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.errors import OpenSizeError
from compiler.ir.graph import Graph, Node
from compiler.ir.index import Dim, interval, mod, var, variables
from compiler.ir.ops.recurrence import stacked_type
from compiler.ir.tile import Copy, OpaqueCall, Repeat, Slice, Step, entry_type
from compiler.passes.nest import LowerError

if TYPE_CHECKING:
    from compiler.passes.lower import ProgramLowering


@dataclass(frozen=True)
class Ring:
    """A buffer of `size` entries that the steps write one after the other and over again, backward with `reverse`."""

    buffer: str
    size: Dim
    reverse: bool = False


class RecurrenceLowering:
    """One recurrence, called `name`, being lowered as part of `outer`."""

    def __init__(self, outer: ProgramLowering, n: Node, name: str) -> None:
        self.outer, self.n, self.name = outer, n, name
        self.body: Graph = n.attrs["body"]
        self.inner = outer.inside(self.body, name)
        self.sequences, self.states = n.attrs["sequences"], n.attrs["states"]
        self.reverse: bool = n.attrs["reverse"]
        self.steps = n.operands[0].shape[0]
        known = interval(self.steps, {})
        if known is None or known[0] < 1:
            raise OpenSizeError(f"%{name} takes {self.steps} steps, which may be none")
        self.fewest = known[0]
        self.counter = f"{name}.t"
        self.slices: list[Slice] = []

    def run(self) -> None:
        """Append the steps to those of `outer` and note where the results lie; LowerError for calls into PyTorch."""
        outer, inputs, t = self.outer, self.body.inputs, var(self.counter)
        results = [Ring(self.result(self.states + k, o), self.steps, self.reverse) for k, o in enumerate(self.made)]
        rings = [self.ring(k, results) for k in range(self.states)]
        for k, x in enumerate(inputs[: self.sequences]):
            source = Ring(outer.buffer(self.n.operands[k]), self.steps, self.reverse)
            self.inner.place[x, 0] = self.entry(source, t, f"x{k}")
        for k, ring in enumerate(rings):
            self.inner.place[inputs[self.sequences + k], 0] = self.entry(ring, t - 1, f"old{k}")
        for x, operand in list(zip(inputs, self.n.operands, strict=True))[self.sequences + self.states :]:
            self.inner.place[x, 0] = outer.buffer(operand)
        written = {ring: self.entry(ring, t, f"new{k}") for k, ring in enumerate(dict.fromkeys([*results, *rings]))}
        goals = list(zip(self.body.outputs, [written[r] for r in (*rings, *results)], strict=True))
        for node, goal in goals:
            self.inner.targets.setdefault(node, goal)
        self.enter(rings)
        outer.steps.append(Repeat(self.counter, self.steps, (*self.slices, *self.repeated(goals))))
        self.leave(rings)

    @property
    def made(self) -> tuple[Node, ...]:
        """The body's nodes whose values are kept for every step."""
        return self.body.outputs[self.states :]

    def result(self, k: int, entry: Node) -> str:
        """The buffer of result `k`, a sequence."""
        buffer = f"{self.name}.{k}" if isinstance(self.n.result, tuple) else self.name
        self.outer.buffers[buffer] = stacked_type(entry.type, self.steps)
        self.outer.place[self.n, k] = buffer
        return buffer

    def ring(self, k: int, results: list[Ring]) -> Ring:
        """Where state `k` goes round: the sequence of its values if there is one, of two at least, else two entries."""
        node = self.body.outputs[k]
        if self.fewest > 1 and node in self.made and node not in self.body.outputs[:k]:
            return results[self.made.index(node)]
        buffer = f"{self.name}.state{k}"
        self.outer.buffers[buffer] = stacked_type(node.type, 2)
        return Ring(buffer, 2)

    def entry(self, ring: Ring, step: Dim, what: str) -> str:
        """A slice of what `ring` holds at step number `step`: inside the loop where that follows its counter."""
        place = mod(ring.size - 1 - step if ring.reverse else step, ring.size, {self.counter: (0, self.steps - 1)})
        made = Slice(f"{self.name}.{what}", ring.buffer, place)
        self.outer.buffers[made.name] = entry_type(self.outer.buffers[ring.buffer])
        self.outer.slices.add(made.name)
        (self.slices if self.counter in variables(step) else self.outer.steps).append(made)
        return made.name

    def enter(self, rings: list[Ring]) -> None:
        """The states before the first step."""
        for k, (ring, operand) in enumerate(zip(rings, self.n.operands[self.sequences :], strict=False)):
            self.outer.steps.append(Copy(self.outer.buffer(operand), self.entry(ring, -1, f"first{k}")))

    def repeated(self, goals: list[tuple[Node, str]]) -> list[Step]:
        """The steps of the body, and copies of what is not computed where it should lie."""
        for n in self.body.nodes:
            self.inner.node(n)
        if any(isinstance(s, OpaqueCall) for s in self.inner.steps):
            raise LowerError(f"the body of %{self.name} calls PyTorch, which no loop can")
        copies = [Copy(source, goal) for node, goal in goals if (source := self.inner.buffer(node)) != goal]
        return [*self.inner.steps, *copies]

    def leave(self, rings: list[Ring]) -> None:
        """The states after the last step, those that somebody reads."""
        read = {u.attrs["index"] for u in self.outer.graph.users[self.n]} if isinstance(self.n.result, tuple) else {0}
        for k, ring in enumerate(rings):
            if k in read:
                self.outer.place[self.n, k] = self.entry(ring, self.steps - 1, f"last{k}")
