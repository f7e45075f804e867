"""The function that runs one stretch of a program: its kernels in order, on buffers found through a call frame.

A frame is an array of 8-byte words, filled anew for each call:

    word 0   status: set by a kernel whose index check fails
    word 1   the number (from 1) of the first launch that set it
    word 2   the workspace
    word 3+  the addresses of buffers that live outside the workspace; where sizes are open, then the sizes, and what follows
             from them: how far into the workspace buffers lie, how many bytes are copied
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, Union

from compiler.ir.symbolic.index_atoms import Atom, DynamicSize, Min, Mod, Var
from compiler.ir.symbolic.index_expr import Dim

STATUS, FAILED_LAUNCH, WORKSPACE, FIRST_SLOT = range(4)
"""Word numbers in a frame."""


@dataclass(frozen=True)
class FrameSlot:
    """A buffer whose address the caller writes into word `word` of the frame."""

    word: int


@dataclass(frozen=True)
class WorkspaceOffset:
    """A buffer `bytes` into the workspace."""

    bytes: int


@dataclass(frozen=True)
class SubBuffer:
    """Entry `index`, which may follow the counters of loops, of the buffer at `whole`, each of `bytes`."""

    parent: BufferAddress
    index: Dim
    entry_bytes: Dim


@dataclass(frozen=True)
class DynamicOffset:
    """A buffer as many bytes into the workspace as word `word` of the frame says."""

    word: int


BufferAddress: TypeAlias = Union[FrameSlot, WorkspaceOffset, DynamicOffset, SubBuffer]


@dataclass(frozen=True)
class KernelCall:
    """Call `symbol` on buffers at `places`; `number` is set where the kernel may report a failed index check.

    `sizes` are the words of the frame that hold the sizes it is told.
    """

    symbol: str
    addresses: tuple[BufferAddress, ...]
    launch_number: int = 0
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class CopyBytes:
    """Copy `count` bytes from one buffer to another."""

    source: BufferAddress
    target: BufferAddress
    count: Dim


@dataclass(frozen=True)
class Loop:
    """Perform `actions` for every index 0..count-1 of `var`; at least once."""

    var: str
    count: Dim
    actions: tuple[Action, ...]


Action: TypeAlias = Union[KernelCall, CopyBytes, Loop]


def emit_program_entry(name: str, actions: Sequence[Action], sizes: Mapping[str, int]) -> str:
    """LLVM IR text of `void @name(ptr frame)`, which performs `actions` in order; `sizes` gives the word of each open size."""
    writer = _EntryWriter(sizes)
    writer.emit_actions(actions)
    calls = {a.symbol: ["ptr"] * len(a.addresses) + ["i64"] * len(a.sizes) for a in _kernel_calls(actions)}
    declarations = [f"declare void @{s}({', '.join([*types, 'ptr'])})" for s, types in sorted(calls.items())]
    declarations.append("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    body = "\n".join(line if line.endswith(":") else f"  {line}" for line in ["entry:", *writer.lines, "ret void"])
    return f"define void @{name}(ptr %frame) nounwind {{\n{body}\n}}\n\n" + "\n".join(declarations) + "\n"


def _kernel_calls(actions: Sequence[Action]) -> Iterator[KernelCall]:
    for a in actions:
        if isinstance(a, Loop):
            yield from _kernel_calls(a.actions)
        elif isinstance(a, KernelCall):
            yield a


@dataclass
class _EntryWriter:
    """The lines of one function; `label` is the block being written, `counters` names the values of loop variables."""

    sizes: Mapping[str, int]
    lines: list[str] = field(default_factory=list)
    label: str = "entry"
    counters: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def emit(self, instruction: str) -> str:
        """Write an instruction; the name of its value."""
        self.count += 1
        self.lines.append(f"%v{self.count} = {instruction}")
        return f"%v{self.count}"

    def emit_actions(self, actions: Sequence[Action]) -> None:
        for a in actions:
            if isinstance(a, KernelCall):
                self.emit_call(a)
            elif isinstance(a, CopyBytes):
                source, target = self.emit_address(a.source), self.emit_address(a.target)
                count = self.emit_index(a.count)
                self.lines.append(
                    f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {count}, i1 false)"
                )
            else:
                self.emit_loop(a)

    def emit_loop(self, loop: Loop) -> None:
        self.count += 1
        start, head, after = self.label, f"loop{self.count}", f"after{self.count}"
        counter, following = f"%i{self.count}", f"%n{self.count}"
        self.lines += [f"br label %{head}", f"{head}:", ""]
        phi = len(self.lines) - 1
        self.label, self.counters[loop.var] = head, counter
        self.emit_actions(loop.actions)
        self.lines[phi] = f"{counter} = phi i64 [0, %{start}], [{following}, %{self.label}]"
        self.lines.append(f"{following} = add i64 {counter}, 1")
        more = self.emit(f"icmp ult i64 {following}, {self.emit_index(loop.count)}")
        self.lines += [f"br i1 {more}, label %{head}, label %{after}", f"{after}:"]
        self.label = after

    def emit_call(self, call: KernelCall) -> None:
        addresses = [f"ptr {self.emit_address(p)}" for p in call.addresses]
        sizes = [f"i64 {self.load_word('i64', w)}" for w in call.sizes]
        self.lines.append(f"call void @{call.symbol}({', '.join([*addresses, *sizes, 'ptr %frame'])})")
        if call.launch_number:
            self.record_failed_launch(call.launch_number)

    def record_failed_launch(self, launch_number: int) -> None:
        """Remember the first launch after which the status is set."""
        status = self.emit("load i32, ptr %frame, align 8")
        failed = self.emit(f"icmp ne i32 {status}, 0")
        where = self.emit(f"getelementptr i64, ptr %frame, i64 {FAILED_LAUNCH}")
        known = self.emit(f"load i64, ptr {where}, align 8")
        first = self.emit(f"icmp eq i64 {known}, 0")
        is_first_failure = self.emit(f"and i1 {failed}, {first}")
        culprit = self.emit(f"select i1 {is_first_failure}, i64 {launch_number}, i64 {known}")
        self.lines.append(f"store i64 {culprit}, ptr {where}, align 8")

    def emit_address(self, address: BufferAddress) -> str:
        """The address of `place`: from the frame at each use, so that few registers live across calls."""
        if isinstance(address, SubBuffer):
            whole, index = self.emit_address(address.parent), self.emit_index(address.index)
            offset = self.emit(f"mul i64 {index}, {self.emit_index(address.entry_bytes)}")
            return self.emit(f"getelementptr i8, ptr {whole}, i64 {offset}")
        base = self.load_word("ptr", address.word if isinstance(address, FrameSlot) else WORKSPACE)
        if isinstance(address, DynamicOffset):
            return self.emit(f"getelementptr i8, ptr {base}, i64 {self.load_word('i64', address.word)}")
        return self.emit(
            f"getelementptr i8, ptr {base}, i64 {address.bytes if isinstance(address, WorkspaceOffset) else 0}"
        )

    def load_word(self, type: str, word: int) -> str:
        """What word `word` of the frame holds."""
        return self.emit(f"load {type}, ptr {self.emit(f'getelementptr i64, ptr %frame, i64 {word}')}, align 8")

    def emit_index(self, d: Dim) -> str:
        """The value of an index."""
        if isinstance(d, int):
            return str(d)
        total = "0"
        for factors, coefficient in d.terms:
            term = str(coefficient)
            for atom in factors:
                term = self.emit(f"mul i64 {term}, {self.emit_atom(atom)}")
            total = self.emit(f"add i64 {total}, {term}")
        return total

    def emit_atom(self, atom: Atom) -> str:
        """The value of a variable or a size, or of a floor division or remainder by a positive number."""
        if isinstance(atom, Var):
            return self.counters[atom.name]
        if isinstance(atom, DynamicSize):
            return self.load_word("i64", self.sizes[atom.name])
        assert not isinstance(atom, Min), f"{atom} decides which entry is meant"
        number, divisor = self.emit_index(atom.num), self.emit_index(atom.den)
        rest = self.emit(f"srem i64 {number}, {divisor}")
        negative = self.emit(f"icmp slt i64 {rest}, 0")
        raised = self.emit(f"add i64 {rest}, {divisor}")
        rest = self.emit(f"select i1 {negative}, i64 {raised}, i64 {rest}")
        if isinstance(atom, Mod):
            return rest
        return self.emit(f"sdiv exact i64 {self.emit(f'sub i64 {number}, {rest}')}, {divisor}")
