"""The rules of a program: its kernels are valid, its steps fit its buffers, and nothing is read before it is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import TypeAlias

import numpy as np

from compiler.errors import VerifyError
from compiler.ir.symbolic.binding import evaluate_broadcast
from compiler.ir.symbolic.index_atoms import DynamicSize
from compiler.ir.symbolic.index_expr import Dim, dynamic_sizes, evaluate, interval, variables
from compiler.ir.tile.program import Copy, Launch, OpaqueCall, Program, Repeat, Step, View, view_type, walk_steps
from compiler.ir.verify.kernel import verify_kernel

CounterBounds: TypeAlias = Mapping[str, tuple[Dim, Dim]]
"""Inclusive lowest and highest value of the counters of repeated steps."""


def verify_program(program: Program) -> None:
    """VerifyError listing what is wrong; kernels are verified first."""
    for kernel in program.kernels.values():
        verify_kernel(kernel)
    written = {*program.inputs, *program.constants}
    problems = [*_check_buffers(program), *_check_views(program), *_check_steps(program, program.steps, written, {})]
    problems += [f"output %{name} is never written" for name in program.outputs if name not in written]
    if problems:
        raise VerifyError("the program is not valid:\n  " + "\n  ".join(problems))


def _check_buffers(program: Program) -> Iterator[str]:
    """Inputs, outputs and constants are buffers whose sizes are known or declared; a constant's array fills its buffer."""
    for name in (*program.inputs, *program.outputs, *program.constants):
        if name not in program.buffers:
            yield f"%{name} is no buffer of the program"
        if name in program.views:
            yield f"%{name} is a slice; inputs, outputs and constants are whole buffers"
    for name, type_ in program.buffers.items():
        if any(map(variables, type_.shape)):
            yield f"%{name}: {type_} has dimensions that are no declared sizes"
    for name, held in program.constants.items():
        known, array = program.buffers.get(name), getattr(held, "array", held)
        if known is not None and array.size != known.numel:
            yield f"constant %{name} has {array.size} elements for {known}"


def _check_views(program: Program) -> Iterator[str]:
    """A slice is made once, of a buffer that is stored entry after entry."""
    made = [s.name for s in walk_steps(program.steps) if isinstance(s, View)]
    for name, s in program.views.items():
        if made.count(name) > 1:
            yield f"view %{name} is made twice"
        whole = program.buffers.get(s.buffer)
        if whole is None or name not in program.buffers:
            yield f"view %{name} of %{s.buffer}: both must be buffers of the program"
        elif not whole.rank or whole.layout is not None or program.buffers[name] != view_type(whole):
            yield f"view %{name}: {program.buffers[name]} is no entry of %{s.buffer}: {whole}"


def _check_steps(program: Program, steps: Iterable[Step], written: set[str], counters: CounterBounds) -> Iterator[str]:
    """Every step's buffers exist, fit and hold something when they are read; `written` grows by what the steps write."""
    visible = dict[str, View]()
    for number, step in enumerate(steps):
        where = f"step {number}" + (f" repeated over %{list(counters)[-1]}" if counters else "")
        if isinstance(step, View):
            yield from (f"{where}: {problem}" for problem in _check_view_index(program, step, counters))
            visible[step.name] = step
            continue
        if isinstance(step, Repeat):
            least = interval(step.count, {})
            yield from (f"{where}: repeats nothing" for _ in range(least is None or least[0] <= 0))
            yield from _check_steps(program, step.steps, written, {**counters, step.var: (0, step.count - 1)})
            continue
        reads, writes, problems = _step_accesses(program, step)
        yield from (f"{where}: {problem}" for problem in problems)
        yield from (f"{where}: {problem}" for problem in _check_aliasing(program, step, writes, counters))
        if counters and isinstance(step, OpaqueCall):
            yield f"{where}: calls PyTorch, which only a program's own steps can"
        for name in (*reads, *writes):
            if name not in program.buffers:
                yield f"{where}: %{name} is no buffer of the program"
        whole = program.root_buffer
        yield from (f"{where}: %{name} is read before it is written" for name in reads if whole(name) not in written)
        yield from (
            f"{where}: %{name} is a constant and is written" for name in writes if whole(name) in program.constants
        )
        written |= {whole(name) for name in writes}


def _check_view_index(program: Program, s: View, counters: CounterBounds) -> Iterator[str]:
    """The index of a slice follows counters in scope and stays inside the buffer."""
    if unknown := variables(s.index) - set(counters):
        yield f"view %{s.name} follows %{', %'.join(sorted(unknown))}, which counts nothing here"
        return
    limits, whole = interval(s.index, counters), program.buffers.get(s.buffer)
    extent = whole.shape[0] if whole is not None and whole.rank else None
    if isinstance(extent, int) and (limits is None or limits[0] < 0 or limits[1] >= extent):
        yield f"view %{s.name}: {s.index} is not in 0..{extent}"


def _check_aliasing(program: Program, step: Step, writes: list[str], counters: CounterBounds) -> Iterator[str]:
    """No two arguments are the same memory where one of them is written, unless a buffer's name says so."""
    named = (
        set(step.arguments)
        if isinstance(step, Launch)
        else {step.source, step.target}
        if isinstance(step, Copy)
        else set()
    )
    for a, b in combinations(sorted(named & set(program.buffers)), 2):
        if (
            (a in writes or b in writes)
            and program.root_buffer(a) == program.root_buffer(b)
            and not _are_disjoint_views(program, a, b, counters)
        ):
            yield f"%{a} and %{b} may be the same memory, and one of them is written"


def _are_disjoint_views(program: Program, a: str, b: str, counters: CounterBounds) -> bool:
    """Whether two names are different entries of one buffer at every count."""
    one, other = program.views.get(a), program.views.get(b)
    if one is None or other is None or one.buffer != other.buffer:
        return False
    used = [v for v in sorted(variables(one.index) | variables(other.index)) if v in counters]
    ends = [counters[v][1] for v in used]
    dynamic = frozenset[DynamicSize]().union(*map(dynamic_sizes, (one.index, other.index, *ends)))
    for values in ({s.name: s.low for s in dynamic}, {s.name: s.hint for s in dynamic}):  # the fewest steps, and many
        grids = np.meshgrid(*(np.arange(evaluate(n, values) + 1) for n in ends), indexing="ij", sparse=True)
        known = {**values, **dict(zip(used, grids, strict=True))}
        if np.any(evaluate_broadcast(one.index, known) == evaluate_broadcast(other.index, known)):
            return False
    return True


def _step_accesses(program: Program, step: Launch | OpaqueCall | Copy) -> tuple[list[str], list[str], list[str]]:
    """Buffers read and written by a step, and what is wrong with their types."""
    if isinstance(step, OpaqueCall):
        return list(step.arguments), list(step.results), []
    if isinstance(step, Copy):
        source, target = program.buffers.get(step.source), program.buffers.get(step.target)
        fits = source is None or target is None or source == target
        return [step.source], [step.target], [] if fits else [f"copies {source} to {target}"]
    return _launch_accesses(program, step)


def _launch_accesses(program: Program, step: Launch) -> tuple[list[str], list[str], list[str]]:
    kernel = program.kernels.get(step.kernel)
    if kernel is None:
        return [], [], [f"there is no kernel @{step.kernel}"]
    if len(step.arguments) != len(kernel.params):
        return [], [], [f"@{kernel.name} takes {len(kernel.params)} buffers, not {len(step.arguments)}"]
    pairs = list(zip(kernel.params, step.arguments, strict=True))
    reads = [a for p, a in pairs if p.role not in ("out", "scratch")]
    writes = [a for p, a in pairs if p.is_written]
    problems = [
        f"@{kernel.name} takes %{p.name}: {p.type}, but %{a} is {program.buffers[a]}"
        for p, a in pairs
        if a in program.buffers and not p.type.is_subview_of(program.buffers[a])
    ]
    twice = [
        a
        for k, (p, a) in enumerate(pairs)
        if p.is_written
        and any(a == b and not p.type.is_disjoint_from(q.type) for j, (q, b) in enumerate(pairs) if j != k)
    ]
    problems += [f"@{kernel.name} writes %{a}, which it is also given as another argument" for a in twice]
    return reads, writes, problems
