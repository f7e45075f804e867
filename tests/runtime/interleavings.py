"""Model checker of LLVM IR: runs threads one step at a time, in every order (sequential consistency).

A step ends before the next access to a global, futex call or look at the clock, since no other instruction can be observed by
another thread.  While a thread spins, the clock shows 0 or `LATE`, so each wait may be short or long.  States that were met are not
explored again.  The subset of LLVM IR is that of compiler/runtime/thread_team.ll.
"""

from __future__ import annotations

import operator as op
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Any

LATE = 1 << 20

PROTOCOL, OPENMP_WORKERS = (
    files("compiler.runtime").joinpath(f"{name}.ll").read_text() for name in ("thread_team", "openmp_workers")
)
"""LLVM IR text of the thread team."""


SPIN_LABELS = ("again",)
"""Blocks in which a look at the clock decides how long a thread spins; elsewhere the clock shows 0."""

STRUCT_BYTES = {"%task": 16, "%claimer": 32, "%counter": 128, "i64": 8}
MASKS = {"i1": 1, "i32": (1 << 32) - 1, "i64": (1 << 64) - 1}
NULL = ("null", 0)

Pointer = tuple[str, int]
Value = int | Pointer
Instruction = tuple[str, str]  # result or "", and text


@dataclass(frozen=True)
class Function:
    """Parameters, and the instructions of each block by label."""

    params: tuple[str, ...]
    blocks: Mapping[str, tuple[Instruction, ...]]

    @cached_property
    def live(self) -> Mapping[str, frozenset[str]]:
        """Names that each block or one after it reads, but does not define first."""
        live = {label: frozenset[str]() for label in self.blocks}
        changed = True
        while changed:
            changed = False
            for label, code in reversed(self.blocks.items()):
                names = set().union(*(live[n] for n in re.findall(r"label %([\w.]+)", code[-1][1])))
                for result, text in reversed(code):
                    names = (names - {result}) | set(re.findall(r"%[\w.]+", text))
                changed |= names != live[label]
                live[label] = frozenset(names)
        return live


@dataclass(frozen=True)
class Frame:
    """A call under way: the next instruction, the values of names, and the name that its result gets in the caller."""

    function: str
    label: str
    next: int
    env: Mapping[str, Value]
    result: str = ""

    @cached_property
    def key(self) -> int:
        """Hash of everything in the frame."""
        return hash((self.function, self.label, self.next, frozenset(self.env.items()), self.result))


@dataclass(frozen=True)
class Memory:
    """The value at each address that was written."""

    values: Mapping[Pointer, Value]

    @cached_property
    def key(self) -> int:
        """Hash of all values."""
        return hash(frozenset(self.values.items()))


@dataclass(frozen=True)
class State:
    """Memory, the frames of each thread (innermost last), and what blocked threads sleep on."""

    memory: Memory
    threads: tuple[tuple[Frame, ...], ...]
    asleep: tuple[tuple[Pointer, int] | None, ...]

    @property
    def key(self) -> int:
        """Hash of everything in the state."""
        return hash((self.memory.key, *(tuple(f.key for f in thread) for thread in self.threads), self.asleep))

    def with_thread(self, k: int, after: State) -> State:
        """Return the state in which memory and thread `k` are those of `after`."""
        threads = (*self.threads[:k], after.threads[k], *self.threads[k + 1 :])
        asleep = (*self.asleep[:k], after.asleep[k], *self.asleep[k + 1 :])
        return State(after.memory, threads, asleep)


def parse(text: str) -> dict[str, Function]:
    """Parse the functions of a module that are defined in it."""
    text = re.sub(r";.*", "", text)
    text = re.sub(r"getelementptr \(%(\w+), ptr @\w+, i64 0, i32 (\d)\)", r"@\1+\2", text)
    functions = {}
    for name, params, body in re.findall(r"define [^@]*@([\w.]+)\(([^)]*)\)[^{]*\{(.*?)\n\}", text, re.DOTALL):
        blocks, label = dict[str, list[Instruction]](), "entry"
        for line in filter(None, map(str.strip, body.splitlines())):
            if found := re.fullmatch(r"([\w.]+):", line):
                label = found[1]
            else:
                result, equals, rest = line.partition(" = ")
                blocks.setdefault(label, []).append((result, rest) if equals else ("", line))
        names = tuple(p.split()[-1] for p in params.split(",") if p.strip())
        functions[name] = Function(names, {n: tuple(code) for n, code in blocks.items()})
    return functions


def work_function(body: str) -> str:
    """Return `@work`, which executes `body` for each chunk `%chunk` of `%chunks` that it claims."""
    return f"""
define void @work(ptr %data, ptr %claimer, i64 %first, i64 %chunks) {{
entry:
  br label %loop
loop:
  %chunk = phi i64 [ %first, %entry ], [ %following, %loop ]
{body}
  %following = call i64 @tilewright_next_chunk(ptr %claimer)
  %more = icmp sge i64 %following, 0
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


class Violation(AssertionError):
    """An order of steps breaks the protocol."""


class Checker:
    """Explores all orders of steps of threads that begin with calls of `starts`: a function and its arguments.

    `hooks` are called in place of declared functions, with the state and the arguments.
    """

    def __init__(
        self,
        functions: Mapping[str, Function],
        memory: Mapping[Pointer, Value],
        starts: list[tuple[str, list[Value]]],
        hooks: Mapping[str, Callable[[Mapping[Pointer, Value], list[Value]], None]],
    ) -> None:
        self.functions, self.hooks = functions, hooks
        threads = tuple((self.frame(f, args),) for f, args in starts)
        self.first = State(Memory(memory), threads, (None,) * len(starts))
        self.known_steps: dict[tuple[int, ...], list[State]] = {}

    def frame(self, function: str, args: list[Value], result: str = "") -> Frame:
        f = self.functions[function]
        return Frame(function, "entry", 0, dict(zip(f.params, args, strict=True)), result)

    def explore(self, main: int = 0, limit: int = 2_000_000) -> int:
        """Visit every state; return their number.  Violation if thread `main` can no longer end."""
        seen, stack = {self.first.key}, [self.first]
        while stack:
            state = stack.pop()
            following = [s for k in range(len(state.threads)) for s in self.step(state, k)]
            if not following and state.threads[main]:
                raise Violation(f"all threads wait: {state.threads}")
            for s in following:
                if (key := s.key) not in seen:
                    seen.add(key)
                    stack.append(s)
            assert len(seen) < limit, "too many states"
        return len(seen)

    def step(self, state: State, k: int) -> Iterator[State]:
        """Yield the states after the next step of thread `k`: one access that others may observe, and all after it that none can.

        Unless it wakes other threads, it depends on nothing but memory and the thread's own frames.
        """
        if not state.threads[k] or state.asleep[k] is not None:
            return
        if "@futex_wake" in self.next_text(state, k):
            yield from self.new_step(state, k)
            return
        key = (k, state.memory.key, *(f.key for f in state.threads[k]))
        if key not in self.known_steps:
            self.known_steps[key] = list(self.new_step(state, k))
        yield from (state.with_thread(k, after) for after in self.known_steps[key])

    def new_step(self, state: State, k: int) -> Iterator[State]:
        """Yield what `step` does, of a thread that can go on."""
        for after in self.execute(state, k):
            current = after
            while current.threads[k] and current.asleep[k] is None and not self.is_visible(current, k):
                (current,) = self.execute(current, k)
            yield current

    def next_text(self, state: State, k: int) -> str:
        """Return the text of the next instruction of thread `k`."""
        frame = state.threads[k][-1]
        return self.functions[frame.function].blocks[frame.label][frame.next][1]

    def is_visible(self, state: State, k: int) -> bool:
        """Return True if the next instruction of thread `k` accesses a global, sleeps, wakes, or looks at the clock."""
        frame, text = state.threads[k][-1], self.next_text(state, k)
        if text.startswith("call"):
            return "@futex" in text or ("@ticks" in text and frame.label in SPIN_LABELS)
        if not text.startswith(("load", "store", "atomicrmw", "cmpxchg")):
            return False
        addresses = [operand(p, frame.env) for p in re.findall(r"ptr ([%@][\w.+]+)", text)]
        return any(isinstance(a, tuple) and not a[0].startswith("stack") for a in addresses)

    def execute(self, state: State, k: int) -> Iterator[State]:
        """Yield the states after one instruction of thread `k`: two for a look at the clock in a loop."""
        return Execution(self, state, k).run()


class Execution:
    """Execution of the next instruction of thread `k` in a state: one method for each opcode."""

    def __init__(self, checker: Checker, state: State, k: int) -> None:
        self.checker, self.state, self.k = checker, state, k
        *self.outer, self.frame = state.threads[k]
        self.blocks = checker.functions[self.frame.function].blocks
        self.result, self.text = self.blocks[self.frame.label][self.frame.next]
        self.env, self.memory = self.frame.env, state.memory

    def run(self) -> Iterator[State]:
        opcode, _, rest = self.text.partition(" ")
        method = getattr(self, f"_{opcode}", None)
        if method is not None:
            yield from method(rest)
        else:
            yield self.proceed(self._arithmetic(opcode, rest))

    def get(self, name: str) -> Any:
        return operand(name, self.env)

    def match(self, pattern: str, text: str) -> re.Match[str]:
        found = re.match(pattern, text)
        assert found, self.text
        return found

    def with_frames(self, *frames: Frame) -> State:
        """Return the state in which the thread has these frames."""
        threads = (*self.state.threads[: self.k], frames, *self.state.threads[self.k + 1 :])
        return State(self.memory, threads, self.state.asleep)

    def proceed(self, value: Any = None) -> State:
        """Return the state at the next instruction, `value` being the result of this one."""
        env = self.env if not self.result or value is None else {**self.env, self.result: value}
        frame = self.frame
        return self.with_frames(*self.outer, Frame(frame.function, frame.label, frame.next + 1, env, frame.result))

    def write(self, values: Mapping[Pointer, Value]) -> None:
        self.memory = Memory({**self.memory.values, **values})

    def _br(self, rest: str) -> Iterator[State]:
        labels = re.findall(r"label %([\w.]+)", rest)
        condition = re.match(r"i1 ([%\w.]+)", rest)
        label = labels[0] if condition is None or self.get(condition[1]) else labels[1]
        phis = {}
        for name, code in self.blocks[label]:
            if not code.startswith("phi"):
                break
            sources = {block: value for value, block in re.findall(r"\[ ([^,]+), %([\w.]+) \]", code)}
            phis[name] = self.get(sources[self.frame.label])
        live = self.checker.functions[self.frame.function].live[label]
        env = {n: v for n, v in self.env.items() if n in live} | phis
        yield self.with_frames(*self.outer, replace(self.frame, label=label, next=len(phis), env=env))

    def _ret(self, rest: str) -> Iterator[State]:
        depth = f"stack{self.k}.{len(self.outer)}."
        self.memory = Memory({a: v for a, v in self.memory.values.items() if not a[0].startswith(depth)})
        if self.outer and self.frame.result and rest != "void":
            caller = self.outer.pop()
            returned = {self.frame.result: self.get(rest.split()[1])}
            self.outer.append(replace(caller, env={**caller.env, **returned}))
        yield self.with_frames(*self.outer)

    def _call(self, rest: str) -> Iterator[State]:
        found = self.match(r".*?([@%][\w.]+)\((.*)\)", rest)
        args = [self.get(a.split()[-1]) for a in found[2].split(",") if a.strip()]
        name = self.get(found[1])[0]
        if name == "ticks":
            yield self.proceed(0)
            if self.frame.label in SPIN_LABELS:
                yield self.proceed(LATE)
        elif name == "futex_wait":
            address, expected, bits = args
            sleeps = (self.memory.values[address] - expected) & MASKS["i32"] == 0  # type: ignore[operator]  # a word, not an address
            asleep = list(self.state.asleep)
            asleep[self.k] = (address, bits & MASKS["i32"]) if sleeps else None
            yield replace(self.proceed(), asleep=tuple(asleep))
        elif name == "futex_wake":
            address, bits = args
            stay = (s if s and (s[0] != address or not s[1] & bits) else None for s in self.state.asleep)
            yield replace(self.proceed(), asleep=tuple(stay))
        elif name.startswith("llvm."):
            signed = args if ".u" in name else [_signed(a, 64) for a in args]
            yield self.proceed((min(signed) if "min" in name else max(signed)) & MASKS["i64"])
        elif name in self.checker.functions:
            after = replace(self.frame, next=self.frame.next + 1)
            yield self.with_frames(*self.outer, after, self.checker.frame(name, args, self.result))
        else:
            if name in self.checker.hooks:
                self.checker.hooks[name](self.memory.values, args)
            yield self.proceed()

    def _alloca(self, rest: str) -> Iterator[State]:
        base = f"stack{self.k}.{len(self.outer)}.{self.result}"
        self.write({(base, offset): 0 for offset in range(0, STRUCT_BYTES[rest.split(",", maxsplit=1)[0]], 8)})
        yield self.proceed((base, 0))

    def _getelementptr(self, rest: str) -> Iterator[State]:
        found = self.match(r"([%\w]+), ptr ([%@\w.+]+), i64 ([%\w]+)(?:, i32 (\d))?", rest)
        base, offset = self.get(found[2])
        yield self.proceed((base, offset + self.get(found[3]) * STRUCT_BYTES[found[1]] + 8 * int(found[4] or 0)))

    def _load(self, rest: str) -> Iterator[State]:
        yield self.proceed(self.memory.values.get(self.get(self.match(r".*ptr ([%@][\w.+]+)", rest)[1]), 0))

    def _store(self, rest: str) -> Iterator[State]:
        found = self.match(r"(?:atomic )?\w+ ([-%@\w.+]+), ptr ([%@][\w.+]+)", rest)
        self.write({self.get(found[2]): self.get(found[1])})
        yield self.proceed()

    def _atomicrmw(self, rest: str) -> Iterator[State]:
        found = self.match(r"(add|sub) ptr ([%@][\w.+]+), (i32|i64) ([-%\w.]+)", rest)
        address, change = self.get(found[2]), self.get(found[4])
        old: Any = self.memory.values.get(address, 0)
        self.write({address: (old + (change if found[1] == "add" else -change)) & MASKS[found[3]]})
        yield self.proceed(old)

    def _cmpxchg(self, rest: str) -> Iterator[State]:
        found = self.match(r"ptr ([%@][\w.+]+), \w+ ([%\w.]+), \w+ ([%\w.]+)", rest)
        address, expected, new = map(self.get, found.groups())
        old = self.memory.values.get(address, 0)
        if old == expected:
            self.write({address: new})
        yield self.proceed((old, int(old == expected)))

    def _extractvalue(self, rest: str) -> Iterator[State]:
        found = self.match(r"\{[^}]*\} ([%\w.]+), (\d)", rest)
        yield self.proceed(self.get(found[1])[int(found[2])])

    def _icmp(self, rest: str) -> Iterator[State]:
        predicate, type_, *names = self.match(r"(\w+) (\w+) ([-%\w.]+), ([-%\w.]+)", rest).groups()
        x, y = map(self.get, names)
        if predicate in ("eq", "ne"):
            equal = x == y if type_ == "ptr" else (x - y) & MASKS[type_] == 0
            yield self.proceed(int(equal == (predicate == "eq")))
            return
        bits = int(type_[1:])
        x, y = (_signed(v, bits) if predicate.startswith("s") else v & MASKS[type_] for v in (x, y))
        yield self.proceed(int({"gt": x > y, "ge": x >= y, "lt": x < y, "le": x <= y}[predicate[1:]]))

    def _select(self, rest: str) -> Iterator[State]:
        found = self.match(r"i1 ([%\w.]+), \w+ ([-%\w.]+), \w+ ([-%\w.]+)", rest)
        yield self.proceed(self.get(found[2] if self.get(found[1]) else found[3]))

    def _ptrtoint(self, rest: str) -> Iterator[State]:
        yield self.proceed(self.get(rest.split()[1])[1])

    def _trunc(self, rest: str) -> Iterator[State]:
        _, name, _, type_ = rest.split()
        yield self.proceed(self.get(name) & MASKS[type_])

    def _sext(self, rest: str) -> Iterator[State]:
        source, name, _, type_ = rest.split()
        yield self.proceed(_signed(self.get(name), int(source[1:])) & MASKS[type_])

    def _arithmetic(self, opcode: str, rest: str) -> int:
        found = self.match(r"(?:\w+ )*(i32|i64|i1) ([-%\w.]+), ([-%\w.]+)", rest)
        x, y = self.get(found[2]), self.get(found[3])
        if opcode == "ashr":
            x = _signed(x, int(found[1][1:]))
        return int(OPERATIONS[opcode](x, y)) & MASKS[found[1]]


OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": op.add, "sub": op.sub, "mul": op.mul, "udiv": op.floordiv, "shl": op.lshift, "lshr": op.rshift, "ashr": op.rshift,
    "and": op.and_, "or": op.or_, "xor": op.xor,
}  # fmt: skip


def operand(text: str, env: Mapping[str, Value]) -> Value:
    """Return the value of an operand: a name, the address of a global, or a constant."""
    if text.startswith("%"):
        return env[text]
    if text.startswith("@"):
        name, _, field = text[1:].partition("+")
        return name, 8 * int(field or 0)
    return NULL if text == "null" else int(text)


def _signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x
