"""Writes LLVM IR text: instructions, constants, counted loops with carried values."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from compiler.errors import DynamicShapeError
from compiler.ir.scalar import Number, round_to
from compiler.ir.types import DType

LLVM_TYPES = {"f64": "double", "f32": "float", "f16": "half", "bf16": "i16", "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8",
         "u8": "i8", "bool": "i1"}  # fmt: skip


def llvm_type(dtype: DType, lanes: int = 0) -> str:
    """The register type of one element, or of a vector of `lanes`.  bf16 travels as its bits."""
    return f"<{lanes} x {LLVM_TYPES[dtype.name]}>" if lanes else LLVM_TYPES[dtype.name]


MAX_STACK_BYTES = 6 << 20
"""Bytes of local buffers that a thread has room for: stacks have 8 MiB, as a rule."""


def memory_type(dtype: DType, lanes: int = 0) -> str:
    """The type in memory: a bool takes a byte."""
    element = "i8" if dtype.kind == "bool" else LLVM_TYPES[dtype.name]
    return f"<{lanes} x {element}>" if lanes else element


def literal(value: Number, dtype: DType) -> str:
    """A constant of a register type, exact to the bit."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.name == "bf16":
        return str(int(round_to(value, dtype).view(np.uint32)) >> 16)
    if dtype.name == "f16":
        return f"0xH{struct.pack('>e', np.float16(value)).hex().upper()}"
    if dtype.is_float:
        exact = float(np.float32(value)) if dtype.name == "f32" else float(value)
        return f"0x{struct.pack('>d', exact).hex().upper()}"
    return str(int(value))


def first_lanes_mask(count: int, lanes: int) -> str:
    """The constant mask that holds in the first `count` of `lanes`."""
    return "<" + ", ".join(f"i1 {'true' if k < count else 'false'}" for k in range(lanes)) + ">"


@dataclass
class IRBuilder:
    """One function's body, block by block.  `label` is the block being written, which a phi must name.

    An instruction that has been written before, with the same operands, is not written again: its name is returned.
    """

    lines: list[str] = field(default_factory=list)
    label: str = "entry"
    declarations: set[str] = field(default_factory=set)
    allocas: list[str] = field(default_factory=list)
    available_values: dict[str, str] = field(
        default_factory=dict
    )  # instruction -> the name it has wherever we may come from
    available_loads: dict[str, str] = field(default_factory=dict)  # loads since something was stored
    stack_bytes: int = 0
    _count: int = 0

    def fresh_name(self, hint: str = "v") -> str:
        """A new SSA name."""
        self._count += 1
        return f"%{hint}{self._count}"

    def emit(self, text: str) -> str:
        """`%name = text`; returns the name, or that of the same instruction written before."""
        seen = self.available_loads if text.startswith("load") else self.available_values
        if text in seen:
            return seen[text]
        name = self.fresh_name()
        self.lines.append(f"  {name} = {text}")
        if not text.startswith(("call", "phi")):
            seen[text] = name
        return name

    def emit_void(self, text: str) -> None:
        """An instruction without a result: a store, a call or a jump."""
        self.lines.append(f"  {text}")
        self.available_loads.clear()

    def alloca(self, text: str) -> str:
        """Stack memory, reserved once on entry however often this point is reached."""
        name = self.fresh_name("a")
        self.allocas.append(f"  {name} = alloca {text}")
        return name

    def alloca_array(self, count: int, dtype: DType) -> str:
        """Stack memory for `count` elements; OpenSizeError where there would be more of it than a thread has."""
        self.stack_bytes += count * dtype.bytes
        if self.stack_bytes > MAX_STACK_BYTES:
            raise DynamicShapeError(f"local buffers of up to {self.stack_bytes >> 20} MiB do not fit the stack")
        return self.alloca(f"[{count} x {memory_type(dtype)}], align 64")

    def block(self, label: str) -> None:
        """Start a new basic block."""
        self.lines.append(f"{label}:")
        self.label = label

    def intrinsic(self, result: str, name: str, *args: tuple[str, str], flags: str = "") -> str:
        """Call an LLVM intrinsic on (type, value) arguments, declaring it once."""
        self.declarations.add(f"declare {result} @{name}({', '.join(t for t, _ in args)})")
        call = f"call {flags + ' ' if flags else ''}{result} @{name}({', '.join(f'{t} {v}' for t, v in args)})"
        if result == "void":
            self.emit_void(call)
            return ""
        return self.emit(call)

    def splat(self, element: str, value: str, lanes: int) -> str:
        """`value` in every lane."""
        vector = f"<{lanes} x {element}>"
        one = self.emit(f"insertelement {vector} poison, {element} {value}, i64 0")
        return self.emit(f"shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer")

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
        """`for (i = start; i < stop; i += step)`, tested at the end.

        `carried` holds (type, initial value) of what the body updates: it gets the counter and the current values and
        returns the new ones; the final ones are returned.  Without `may_be_empty` the loop runs at least once.
        """
        head, done = self.fresh_name("loop")[1:], self.fresh_name("done")[1:]
        before, known = self.label, dict(self.available_values)
        if may_be_empty:
            test = self.emit(f"icmp slt i64 {start}, {stop}")
            self.emit_void(f"br i1 {test}, label %{head}, label %{done}")
        else:
            self.emit_void(f"br label %{head}")
        self.block(head)
        counter = self.fresh_name("i")
        phis = [self.fresh_name("c") for _ in carried]
        place = len(self.lines)
        results = body(counter, list(phis))
        after = self.emit(f"add nsw i64 {counter}, {step}")
        again = self.emit(f"icmp slt i64 {after}, {stop}")
        last = self.label
        self.lines[place:place] = [
            f"  {counter} = phi i64 [ {start}, %{before} ], [ {after}, %{last} ]",
            *(
                f"  {phi} = phi {ty} [ {init}, %{before} ], [ {new}, %{last} ]"
                for phi, (ty, init), new in zip(phis, carried, results, strict=True)
            ),
        ]
        self.emit_void(f"br i1 {again}, label %{head}, label %{done}")
        self.block(done)
        if not may_be_empty:
            return results
        self.available_values = known
        return [
            self.emit(f"phi {ty} [ {init}, %{before} ], [ {new}, %{last} ]")
            for (ty, init), new in zip(carried, results, strict=True)
        ]

    def if_else(self, flag: str, then_body: Callable[[], object], else_body: Callable[[], object]) -> None:
        """Code that runs where `flag` holds, and code that runs where it does not."""
        blocks = {self.fresh_name(hint)[1:]: body for hint, body in (("then", then_body), ("else", else_body))}
        self._emit_cases(f"br i1 {flag}, label %{', label %'.join(blocks)}", blocks)

    def switch(self, number: str, last_case: int, body: Callable[[int], object]) -> None:
        """Code for every number 1..most, of which that for `number` runs, or that for `most` where it is greater."""
        blocks = {n: self.fresh_name("case")[1:] for n in range(1, last_case + 1)}
        cases = " ".join(f"i64 {n}, label %{blocks[n]}" for n in range(1, last_case))
        jump = f"switch i64 {number}, label %{blocks[last_case]} [ {cases} ]"
        self._emit_cases(jump, {blocks[n]: partial(body, n) for n in reversed(blocks)})

    def _emit_cases(self, jump: str, blocks: Mapping[str, Callable[[], object]]) -> None:
        """A jump to one of the blocks, and each of them, which all go on at one place."""
        done, known = self.fresh_name("done")[1:], dict(self.available_values)
        self.emit_void(jump)
        for label, body in blocks.items():
            self.block(label)
            self.available_values = dict(known)
            body()
            self.emit_void(f"br label %{done}")
        self.block(done)
        self.available_values = known
