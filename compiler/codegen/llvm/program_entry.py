"""Entry function of one segment of a program: it calls the kernels in order, with buffers addressed through a call frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias, Union

from compiler.codegen.llvm.builder import IRBuilder
from compiler.codegen.llvm.call_frame import FAILED_LAUNCH, THREADS, WORKSPACE
from compiler.codegen.llvm.expressions import ExprEmitter
from compiler.codegen.llvm.scope import CodegenScope
from compiler.ir.symbolic.index_atoms import DynamicSize
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


def emit_program_entry(name: str, actions: Sequence[Action], words: Mapping[str, int], parallel: bool = False) -> str:
    """Return the LLVM IR text of `void @name(ptr frame)`, which performs `actions` in order.

    `words` maps each dynamic size to its word in the frame.  `parallel` tells that threads share some of its kernels.
    """
    b = IRBuilder()
    emitter = EntryEmitter(b, CodegenScope(), words=words)
    if parallel:
        threads = b.emit(f"getelementptr i64, ptr %frame, i64 {THREADS}")
        start = b.emit(f"call i64 @{BEGIN_CALL}(ptr @{name}.history, ptr {threads})")
    emitter.emit_actions(actions)
    if parallel:
        b.emit_void(f"call void @{END_CALL}(ptr @{name}.history, i64 {start})")
    calls = {a.symbol: ["ptr"] * len(a.addresses) + ["i64"] * len(a.sizes) for a in _kernel_calls(actions)}
    declarations = [f"declare void @{s}({', '.join([*types, 'ptr'])})" for s, types in sorted(calls.items())]
    declarations += [f"declare i64 @{BEGIN_CALL}(ptr, ptr)", f"declare void @{END_CALL}(ptr, i64)"]
    declarations.append(f"declare void @{MARK}()")
    declarations.append(f"@{name}.history = internal global {HISTORY} zeroinitializer, align 64")
    function = [f"define void @{name}(ptr %frame) nounwind {{", "entry:", *b.lines, "  ret void", "}", ""]
    return "\n".join([*function, *declarations, *sorted(b.declarations)]) + "\n"


def _kernel_calls(actions: Sequence[Action]) -> Iterator[KernelCall]:
    for a in actions:
        if isinstance(a, Loop):
            yield from _kernel_calls(a.actions)
        elif isinstance(a, KernelCall):
            yield a


@dataclass
class EntryEmitter(ExprEmitter):
    """Emits the actions of one function.

    Addresses and sizes are loaded from the frame for each action, so that few registers live across calls.
    """

    words: Mapping[str, int] = field(default_factory=dict)

    def emit_actions(self, actions: Sequence[Action]) -> None:
        for a in actions:
            if isinstance(a, KernelCall):
                self.emit_call(a)
            elif isinstance(a, Mark):
                self.b.emit_void(f"call void @{MARK}()")
            elif isinstance(a, CopyBytes):
                source, target = (("ptr", self.emit_address(address)) for address in (a.source, a.target))
                count = ("i64", self.emit_scalar(a.count))
                self.b.intrinsic("void", "llvm.memcpy.p0.p0.i64", target, source, count, ("i1", "false"))
            else:
                self.b.loop("0", self.emit_scalar(a.count), 1, [], partial(self.emit_iteration, a))

    def emit_iteration(self, loop: Loop, counter: str, carried: list[str]) -> list[str]:
        self.scope.ssa_names[loop.var] = counter
        self.emit_actions(loop.actions)
        return carried

    def emit_call(self, call: KernelCall) -> None:
        addresses = [f"ptr {self.emit_address(a)}" for a in call.addresses]
        sizes = [f"i64 {self.load_word('i64', w)}" for w in call.sizes]
        self.b.emit_void(f"call void @{call.symbol}({', '.join([*addresses, *sizes, 'ptr %frame'])})")
        if call.launch_number:
            self.record_failed_launch(call.launch_number)

    def record_failed_launch(self, launch_number: int) -> None:
        """Store `launch_number` in the frame if the status is set and no earlier launch is recorded."""
        emit = self.b.emit
        failed = emit(f"icmp ne i32 {emit('load i32, ptr %frame, align 8')}, 0")
        recorded = self.load_word("i64", FAILED_LAUNCH)
        none_recorded = emit(f"icmp eq i64 {recorded}, 0")
        is_first_failure = emit(f"and i1 {failed}, {none_recorded}")
        first_failure = emit(f"select i1 {is_first_failure}, i64 {launch_number}, i64 {recorded}")
        self.b.emit_void(f"store i64 {first_failure}, ptr {self.word_address(FAILED_LAUNCH)}, align 8")

    def emit_address(self, address: BufferAddress) -> str:
        """Emit the computation of a buffer's address; return the LLVM value that holds it, a `ptr`."""
        if isinstance(address, FrameSlot):
            return self.load_word("ptr", address.word)
        if isinstance(address, SubBuffer):
            base, offset = self.emit_address(address.parent), self.emit_scalar(address.index * address.entry_bytes)
        else:
            base = self.load_word("ptr", WORKSPACE)
            offset = str(address.bytes) if isinstance(address, WorkspaceOffset) else self.load_word("i64", address.word)
        return self.b.emit(f"getelementptr i8, ptr {base}, i64 {offset}")

    def emit_scalar(self, d: Dim) -> str:
        """Emit an index expression over loop variables and dynamic sizes; return the LLVM value that holds it, an `i64`."""
        return self.emit_resolved_index(d, {}, None)

    def emit_size(self, s: DynamicSize) -> str:
        return self.load_word("i64", self.words[s.name])

    def load_word(self, type: str, word: int) -> str:
        """Load word `word` of the frame."""
        return self.b.emit(f"load {type}, ptr {self.word_address(word)}, align 8")

    def word_address(self, word: int) -> str:
        """Emit the address of word `word` of the frame."""
        return self.b.emit(f"getelementptr i64, ptr %frame, i64 {word}")
