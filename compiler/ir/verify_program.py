"""The rules of a program: its kernels are valid, its steps fit its buffers, and nothing is read before it is written."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.errors import VerifyError
from compiler.ir.tile import Copy, Launch, OpaqueCall, Program, Step
from compiler.ir.verify_tile import verify_kernel


def verify_program(program: Program) -> None:
    """VerifyError listing what is wrong; kernels are verified first."""
    for kernel in program.kernels.values():
        verify_kernel(kernel)
    problems = [*_buffers(program), *_steps(program)]
    if problems:
        raise VerifyError("the program is not valid:\n  " + "\n  ".join(problems))


def _buffers(program: Program) -> Iterator[str]:
    """Inputs, outputs and constants are buffers of static type; a constant's array fills its buffer."""
    for name in (*program.inputs, *program.outputs, *program.constants):
        if name not in program.buffers:
            yield f"%{name} is no buffer of the program"
    for name, type_ in program.buffers.items():
        if not type_.is_static:
            yield f"%{name}: {type_} is not static"
    for name, held in program.constants.items():
        known, array = program.buffers.get(name), getattr(held, "array", held)
        if known is not None and array.size != known.numel:
            yield f"constant %{name} has {array.size} elements for {known}"


def _steps(program: Program) -> Iterator[str]:
    """Every step's buffers exist, fit and hold something when they are read."""
    written = {*program.inputs, *program.constants}
    for number, step in enumerate(program.steps):
        where = f"step {number}"
        reads, writes, problems = _uses(program, step)
        yield from (f"{where}: {problem}" for problem in problems)
        for name in (*reads, *writes):
            if name not in program.buffers:
                yield f"{where}: %{name} is no buffer of the program"
        yield from (f"{where}: %{name} is read before it is written" for name in reads if name not in written)
        yield from (f"{where}: %{name} is a constant and is written" for name in writes if name in program.constants)
        written |= set(writes)
    yield from (f"output %{name} is never written" for name in program.outputs if name not in written)


def _uses(program: Program, step: Step) -> tuple[list[str], list[str], list[str]]:
    """Buffers read and written by a step, and what is wrong with their types."""
    if isinstance(step, OpaqueCall):
        return list(step.arguments), list(step.results), []
    if isinstance(step, Copy):
        source, target = program.buffers.get(step.source), program.buffers.get(step.target)
        fits = source is None or target is None or source == target
        return [step.source], [step.target], [] if fits else [f"copies {source} to {target}"]
    return _launch_uses(program, step)


def _launch_uses(program: Program, step: Launch) -> tuple[list[str], list[str], list[str]]:
    kernel = program.kernels.get(step.kernel)
    if kernel is None:
        return [], [], [f"there is no kernel @{step.kernel}"]
    if len(step.arguments) != len(kernel.params):
        return [], [], [f"@{kernel.name} takes {len(kernel.params)} buffers, not {len(step.arguments)}"]
    pairs = list(zip(kernel.params, step.arguments, strict=True))
    reads = [a for p, a in pairs if p.role != "out"]
    writes = [a for p, a in pairs if p.role in ("out", "inout")]
    problems = [
        f"@{kernel.name} takes %{p.name}: {p.type}, but %{a} is {program.buffers[a]}"
        for p, a in pairs
        if a in program.buffers and not p.type.lies_in(program.buffers[a])
    ]
    twice = [
        a
        for k, (p, a) in enumerate(pairs)
        if p.role in ("out", "inout")
        and any(a == b and not p.type.is_apart_from(q.type) for j, (q, b) in enumerate(pairs) if j != k)
    ]
    problems += [f"@{kernel.name} writes %{a}, which it is also given as another argument" for a in twice]
    return reads, writes, problems
