"""Builder of LLVM IR text: types, constants, instructions, and counted loops with carried values."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from compiler.codegen.llvm.targets import STACK_BYTES
from compiler.errors import DynamicShapeError
from compiler.ir.scalar import Number
from compiler.ir.types import DType, boolean, u8

FLOAT_TYPES = {16: "half", 32: "float", 64: "double"}
"""Register type of floats by width; floats that LLVM lacks are held as their codes."""


def llvm_type(dtype: DType, lanes: int = 0) -> str:
    """Return the register type of one element, or of a vector of `lanes`."""
    element = FLOAT_TYPES[dtype.bits] if dtype.is_float and not dtype.is_encoded else f"i{dtype.bits}"
    return f"<{lanes} x {element}>" if lanes else element


def memory_type(dtype: DType, lanes: int = 0) -> str:
    """Return the type in memory of one element, or of a vector of `lanes`: a bool takes a byte."""
    return llvm_type(u8 if dtype.kind == "bool" else dtype, lanes)


def intrinsic_suffix(dtype: DType, lanes: int) -> str:
    """Return the type in memory as the name of an intrinsic mangles it: v16f32, i64."""
    is_float = dtype.is_float and not dtype.is_encoded
    return f"{f'v{lanes}' if lanes else ''}{'f' if is_float else 'i'}{8 * dtype.bytes}"


def literal(value: Number, dtype: DType) -> str:
    """Return a constant of a register type; floats are written as their bits."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_encoded:
        return str(int(dtype.encode(value)))
    if dtype.name == "f16":
        return f"0xH{struct.pack('>e', np.float16(value)).hex().upper()}"
    if dtype.is_float:
        exact = float(np.float32(value)) if dtype.name == "f32" else float(value)
        return f"0x{struct.pack('>d', exact).hex().upper()}"
    return str(int(value))


def first_lanes_mask(count: int, lanes: int) -> str:
    """Return the constant mask that is true in the first `count` of `lanes`."""
    return constant_mask([k < count for k in range(lanes)])


def constant_mask(lanes: Sequence[bool]) -> str:
    """Return the constant mask of these lanes."""
    return "<" + ", ".join(f"i1 {'true' if lane else 'false'}" for lane in lanes) + ">"


SSA_NAME = re.compile(r"%[\w.]+")


@dataclass
class LoopBody:
    """The lines of a loop under construction, or of what is outside all loops, and the names that they define; its first block."""

    lines: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    head: str = "entry"


@dataclass
class IRBuilder:
    """Builder of one function's body.  `label` is the current basic block, for phis.

    Instructions are at `line` of the Tile IR if the function is a debug `scope`: the number of its metadata node, 0 for none.
    Repeated instructions are value-numbered: `emit` returns the name of an equal instruction that dominates this point.
    `byte_permutation` is an intrinsic of the target that permutes the bytes of a vector; "" if it has none.
    `emulated` are primitives on floats for which the target has no instruction.
    """

    byte_permutation: str = ""
    emulated: frozenset[str] = frozenset()
    open_loops: list[LoopBody] = field(default_factory=lambda: [LoopBody()])  # what is outside all loops comes first
    label: str = "entry"
    declarations: set[str] = field(default_factory=set)
    allocas: list[str] = field(default_factory=list)
    available_values: dict[str, str] = field(default_factory=dict)  # instruction -> name, on every path to this point
    available_loads: dict[str, str] = field(default_factory=dict)  # loads since the last instruction without a result
    stack_bytes: int = 0
    scope: int = 0
    line: int = 0
    hoists: bool = False
    _count: int = 0

    @property
    def lines(self) -> list[str]:
        """The lines of the innermost loop so far."""
        return self.open_loops[-1].lines

    def fresh_name(self, hint: str = "v") -> str:
        """Return a new SSA name."""
        self._count += 1
        return f"%{hint}{self._count}"

    @property
    def location(self) -> str:
        """The debug location of the instruction that is emitted next, as a suffix of its text."""
        return f", !dbg !DILocation(line: {self.line}, scope: !{self.scope})" if self.scope and self.line else ""

    @contextmanager
    def at_line(self, line: int) -> Iterator[None]:
        """Emit instructions at `line` of the Tile IR, for a while."""
        outer, self.line = self.line, line
        yield
        self.line = outer

    @contextmanager
    def hoisting(self, applies: bool) -> Iterator[None]:
        """Emit what the innermost loop does not change before it, or where it is used, for a while."""
        outer, self.hoists = self.hoists, applies
        yield
        self.hoists = outer

    @property
    def is_unconditional(self) -> bool:
        """True if every iteration of the innermost loop comes to this point."""
        return self.label == self.open_loops[-1].head

    def emit(self, text: str, may_hoist: bool | None = None) -> str:
        """Emit `%name = text` unless an equal instruction is available; return its name.

        With `may_hoist`, by default `hoists`, it is emitted before the innermost loop if the loop does not change its operands; it must not trap.
        """
        available = self.available_loads if text.startswith("load") else self.available_values
        if text in available:
            return available[text]
        may_hoist = self.hoists if may_hoist is None else may_hoist
        hoists = may_hoist and len(self.open_loops) > 1 and self.is_invariant(text)
        name, body = self.fresh_name(), self.open_loops[-2 if hoists else -1]
        body.lines.append(f"  {name} = {text}{self.location}")
        body.names.add(name)
        if not text.startswith(("call", "phi")):
            available[text] = name
        return name

    def is_invariant(self, text: str) -> bool:
        """Return True if the innermost loop changes no operand of `text`, an instruction or a value."""
        return self.open_loops[-1].names.isdisjoint(SSA_NAME.findall(text))

    def emit_void(self, text: str) -> None:
        """Emit an instruction without a result: a store, a call or a branch."""
        self.lines.append(f"  {text}{self.location}")
        self.available_loads.clear()

    def alloca(self, text: str) -> str:
        """Allocate stack memory in the entry block, so once per call even inside a loop."""
        name = self.fresh_name("a")
        self.allocas.append(f"  {name} = alloca {text}")
        return name

    def alloca_array(self, count: int, dtype: DType) -> str:
        """Allocate stack memory for `count` elements; DynamicShapeError beyond `STACK_BYTES` in all."""
        self.stack_bytes += count * dtype.bytes
        if self.stack_bytes > STACK_BYTES:
            raise DynamicShapeError(f"local buffers of up to {self.stack_bytes >> 20} MiB do not fit the stack")
        return self.alloca(f"[{count} x {memory_type(dtype)}], align 64")

    def block(self, label: str) -> None:
        """Start a new basic block."""
        self.lines.append(f"{label}:")
        self.label = label

    def intrinsic(self, result: str, name: str, *args: tuple[str, str], flags: str = "") -> str:
        """Call an LLVM intrinsic on (type, value) arguments and declare it; return the result, "" if void.

        The alignment of a pointer belongs to the call: one declaration serves buffers of every alignment.
        """
        types = ", ".join(t.partition(" align ")[0] for t, _ in args)
        self.declarations.add(f"declare {result} @{name}({types})")
        call = f"call {flags + ' ' if flags else ''}{result} @{name}({', '.join(f'{t} {v}' for t, v in args)})"
        if result == "void":
            self.emit_void(call)
            return ""
        return self.emit(call)

    def any_lane(self, flags: str, lanes: int) -> str:
        """Return the flag whether any of `lanes` flags is set; that of a scalar itself."""
        if not lanes:
            return flags
        return self.intrinsic("i1", f"llvm.vector.reduce.or.v{lanes}i1", (llvm_type(boolean, lanes), flags))

    def splat(self, element: str, value: str, lanes: int) -> str:
        """Broadcast scalar `value` of type `element` to every lane."""
        vector = f"<{lanes} x {element}>"
        first = self.emit(f"insertelement {vector} poison, {element} {value}, i64 0")
        return self.emit(f"shufflevector {vector} {first}, {vector} poison, <{lanes} x i32> zeroinitializer")

    def loop(
        self,
        start: str,
        stop: str,
        step: int,
        carried: Sequence[tuple[str, str]],
        body: Callable[[str, list[str]], list[str]],
        *,
        may_be_empty: bool = False,
    ) -> list[str]:
        """Emit `for (i = start; i < stop; i += step)`, tested at the end; return the final carried values.

        `carried` holds the type and initial value of each carried value.  `body` takes the counter and the current values
        and returns the new ones.  Without `may_be_empty` the loop runs at least once.
        """
        head, done = self.fresh_name("loop")[1:], self.fresh_name("done")[1:]
        preheader, available = self.label, dict(self.available_values)
        if may_be_empty:
            test, entered = self.emit(f"icmp slt i64 {start}, {stop}"), self.fresh_name("entered")[1:]
            self.emit_void(f"br i1 {test}, label %{entered}, label %{done}")
            self.block(entered)
        counter = self.fresh_name("i")
        phis = [counter, *(self.fresh_name("c") for _ in carried)]

        def iteration() -> tuple[str, list[str]]:
            results = body(counter, phis[1:])
            following = self.emit(f"add nsw i64 {counter}, {step}")
            return self.emit(f"icmp slt i64 {following}, {stop}"), [following, *results]

        initial = dict(zip(phis, [("i64", start), *carried], strict=True))
        (_, *results), latch = self._repeat(head, done, initial, iteration)
        if not may_be_empty:
            return results
        self.available_values = available
        return [
            self.emit(f"phi {ty} [ {init}, %{preheader} ], [ {new}, %{latch} ]")
            for (ty, init), new in zip(carried, results, strict=True)
        ]

    def conditional(
        self, condition: str, otherwise: Sequence[tuple[str, str]], body: Callable[[], list[str]]
    ) -> list[str]:
        """Emit `body` where `condition` holds; return its values, or those of `otherwise`, pairs of type and value."""
        then, done = self.fresh_name("then")[1:], self.fresh_name("done")[1:]
        before, available = self.label, dict(self.available_values)
        self.emit_void(f"br i1 {condition}, label %{then}, label %{done}")
        self.block(then)
        results, after = body(), self.label
        self.emit_void(f"br label %{done}")
        self.block(done)
        self.available_values = available
        values = zip(otherwise, results, strict=True)
        return [self.emit(f"phi {t} [ {v}, %{before} ], [ {r}, %{after} ]") for (t, v), r in values]

    def do_while(
        self, carried: Sequence[tuple[str, str]], body: Callable[[list[str]], tuple[str, list[str]]]
    ) -> list[str]:
        """Repeat `body` while the flag that it returns is set; return the final carried values.

        `carried` holds the type and initial value of each carried value.  `body` takes the current values and returns the flag
        and the new values.
        """
        head, done = self.fresh_name("loop")[1:], self.fresh_name("done")[1:]
        phis = [self.fresh_name("c") for _ in carried]
        initial = dict(zip(phis, carried, strict=True))
        return self._repeat(head, done, initial, lambda: body(phis))[0]

    def _repeat(
        self,
        head: str,
        done: str,
        phis: Mapping[str, tuple[str, str]],
        iteration: Callable[[], tuple[str, list[str]]],
    ) -> tuple[list[str], str]:
        """Emit block `head`, which the current one enters, while the flag that `iteration` returns is set; go on in block `done`.

        `phis` holds the type and initial value of each carried value; `iteration` also returns their new values.  Return the
        final values, and the label of the block that jumps back.
        """
        preheader = self.label
        self.available_loads.clear()
        self.open_loops.append(LoopBody(names=set(phis), head=head))
        self.label = head
        more, results = iteration()
        body, latch = self.open_loops.pop(), self.label
        self.emit_void(f"br label %{head}")
        self.block(head)
        for (phi, (ty, init)), new in zip(phis.items(), results, strict=True):
            self.lines.append(f"  {phi} = phi {ty} [ {init}, %{preheader} ], [ {new}, %{latch} ]{self.location}")
        self.lines.extend(body.lines)
        self.open_loops[-1].names |= body.names
        self.emit_void(f"br i1 {more}, label %{head}, label %{done}")
        self.block(done)
        return results, latch

    def if_else(self, flag: str, then_body: Callable[[], object], else_body: Callable[[], object]) -> None:
        """Emit a branch on `flag`."""
        blocks = {self.fresh_name(hint)[1:]: body for hint, body in (("then", then_body), ("else", else_body))}
        self._emit_cases(f"br i1 {flag}, label %{', label %'.join(blocks)}", blocks)

    def switch(self, number: str, last_case: int, body: Callable[[int], object]) -> None:
        """Emit a switch over the cases 1..last_case; the last is the default, for any other `number`."""
        blocks = {n: self.fresh_name("case")[1:] for n in range(1, last_case + 1)}
        cases = " ".join(f"i64 {n}, label %{blocks[n]}" for n in range(1, last_case))
        jump = f"switch i64 {number}, label %{blocks[last_case]} [ {cases} ]"
        self._emit_cases(jump, {blocks[n]: partial(body, n) for n in reversed(blocks)})

    def _emit_cases(self, jump: str, blocks: Mapping[str, Callable[[], object]]) -> None:
        """Emit a terminator and the blocks that it jumps to, which continue in a common block."""
        done, available = self.fresh_name("done")[1:], dict(self.available_values)
        self.emit_void(jump)
        for label, body in blocks.items():
            self.block(label)
            self.available_values = dict(available)
            body()
            self.emit_void(f"br label %{done}")
        self.block(done)
        self.available_values = available
