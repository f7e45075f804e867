"""The function that runs one stretch of a program: its kernels in order, on buffers found through a call frame.

A frame is an array of 8-byte words, filled anew for each call:

    word 0   status: set by a kernel whose index check fails
    word 1   the number (from 1) of the first launch that set it
    word 2   the workspace
    word 3+  the addresses of buffers that live outside the workspace
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, Union

STATUS, CULPRIT, WORKSPACE, FIRST_SLOT = range(4)
"""Word numbers in a frame."""


@dataclass(frozen=True)
class Slot:
    """A buffer whose address the caller writes into word `word` of the frame."""

    word: int


@dataclass(frozen=True)
class Offset:
    """A buffer `bytes` into the workspace."""

    bytes: int


Place: TypeAlias = Union[Slot, Offset]


@dataclass(frozen=True)
class KernelCall:
    """Call `symbol` on buffers at `places`; `number` is set where the kernel may report a failed index check."""

    symbol: str
    places: tuple[Place, ...]
    number: int = 0


@dataclass(frozen=True)
class CopyBytes:
    """Copy `count` bytes from one buffer to another."""

    source: Place
    target: Place
    count: int


Action: TypeAlias = Union[KernelCall, CopyBytes]


def emit_main(name: str, actions: Sequence[Action]) -> str:
    """LLVM IR text of `void @name(ptr frame)`, which performs `actions` in order."""
    lines = [
        line for k, a in enumerate(actions) for line in (_call(k, a) if isinstance(a, KernelCall) else _copy(k, a))
    ]
    symbols = {a.symbol: len(a.places) for a in actions if isinstance(a, KernelCall)}
    declarations = [f"declare void @{s}({', '.join(['ptr'] * (n + 1))})" for s, n in sorted(symbols.items())]
    declarations.append("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    body = "\n".join(f"  {line}" for line in [*lines, "ret void"])
    return f"define void @{name}(ptr %frame) nounwind {{\n{body}\n}}\n\n" + "\n".join(declarations) + "\n"


def _address(name: str, place: Place) -> list[str]:
    """Load the address of `place` into `name`: from the frame at each use, so that few registers live across calls."""
    word = place.word if isinstance(place, Slot) else WORKSPACE
    lines = [
        f"{name}.word = getelementptr i64, ptr %frame, i64 {word}",
        f"{name}.base = load ptr, ptr {name}.word, align 8",
    ]
    return [
        *lines,
        f"{name} = getelementptr i8, ptr {name}.base, i64 {place.bytes if isinstance(place, Offset) else 0}",
    ]


def _call(k: int, call: KernelCall) -> list[str]:
    names = [f"%p{k}.{i}" for i in range(len(call.places))]
    lines = [line for name, place in zip(names, call.places, strict=True) for line in _address(name, place)]
    lines.append(f"call void @{call.symbol}({', '.join(f'ptr {n}' for n in [*names, '%frame'])})")
    return lines + (_blame(k, call.number) if call.number else [])


def _blame(k: int, number: int) -> list[str]:
    """Remember the first launch after which the status is set."""
    return [
        f"%status{k} = load i32, ptr %frame, align 8",
        f"%failed{k} = icmp ne i32 %status{k}, 0",
        f"%where{k} = getelementptr i64, ptr %frame, i64 {CULPRIT}",
        f"%known{k} = load i64, ptr %where{k}, align 8",
        f"%first{k} = icmp eq i64 %known{k}, 0",
        f"%blame{k} = and i1 %failed{k}, %first{k}",
        f"%culprit{k} = select i1 %blame{k}, i64 {number}, i64 %known{k}",
        f"store i64 %culprit{k}, ptr %where{k}, align 8",
    ]


def _copy(k: int, copy: CopyBytes) -> list[str]:
    source, target = f"%s{k}", f"%t{k}"
    lines = [*_address(source, copy.source), *_address(target, copy.target)]
    return [*lines, f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {copy.count}, i1 false)"]
