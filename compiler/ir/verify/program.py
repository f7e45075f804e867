"""Verifier of programs: valid kernels, steps that match their buffers, no read before the first write."""

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
"""Inclusive bounds of the loop variables of the enclosing repeats."""


def verify_program(program: Program) -> None:
    """Raise VerifyError with all problems in `program`; its kernels are verified first."""
    for kernel in program.kernels.values():
        verify_kernel(kernel)
    written = {*program.inputs, *program.constants}
    problems = [*_check_buffers(program), *_check_views(program), *_check_steps(program, program.steps, written, {})]
    problems += [f"output %{name} is never written" for name in program.outputs if name not in written]
    if problems:
        raise VerifyError("the program is not valid:\n  " + "\n  ".join(problems))


def _check_buffers(program: Program) -> Iterator[str]:
    """Check that inputs, outputs and constants are buffers with static or declared sizes that fit their arrays."""
    for name in (*program.inputs, *program.outputs, *program.constants):
        if name not in program.buffers:
            yield f"%{name} is not a buffer of the program"
        if name in program.views:
            yield f"%{name} is a view; inputs, outputs and constants must be root buffers"
    for name, target in program.output_aliases.items():
        if target not in program.inputs or program.buffers.get(name) != program.buffers.get(target):
            yield f"output %{name} is written back into %{target}, which is no input of its type"
    for name, type_ in program.buffers.items():
        if any(map(variables, type_.shape)):
            yield f"%{name}: {type_} has dimensions that are not declared sizes"
    for name, constant in program.constants.items():
        buffer, array = program.buffers.get(name), getattr(constant, "array", constant)
        if buffer is not None and array.size != buffer.numel:
            yield f"constant %{name} has {array.size} elements for {buffer}"


def _check_views(program: Program) -> Iterator[str]:
    """Check that a view is defined once, and that its buffer is row-major, so that an entry is contiguous."""
    names = [s.name for s in walk_steps(program.steps) if isinstance(s, View)]
    for name, s in program.views.items():
        if names.count(name) > 1:
            yield f"view %{name} is defined twice"
        source = program.buffers.get(s.buffer)
        if source is None or name not in program.buffers:
            yield f"view %{name} of %{s.buffer}: both must be buffers of the program"
        elif not source.rank or source.layout is not None or program.buffers[name] != view_type(source, s.count):
            yield f"view %{name}: {program.buffers[name]} is not the type of entries of %{s.buffer}: {source}"


def _check_steps(program: Program, steps: Iterable[Step], written: set[str], counters: CounterBounds) -> Iterator[str]:
    """Check that the buffers of each step exist, match, and are written before they are read; updates `written`."""
    for number, step in enumerate(steps):
        where = f"step {number}" + (f" repeated over %{list(counters)[-1]}" if counters else "")
        if isinstance(step, View):
            yield from (f"{where}: {problem}" for problem in _check_view_index(program, step, counters))
            continue
        if isinstance(step, Repeat):
            limits = interval(step.count, {})
            if limits is None or limits[0] <= 0:
                yield f"{where}: the trip count may be 0"
            yield from _check_steps(program, step.steps, written, {**counters, step.var: (0, step.count - 1)})
            continue
        reads, writes, problems = _step_accesses(program, step)
        yield from (f"{where}: {problem}" for problem in problems)
        yield from (f"{where}: {problem}" for problem in _check_aliasing(program, step, writes, counters))
        if counters and isinstance(step, OpaqueCall):
            yield f"{where}: opaque calls are not allowed inside repeat"
        for name in (*reads, *writes):
            if name not in program.buffers:
                yield f"{where}: %{name} is not a buffer of the program"
        root = program.root_buffer
        yield from (f"{where}: %{name} is read before it is written" for name in reads if root(name) not in written)
        yield from (f"{where}: constant %{name} is written" for name in writes if root(name) in program.constants)
        written |= {root(name) for name in writes}


def _check_view_index(program: Program, s: View, counters: CounterBounds) -> Iterator[str]:
    """Check that the index of a view uses only enclosing loop variables and is in bounds."""
    if unknown := variables(s.index) - set(counters):
        yield f"view %{s.name} uses %{', %'.join(sorted(unknown))}, which is not a loop variable here"
        return
    first, stop, source = interval(s.index, counters), interval(s.stop, counters), program.buffers.get(s.buffer)
    extent = source.shape[0] if source is not None and source.rank else None
    if isinstance(extent, int) and (first is None or stop is None or first[0] < 0 or stop[1] > extent):
        yield f"view %{s.name}: index {s.index} is not in 0..{extent}"


def _check_aliasing(program: Program, step: Step, writes: list[str], counters: CounterBounds) -> Iterator[str]:
    """Check that no two different names that may alias are arguments of a step that writes one of them."""
    arguments = step.arguments if isinstance(step, Launch) else ()
    names = {step.source, step.target} if isinstance(step, Copy) else set(arguments)
    for a, b in combinations(sorted(names & set(program.buffers)), 2):
        same_root = program.root_buffer(a) == program.root_buffer(b)
        if (a in writes or b in writes) and same_root and not _are_disjoint_views(program, a, b, counters):
            yield f"%{a} and %{b} may alias, and one of them is written"


def _are_disjoint_views(program: Program, a: str, b: str, counters: CounterBounds) -> bool:
    """Return True if two names are disjoint entries of one buffer for all values of the loop variables.

    Dynamic sizes are tried at their lower bounds (fewest iterations) and at their hints.
    """
    first, second = program.views.get(a), program.views.get(b)
    if first is None or second is None or first.buffer != second.buffer:
        return False
    used = [v for v in sorted(variables(first.index) | variables(second.index)) if v in counters]
    ends = [counters[v][1] for v in used]
    dynamic = frozenset[DynamicSize]().union(*map(dynamic_sizes, (first.index, second.index, *ends)))
    for sizes in ({s.name: s.low for s in dynamic}, {s.name: s.hint for s in dynamic}):
        grids = np.meshgrid(*(np.arange(evaluate(n, sizes) + 1) for n in ends), indexing="ij", sparse=True)
        values = {**sizes, **dict(zip(used, grids, strict=True))}
        begins, ends_ = (
            [np.asarray(evaluate_broadcast(d, values)) for d in pair]
            for pair in ((first.index, second.index), (first.stop, second.stop))
        )
        if np.any((begins[0] < ends_[1]) & (begins[1] < ends_[0])):
            return False
    return True


def _step_accesses(program: Program, step: Launch | OpaqueCall | Copy) -> tuple[list[str], list[str], list[str]]:
    """Return the buffers that a step reads and writes, and the problems with their types."""
    if isinstance(step, OpaqueCall):
        return list(step.arguments), list(step.results), []
    if isinstance(step, Copy):
        source, target = program.buffers.get(step.source), program.buffers.get(step.target)
        is_valid = source is None or target is None or source == target
        return [step.source], [step.target], [] if is_valid else [f"copies {source} to {target}"]
    return _launch_accesses(program, step)


def _launch_accesses(program: Program, step: Launch) -> tuple[list[str], list[str], list[str]]:
    kernel = program.kernels.get(step.kernel)
    if kernel is None:
        return [], [], [f"unknown kernel @{step.kernel}"]
    if len(step.arguments) != len(kernel.params):
        return [], [], [f"@{kernel.name} takes {len(kernel.params)} buffers, got {len(step.arguments)}"]
    pairs = list(zip(kernel.params, step.arguments, strict=True))
    reads = [a for p, a in pairs if p.role not in ("out", "scratch")]
    writes = [a for p, a in pairs if p.is_written]
    problems = [
        f"@{kernel.name} takes %{p.name}: {p.type}, but %{a} is {program.buffers[a]}"
        for p, a in pairs
        if a in program.buffers and not p.type.is_subview_of(program.buffers[a])
    ]
    for k, (p, a) in enumerate(pairs):
        others = [q for q, b in pairs[:k] + pairs[k + 1 :] if a == b]
        if p.is_written and not all(p.type.is_disjoint_from(q.type) for q in others):
            problems.append(f"@{kernel.name} writes %{a}, which aliases another argument")
    return reads, writes, problems
