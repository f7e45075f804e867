"""Write the elements that an update changes into the buffer itself instead of into a copy of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir.scalar import Load
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Kernel, Param, Stmt, Store
from compiler.ir.tile.loop_nest import perfect_nest
from compiler.ir.tile.program import Launch, Program, expand_launches, non_launch_buffers, walk_steps
from compiler.ir.tile.substitution import unused_name
from compiler.passes.base import Context, ProgramPass, register


@register
@dataclass(frozen=True)
class UpdateInPlace(ProgramPass):
    """Update a buffer in place where nobody reads its old value again.

    output %y -> %x
    @put(in %x, in %v, out %y) { for %i { store %x[%i], %y[%i] }  store %v[0], %y[3] }    launch @put(%x, %v, %y)
    ->
    @put(in %v, inout %y) { store %v[0], %y[3] }                                          launch @put(%v, %x)

    Inputs are updated if the program writes its result back there.  Chains of updates are: the last one is replaced first.
    """

    name = "update-in-place"
    exact = True

    def run(self, ir: Program, context: Context) -> Program:
        in_place_names: dict[str, str] = {}
        for position in reversed(range(len(ir.steps))):
            step = ir.steps[position]
            update = find_update(ir, step) if isinstance(step, Launch) else None
            if update is None:
                continue
            if reason := update.conflict(ir, position):
                context.missed(self, f"%{update.target} is a copy of %{update.source}: {reason}", update.launch.node)
                continue
            message = f"%{update.target} is %{update.source}, updated in place"
            if context.may_apply(self, message, update.launch.node):
                ir = update.apply(ir, position, in_place_names)
        return ir


@dataclass(frozen=True)
class Update:
    """A launch whose kernel copies parameter `old`, buffer `source`, to `new`, buffer `target`, by statement `copy`."""

    launch: Launch
    kernel: Kernel
    old: Param
    new: Param
    copy: Stmt
    source: str
    target: str

    def conflict(self, program: Program, position: int) -> str:
        """Return why the two buffers of the step at `position` cannot be one; empty if they can."""
        earlier, later = (walk_steps(steps) for steps in (program.steps[:position], program.steps[position + 1 :]))
        if program.buffers[self.source] != program.buffers[self.target]:
            return "their types differ"
        if self.source in program.inputs and program.output_aliases.get(self.target) != self.source:
            return "it is an input that keeps its value"
        if self.source in (*program.outputs, *program.constants):
            return "it keeps its value"
        if any(isinstance(s, Launch) and self.source in s.arguments for s in later):
            return "it is read later"
        if self.launch.arguments.count(self.source) > 1:
            return "the kernel reads it under two names"
        if any(isinstance(s, Launch) and self.target in s.arguments for s in earlier):
            return "the copy is written before"
        used_elsewhere = {b for s in walk_steps(program.steps) for b in non_launch_buffers(s)}
        return "one of them is no argument of kernels alone" if used_elsewhere & {self.source, self.target} else ""

    def apply(self, program: Program, position: int, in_place_names: dict[str, str]) -> Program:
        """Return the program with one buffer for both: the input, else the output, else the old one.

        `in_place_names` maps kernels to the names of those that update in place, which launches share.
        """
        name = in_place_names.setdefault(self.kernel.name, unused_name(self.kernel.name, program.kernels))
        kernels = {**program.kernels, name: replace(self.in_place_kernel(), name=name)}
        arguments = zip(self.kernel.params, self.launch.arguments, strict=True)
        launch = replace(self.launch, kernel=name, arguments=tuple(a for p, a in arguments if p is not self.old))
        steps = (*program.steps[:position], launch, *program.steps[position + 1 :])
        kept = self.target if self.target in program.outputs and self.source not in program.inputs else self.source
        gone = self.source if kept == self.target else self.target
        merged = _with_renamed_buffer(replace(program, steps=steps), gone, kept)
        launched = {s.kernel for s in merged.launches}
        return replace(merged, kernels={n: k for n, k in kernels.items() if n in launched})

    def in_place_kernel(self) -> Kernel:
        """Return the kernel without its copy; what it wrote is read and written now."""
        params = tuple(
            replace(p, role="inout") if p is self.new else p for p in self.kernel.params if p is not self.old
        )
        return replace(self.kernel, params=params, body=tuple(s for s in self.kernel.body if s is not self.copy))


def find_update(program: Program, launch: Launch) -> Update | None:
    """Return the update that a launch makes: a copy before all else that touches the result, and the only use of the old value."""
    kernel = program.kernels[launch.kernel]
    buffers = {p.name: (p, a) for p, a in zip(kernel.params, launch.arguments, strict=True)}
    for k, stmt in enumerate(kernel.body):
        copied = _copied_buffers(stmt)
        if copied and all(name in buffers for name in copied):  # the others are local
            (old, source), (new, target) = (buffers[name] for name in copied)
            rest = (*kernel.body[:k], *kernel.body[k + 1 :])
            is_first = not _accesses(kernel.body[:k], new.name) and bool(_accesses(kernel.body[k + 1 :], new.name))
            if old.role == "in" and new.role == "out" and is_first and not _accesses(rest, old.name):
                return Update(launch, kernel, old, new, stmt, source, target)
    return None


def _copied_buffers(stmt: Stmt) -> tuple[str, str] | None:
    """Return the parameters from and to which a loop nest copies elements of equal indices, or None."""
    nest = perfect_nest((stmt,))
    inner = nest[-1].body if nest else ()
    if len(inner) == 1 and isinstance(store := inner[0], Store) and isinstance(load := store.value, Load):
        is_whole = load.mask is None and load.index == store.index
        return (load.buffer, store.buffer) if is_whole else None
    return None


def _accesses(body: tile.Block, buffer: str) -> bool:
    """Return True if `body` loads from or stores to a buffer."""
    return buffer in tile.loaded_buffers(body) | tile.stored_buffers(body)


def _with_renamed_buffer(program: Program, old: str, new: str) -> Program:
    """Return the program with buffer `old`, which only launches use, under the name of another one."""

    def rename(name: str) -> str:
        return new if name == old else name

    return replace(
        program,
        buffers={n: t for n, t in program.buffers.items() if n != old},
        outputs=tuple(map(rename, program.outputs)),
        output_aliases={o: i for o, i in program.output_aliases.items() if o != old},
        steps=expand_launches(program.steps, lambda s: [replace(s, arguments=tuple(map(rename, s.arguments)))]),
    )
