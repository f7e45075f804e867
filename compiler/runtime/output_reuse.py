"""Intermediates in the memory of outputs: a kernel that may work in place overwrites its input in the output that a call returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compiler.ir.tile.kernel import Store, walk
from compiler.ir.tile.program import Launch, Program
from compiler.runtime.memory import InPlacePairs, accessed_buffers, in_place_candidates


def reuse_outputs(program: Program, pairs: InPlacePairs) -> Program:
    """Return `program` with intermediates renamed to the outputs that may be stored over them.

    launch @exp(%x, %t)  launch @div(%t, %s, %y)  ->  launch @exp(%x, %y)  launch @div(%y, %s, %y)

    The caches then hold one buffer instead of two, and the workspace shrinks.
    """
    while (found := next(reusable_outputs(program, pairs), None)) is not None:
        program = with_renamed_buffer(program, *found)
    return program


def reusable_outputs(program: Program, pairs: InPlacePairs) -> Iterator[tuple[str, str]]:
    """Yield (intermediate, output) where the output is first written by the last step that reads the intermediate."""
    accesses = [{b for names in accessed_buffers(program, s) for b in names} for s in program.steps]
    launched = {a for s in program.steps if isinstance(s, Launch) for a in s.arguments}
    others = {b for s, names in zip(program.steps, accesses, strict=True) if not isinstance(s, Launch) for b in names}
    viewed = {program.root_buffer(v) for v in program.views}
    kept = {*program.inputs, *program.outputs, *program.constants, *viewed, *others}
    fixed = {*program.inputs, *program.output_aliases, *viewed, *others}
    for k, source, target in in_place_candidates(program, pairs):
        if target not in program.outputs or target in fixed or source in kept or source not in launched:
            continue
        old, new = program.buffers[source], program.buffers[target]
        is_read_later = any(source in names for names in accesses[k + 1 :])
        is_used_before = any(target in names for names in accesses[:k])
        same_memory = (old.dtype, old.nbytes) == (new.dtype, new.nbytes)
        if same_memory and not is_read_later and not is_used_before and not streams(program, k, target):
            yield source, target


def streams(program: Program, k: int, target: str) -> bool:
    """Return True if the kernel of step `k` stores some elements of `target` past the caches."""
    step = program.steps[k]
    assert isinstance(step, Launch)
    kernel = program.kernels[step.kernel]
    stored = {p.name for p, a in zip(kernel.params, step.arguments, strict=True) if a == target}
    return any(isinstance(s, Store) and s.buffer in stored and s.nontemporal is not None for s in walk(kernel.body))


def with_renamed_buffer(program: Program, old: str, new: str) -> Program:
    """Return `program` with launches that use buffer `new` in place of `old`."""
    steps = tuple(
        replace(s, arguments=tuple(new if a == old else a for a in s.arguments)) if isinstance(s, Launch) else s
        for s in program.steps
    )
    return replace(program, buffers={n: t for n, t in program.buffers.items() if n != old}, steps=steps)
