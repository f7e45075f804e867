"""Choose how intermediate tensors lie in memory, over a whole program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from compiler.ir.atoms import FEW
from compiler.ir.index import var
from compiler.ir.scalar import Load as LoadExpr
from compiler.ir.tile import (
    Block,
    For,
    Kernel,
    Launch,
    Param,
    Program,
    Range,
    Step,
    Store,
    expand_steps,
    known,
    named_otherwise,
    walk_steps,
)
from compiler.ir.types import Digit, TensorType
from compiler.ir.types import Layout as Order
from compiler.passes.access import Accesses
from compiler.passes.base import Context, ProgramPass, register
from compiler.passes.expectation import expecting
from compiler.passes.lanes import best_set, lanes_for, score_loops
from compiler.passes.rename import unused
from compiler.perf.machine import Machine

Choice: TypeAlias = dict[str, int]
"""The dimension stored innermost, for the buffers that are not row-major."""


@register
@dataclass(frozen=True)
class Layout(ProgramPass):
    """@conv(in %x: f32[1, 64, 58, 58], ...)  ->  @conv(in %x: f32[1, 64, 58, 58]{0, 2, 3, 1}, ...)

    Each kernel would like some loop to have lanes if memory were contiguous along it; the dimension of its result that this
    loop follows is a candidate for the innermost place.  Buffers take their candidates or stay row-major, whichever saves the
    kernels around them more memory operations; starting from all candidates and from none, one buffer is changed at a time
    until that helps no more.  Only types change: kernels index logical elements.  Inputs and what PyTorch is called with stay
    as they are; an output may be computed in another order and turned by a kernel of its own.  No dimension of open length is
    put innermost: vectors along it would begin anywhere, and loops around it could not be joined.
    """

    name = "layout"
    exact = True
    sweeps: int = 4

    def run(self, ir: Program, context: Context) -> Program:
        search = Search(self, ir, context)
        choice = search.best()
        if (small := expecting(ir, FEW)) is not ir and Search(self, small, context).best() != choice:
            context.otherwise_if_small = True
            context.note(self, "of small sizes, other dimensions are innermost")
        for buffer, dim in sorted(choice.items()):
            context.applied(self, f"%{buffer} is stored with dimension {dim} innermost", buffer)
        return search.rebuild(choice) if choice else ir


class Search:
    """One run of the pass."""

    def __init__(self, options: Layout, program: Program, context: Context) -> None:
        self.options, self.program, self.context = options, program, context
        self.machine: Machine = context.machine or Machine()
        self.launches = list(program.launches)
        self.known: dict[tuple[str, tuple[TensorType, ...]], int] = {}
        self.tables = {name: Accesses(program.kernels[name]) for name in {s.kernel for s in self.launches}}

    def best(self) -> Choice:
        """The choice that saves most."""
        candidates = self.candidates()
        if not candidates:
            return Choice()
        settled = [self.settle(start, candidates) for start in ({b: d[0] for b, d in candidates.items()}, Choice())]
        return max(settled, key=lambda c: (self.saved(c, self.launches), -len(c)))

    def candidates(self) -> dict[str, list[int]]:
        """For each buffer that may change, the dimensions that some kernel would like innermost in one of its rank."""
        fixed = {*self.program.inputs, *self.program.constants, *(set(self.program.outputs) - self.turnable())}
        fixed |= self.called()
        wishes = {name: dict(self.wishes(table)) for name, table in self.tables.items()}
        found: dict[str, list[int]] = {}
        for launch in self.launches:
            for p, buffer in zip(self.program.kernels[launch.kernel].params, launch.arguments, strict=True):
                dim = wishes[launch.kernel].get(p.name)
                if p.role in ("out", "work") and dim is not None and buffer not in fixed:
                    dims = found.setdefault(buffer, [])
                    dims += [dim] if dim not in dims else []
        wished: dict[int, set[int]] = {}
        for buffer, dims in found.items():
            wished.setdefault(self.program.buffers[buffer].rank, set()).update(dims)
        others = {
            b: [d for d in sorted(wished[t.rank] - {t.rank - 1}) if isinstance(t.shape[d], int)]
            for b in found
            if (t := self.program.buffers[b])
        }
        return {b: dims for b, dims in others.items() if dims}

    def turnable(self) -> set[str]:
        """Outputs that one launch writes whole and nothing else touches."""
        pairs = [
            (buffer, p)
            for s in self.launches
            for p, buffer in zip(self.program.kernels[s.kernel].params, s.arguments, strict=True)
        ]
        found = set()
        for name in set(self.program.outputs) - self.called():
            uses = [p for buffer, p in pairs if buffer == name]
            if len(uses) == 1 and uses[0].role == "out" and uses[0].type == self.program.buffers[name]:
                found.add(name)
        return found

    def called(self) -> set[str]:
        """Buffers that PyTorch or copies touch, and those that are stored entry after entry."""
        return {b for s in walk_steps(self.program.steps) for b in named_otherwise(s)}

    def wishes(self, table: Accesses) -> Iterator[tuple[str, int]]:
        """Results of a kernel, and the dimension along which lanes would save most if memory were contiguous there."""
        kernel = table.kernel
        packed = [p.name for p in kernel.params if p.role != "const"]
        scores = score_loops(table, lanes_for(kernel, self.machine), self.machine, packed)
        chosen = best_set(kernel.body, scores)[1]
        for a in table.all:
            if a.is_store and a.buffer in packed:
                dims = [d for d, i in enumerate(a.index) if str(i) in chosen]
                if len(dims) == 1:
                    yield a.buffer, dims[0]

    def settle(self, choice: Choice, candidates: Mapping[str, list[int]]) -> Choice:
        """`choice` after changing one buffer at a time while that saves more."""
        choice = dict(choice)
        for _ in range(self.options.sweeps):
            changed = False
            for buffer, dims in candidates.items():
                around = [s for s in self.launches if buffer in s.arguments]
                ways = [_with(choice, buffer, d) for d in (choice.get(buffer), None, *dims)]
                best = max(ways, key=lambda c: self.saved(c, around))
                changed |= best != choice
                choice = best
            if not changed:
                break
        return choice

    def saved(self, choice: Choice, launches: list[Launch]) -> int:
        """Operations that lanes save in these launches, less those of turning outputs."""
        turned = {a for s in launches for a in s.arguments if a in choice and a in self.program.outputs}
        turning = sum(TURN * known(self.program.buffers[b].numel) for b in turned)
        return sum(self.saved_by(s.kernel, self.types(s, choice)) for s in launches) - turning

    def saved_by(self, name: str, types: tuple[TensorType, ...]) -> int:
        key = (name, types)
        if key not in self.known:
            kernel, table = self.program.kernels[name], self.tables[name].retyped(types)
            scores = score_loops(table, lanes_for(kernel, self.machine), self.machine)
            self.known[key] = best_set(kernel.body, scores)[0]
        return self.known[key]

    def types(self, launch: Launch, choice: Choice) -> tuple[TensorType, ...]:
        """What a launch's parameters are under a choice."""
        params = self.program.kernels[launch.kernel].params
        pairs = zip(params, launch.arguments, strict=True)
        return tuple(with_innermost(p.type, choice[a]) if a in choice else p.type for p, a in pairs)

    def rebuild(self, choice: Choice) -> Program:
        """The program with its types changed; launches of one kernel that now differ call kernels of their own."""
        kernels: dict[str, Kernel] = {}
        names: dict[tuple[str, tuple[TensorType, ...]], str] = {}
        turned = {n: f"{n}.turned" for n in choice if n in self.program.outputs}

        def rule(step: Step) -> Iterator[Step]:
            if not isinstance(step, Launch):
                yield step
                return
            key = (step.kernel, self.types(step, choice))
            if key not in names:
                names[key] = unused(step.kernel, kernels)
                kernels[names[key]] = replace(_retyped(self.program.kernels[step.kernel], key[1]), name=names[key])
            yield replace(step, kernel=names[key], arguments=tuple(turned.get(a, a) for a in step.arguments))
            for a in filter(turned.get, step.arguments):
                kernel = turning(self.program.buffers[a], choice[a], unused("turn", kernels))
                kernels[kernel.name] = kernel
                yield Launch(kernel.name, (turned[a], a), a)

        steps, old = expand_steps(self.program.steps, rule), self.program.buffers
        new = {turned.get(n, n): with_innermost(old[n], dim) for n, dim in choice.items()}
        return replace(self.program, buffers={**old, **new}, kernels=kernels, steps=steps)


TURN = 2
"""Operations for each element of an output that is turned."""


def turning(type: TensorType, dim: int, name: str) -> Kernel:
    """The kernel that copies a tensor with `dim` innermost into row-major order."""
    index = tuple(var(f"i{d}") if n != 1 else 0 for d, n in enumerate(type.shape))
    body: Block = (Store("out0", index, LoadExpr(type.dtype, "x0", index)),)
    for d in reversed([d for d in range(type.rank) if type.shape[d] != 1]):
        body = (For(Range(f"i{d}", 0, type.shape[d]), body, parallel=True),)
    return Kernel(name, (Param("x0", with_innermost(type, dim)), Param("out0", type, "out")), body)


@lru_cache(maxsize=4096)
def with_innermost(type: TensorType, dim: int) -> TensorType:
    """The type with dimension `dim` stored innermost and the others in order around it; margins stay."""
    digits = {g.dim: g for g in type.layout.digits} if type.layout else {d: Digit(d) for d in range(type.rank)}
    order = [*(d for d in sorted(digits) if d != dim), dim]
    return replace(type, layout=Order(tuple(digits[d] for d in order)))


def _retyped(kernel: Kernel, types: tuple[TensorType, ...]) -> Kernel:
    return replace(kernel, params=tuple(replace(p, type=t) for p, t in zip(kernel.params, types, strict=True)))


def _with(choice: Choice, buffer: str, dim: int | None) -> Choice:
    rest = {b: d for b, d in choice.items() if b != buffer}
    return rest if dim is None else {**rest, buffer: dim}
