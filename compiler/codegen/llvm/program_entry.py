"""Entry function of one segment of a program: it calls the kernels in order, with buffers addressed through a call frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, Union

from compiler.codegen.llvm.call_frame import FAILED_LAUNCH, THREADS, WORKSPACE
from compiler.ir.symbolic.index_atoms import Atom, DynamicSize, Min, Mod, Var
from compiler.ir.symbolic.index_expr import Dim


@dataclass(frozen=True)
class FrameSlot:
    """Address of a buffer that the caller writes into word `word` of the frame."""

    word: int


@dataclass(frozen=True)
class WorkspaceOffset:
    """Address of a buffer at a constant offset of `bytes` in the workspace."""

    bytes: int


@dataclass(frozen=True)
class SubBuffer:
    """Address of entry `index` of buffer `parent`, whose entries take `entry_bytes` each; `index` may use loop counters."""

    parent: BufferAddress
    index: Dim
    entry_bytes: Dim


@dataclass(frozen=True)
class DynamicOffset:
    """Address of a buffer whose offset in the workspace, in bytes, is in word `word` of the frame."""

    word: int


BufferAddress: TypeAlias = Union[FrameSlot, WorkspaceOffset, DynamicOffset, SubBuffer]


@dataclass(frozen=True)
class KernelCall:
    """Call of kernel `symbol` on the buffers at `addresses`.

    `launch_number` (from 1) is not 0 if the kernel has bounds checks.  `sizes` are the frame words of its dynamic sizes.
    """

    symbol: str
    addresses: tuple[BufferAddress, ...]
    launch_number: int = 0
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class CopyBytes:
    """Copy of `count` bytes from one buffer to another."""

    source: BufferAddress
    target: BufferAddress
    count: Dim


@dataclass(frozen=True)
class Loop:
    """Loop of `actions` over `var` in 0..count-1; runs at least once."""

    var: str
    count: Dim
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class Mark:
    """Call of `MARK`, which records the time."""


Action: TypeAlias = Union[KernelCall, CopyBytes, Loop, Mark]

MARK = "tilewright_mark"
"""`()` records the time; only code that is profiled calls it."""


def with_marks(actions: Iterable[Action]) -> Iterator[Action]:
    """Yield `actions` with a mark before them and one after each, those inside loops included."""
    yield Mark()
    yield from _with_marks_after(actions)


def _with_marks_after(actions: Iterable[Action]) -> Iterator[Action]:
    for a in actions:
        if isinstance(a, Loop):
            yield replace(a, actions=tuple(_with_marks_after(a.actions)))
        else:
            yield from (a, Mark())


BEGIN_CALL, END_CALL = "tilewright_begin_call", "tilewright_end_call"
"""`(ptr history, ptr threads)` sets the number of threads of a call and returns its start time, which `(ptr history, i64 start)` takes."""

HISTORY = "[12 x i64]"
"""Type of what the two functions remember of the calls of one entry function; zero at first."""


def emit_program_entry(name: str, actions: Sequence[Action], sizes: Mapping[str, int], parallel: bool = False) -> str:
    """Return the LLVM IR text of `void @name(ptr frame)`, which performs `actions` in order.

    `sizes` maps each dynamic size to its word in the frame.  `parallel` tells that threads share some of its kernels.
    """
    writer = _EntryWriter(sizes)
    if parallel:
        threads = writer.emit(f"getelementptr i64, ptr %frame, i64 {THREADS}")
        start = writer.emit(f"call i64 @{BEGIN_CALL}(ptr @{name}.history, ptr {threads})")
    writer.emit_actions(actions)
    if parallel:
        writer.lines.append(f"call void @{END_CALL}(ptr @{name}.history, i64 {start})")
    calls = {a.symbol: ["ptr"] * len(a.addresses) + ["i64"] * len(a.sizes) for a in _kernel_calls(actions)}
    declarations = [f"declare void @{s}({', '.join([*types, 'ptr'])})" for s, types in sorted(calls.items())]
    declarations += [f"declare i64 @{BEGIN_CALL}(ptr, ptr)", f"declare void @{END_CALL}(ptr, i64)"]
    declarations.append(f"declare void @{MARK}()")
    declarations.append(f"@{name}.history = internal global {HISTORY} zeroinitializer, align 64")
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
    """Builder of one function: `label` is the current basic block, `counters` maps loop variables to SSA values."""

    sizes: Mapping[str, int]
    lines: list[str] = field(default_factory=list)
    label: str = "entry"
    counters: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def emit(self, instruction: str) -> str:
        """Emit an instruction and return the name of its value."""
        self.count += 1
        self.lines.append(f"%v{self.count} = {instruction}")
        return f"%v{self.count}"

    def emit_actions(self, actions: Sequence[Action]) -> None:
        for a in actions:
            if isinstance(a, KernelCall):
                self.emit_call(a)
            elif isinstance(a, Mark):
                self.lines.append(f"call void @{MARK}()")
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
        preheader, head, after = self.label, f"loop{self.count}", f"after{self.count}"
        counter, following = f"%i{self.count}", f"%n{self.count}"
        self.lines += [f"br label %{head}", f"{head}:", ""]
        phi = len(self.lines) - 1
        self.label, self.counters[loop.var] = head, counter
        self.emit_actions(loop.actions)
        self.lines[phi] = f"{counter} = phi i64 [0, %{preheader}], [{following}, %{self.label}]"
        self.lines.append(f"{following} = add i64 {counter}, 1")
        more = self.emit(f"icmp ult i64 {following}, {self.emit_index(loop.count)}")
        self.lines += [f"br i1 {more}, label %{head}, label %{after}", f"{after}:"]
        self.label = after

    def emit_call(self, call: KernelCall) -> None:
        addresses = [f"ptr {self.emit_address(a)}" for a in call.addresses]
        sizes = [f"i64 {self.load_word('i64', w)}" for w in call.sizes]
        self.lines.append(f"call void @{call.symbol}({', '.join([*addresses, *sizes, 'ptr %frame'])})")
        if call.launch_number:
            self.record_failed_launch(call.launch_number)

    def record_failed_launch(self, launch_number: int) -> None:
        """Store `launch_number` in the frame if the status is set and no earlier launch is recorded."""
        status = self.emit("load i32, ptr %frame, align 8")
        failed = self.emit(f"icmp ne i32 {status}, 0")
        slot = self.emit(f"getelementptr i64, ptr %frame, i64 {FAILED_LAUNCH}")
        recorded = self.emit(f"load i64, ptr {slot}, align 8")
        none_recorded = self.emit(f"icmp eq i64 {recorded}, 0")
        is_first_failure = self.emit(f"and i1 {failed}, {none_recorded}")
        first_failure = self.emit(f"select i1 {is_first_failure}, i64 {launch_number}, i64 {recorded}")
        self.lines.append(f"store i64 {first_failure}, ptr {slot}, align 8")

    def emit_address(self, address: BufferAddress) -> str:
        """Emit an address, loaded from the frame at each use, so that few registers live across calls."""
        if isinstance(address, SubBuffer):
            parent, index = self.emit_address(address.parent), self.emit_index(address.index)
            offset = self.emit(f"mul i64 {index}, {self.emit_index(address.entry_bytes)}")
            return self.emit(f"getelementptr i8, ptr {parent}, i64 {offset}")
        base = self.load_word("ptr", address.word if isinstance(address, FrameSlot) else WORKSPACE)
        if isinstance(address, DynamicOffset):
            return self.emit(f"getelementptr i8, ptr {base}, i64 {self.load_word('i64', address.word)}")
        constant = address.bytes if isinstance(address, WorkspaceOffset) else 0
        return self.emit(f"getelementptr i8, ptr {base}, i64 {constant}")

    def load_word(self, type: str, word: int) -> str:
        """Load word `word` of the frame."""
        return self.emit(f"load {type}, ptr {self.emit(f'getelementptr i64, ptr %frame, i64 {word}')}, align 8")

    def emit_index(self, d: Dim) -> str:
        """Emit the value of an index expression."""
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
        """Emit a loop variable, a size, or a floor division or remainder by a positive number."""
        if isinstance(atom, Var):
            return self.counters[atom.name]
        if isinstance(atom, DynamicSize):
            return self.load_word("i64", self.sizes[atom.name])
        assert not isinstance(atom, Min), f"{atom}: minima are not supported in the entry function"
        number, divisor = self.emit_index(atom.num), self.emit_index(atom.den)
        remainder = self.emit(f"srem i64 {number}, {divisor}")
        negative = self.emit(f"icmp slt i64 {remainder}, 0")
        raised = self.emit(f"add i64 {remainder}, {divisor}")
        remainder = self.emit(f"select i1 {negative}, i64 {raised}, i64 {remainder}")
        if isinstance(atom, Mod):
            return remainder
        return self.emit(f"sdiv exact i64 {self.emit(f'sub i64 {number}, {remainder}')}, {divisor}")
