"""Tile IR as text; the grammar stands in compiler.ir.tile and, for whole programs, in compiler.ir.tile_parser.

kernel @scale(in %x: f32[n], out %y: f32[n]) {
  parallel %i in 0..n tile 16 lanes 16 {
    store %x[%i] * 2.0 + 1.0, %y[%i]
  }
}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from compiler.ir import scalar, tile
from compiler.ir.atoms import constant, spell
from compiler.ir.graph import Data, stored
from compiler.ir.index import Dim
from compiler.ir.lexer import quote
from compiler.ir.literal import storage, write_array, write_value
from compiler.ir.printer import WIDTH, global_name, indent, value_name, write_header, write_size
from compiler.ir.resources import write_resources
from compiler.ir.scalar import PRIMITIVES, Call, Const, Expr, IndexValue, Load, Ref
from compiler.ir.sizes import kernel_sizes, program_sizes
from compiler.ir.tile import (
    ANY_USES,
    Check,
    Copy,
    For,
    Kernel,
    Launch,
    Let,
    Local,
    Prefetch,
    Program,
    Range,
    Reduce,
    Repeat,
    Slice,
    Step,
    Stmt,
    Store,
)
from compiler.ir.types import DType, TensorType, boolean, i64

PRECEDENCE: Mapping[str, int] = {
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 1),
    "|": 2, "^": 3, "&": 4, "<<": 5, ">>": 5, "+": 6, "-": 6, "*": 7, "/": 7,
}  # fmt: skip
"""How tightly each infix primitive binds: Python's order, but comparisons do not chain."""

UNARY = 8
DEPTH, SIZE = 40, 200
"""An expression that is deeper, or larger when its shared parts are written out, is spread over several statements."""


def print_kernel(kernel: Kernel) -> str:
    """`kernel` as text; expressions that would fill pages are spread over fresh `%t0 = ...` bindings."""
    names = _Names(kernel.body, {p.name: p.type.dtype for p in kernel.params})
    params = [write_size(s) for s in kernel_sizes(kernel)]
    params += [f"{p.role} {value_name(p.name)}: {p.type}" for p in kernel.params]
    lines = [indent(line) for s in kernel.body for line in names.statement(s)]
    shared = f" shared{_write_condition(kernel.surplus)}" if kernel.surplus != 0 else ""
    return "\n".join([write_header(f"kernel {global_name(kernel.name)}", params, shared), *lines, "}"])


def print_expr(e: Expr) -> str:
    """`e` on one line, every variable written with its `%`."""
    return _Names((), {}, everything_bound=True).expr(e)


class _Names:
    """What spelling an expression needs to know of its kernel: bound names, dtypes of buffers, fresh names."""

    def __init__(self, body: tile.Block, buffers: Mapping[str, DType], everything_bound: bool = False) -> None:
        stmts = list(tile.walk(body))
        self.bound = {s.name for s in stmts if isinstance(s, (Let, Reduce))}
        self.bound |= {r.var for s in stmts for r in tile.ranges(s)}
        self.buffers = {**buffers, **{s.buffer: s.type.dtype for s in stmts if isinstance(s, Local)}}
        self.everything_bound = everything_bound
        self.fresh = (n for k in range(1 << 30) if (n := f"t{k}") not in self.bound)

    # statements

    def statement(self, s: Stmt) -> Iterator[str]:
        """The lines of one statement."""
        if isinstance(s, Let):
            yield from (lines := self.spread(s.value))[:-1]
            yield f"{value_name(s.name)} = {lines[-1]}"
        elif isinstance(s, Store):
            *lines, value = self.spread(s.value, self.buffers.get(s.buffer))
            yield from lines
            stream = "" if s.stream is None else f" stream{_write_condition(s.stream)}"
            yield f"store {value}, {self.element(s.buffer, s.index)}{stream}"
        elif isinstance(s, Local):
            yield f"local {value_name(s.buffer)}: {s.type}"
        elif isinstance(s, Check):
            yield f"check {value_name(s.name)} in {self.dim(s.low)}..{self.dim(s.high)}"
        elif isinstance(s, Prefetch):
            level = f" level {s.level}" if s.level > 1 else ""
            uses = f" uses {s.interval}" if s.uses != ANY_USES else ""
            yield f"prefetch {self.element(s.buffer, s.index)}{level}{uses}"
        elif isinstance(s, For):
            lines = [line for inner in s.body for line in self.statement(inner)]
            head = f"{'parallel' if s.parallel else 'for'} {self.range(s.range)} {{"
            yield "\n".join([head, *map(indent, lines), "}"])
        else:
            yield self.reduce(s)

    def reduce(self, s: Reduce) -> str:
        lines = [line for inner in s.body for line in self.statement(inner)]
        *more, value = self.spread(s.value)
        lines += [*more, f"yield {value}"]
        head = f"{value_name(s.name)} = reduce {s.op} {', '.join(map(self.range, s.ranges))} {{"
        short = f"{head} {lines[0]} }}"
        return short if len(lines) == 1 and len(short) <= WIDTH else "\n".join([head, *map(indent, lines), "}"])

    def range(self, r: Range) -> str:
        options = ("tile", r.tile, 1), ("lanes", r.lanes, 0), ("unroll", r.unroll, 1), ("chains", r.chains, 1)
        words = [f"{word} {count}" for word, count, default in options if count != default]
        return " ".join([f"{value_name(r.var)} in {self.dim(r.lo)}..{self.dim(r.hi)}", *words])

    def dim(self, d: Dim) -> str:
        return spell(d, self.variable)

    def variable(self, name: str) -> str:
        spelled = value_name(name)
        return spelled if self.everything_bound or name in self.bound or '"' in spelled else name

    def element(self, buffer: str, index: tuple[Dim, ...]) -> str:
        return f"{value_name(buffer)}[{', '.join(map(self.dim, index))}]"

    # expressions

    def spread(self, e: Expr, expected: DType | None = None) -> list[str]:
        """Bindings for the parts of an overlarge `e`, then the text of what is left."""
        cuts = _cuts(e)
        if not cuts:
            return [self.expr(e, expected=expected)]
        lines: list[str] = []
        shown: dict[int, Expr] = {}
        for part in e.parts:
            value = scalar.with_args(part, tuple(shown[id(a)] for a in part.args))
            if id(part) in cuts:
                name = next(self.fresh)
                lines.append(f"{value_name(name)} = {self.expr(value)}")
                value = Ref(part.dtype, name)
            shown[id(part)] = value
        return [*lines, self.expr(shown[id(e)], expected=expected)]

    def expr(self, e: Expr, outer: int = 0, expected: DType | None = None) -> str:
        """`e` as an operand of what binds as tightly as `outer`; a literal of dtype `expected` needs no type."""
        if isinstance(e, Const):
            return _number(e) if e.dtype in (expected, boolean) else f"{_number(e)}:{e.dtype}"
        if isinstance(e, Ref):
            return value_name(e.name)
        if isinstance(e, IndexValue):
            return f"index{'' if e.dtype == i64 else f'<{e.dtype}>'}({self.dim(e.index)})"
        if isinstance(e, Load):
            return self.load(e)
        assert isinstance(e, Call)
        return self.call(e, outer)

    def load(self, e: Load) -> str:
        element = self.element(e.buffer, e.index)
        if e.mask is None:
            return element
        other = f", {self.expr(e.other, expected=e.dtype)}" if e.other is not None else ""
        return f"load({element}, {self.expr(e.mask)}{other})"

    def call(self, e: Call, outer: int) -> str:
        if e.primitive in ("cast", "bitcast"):
            return f"{e.primitive}<{e.dtype}>({self.expr(e.operands[0])})"
        expected = _literal_dtypes(e)
        infix = PRIMITIVES[e.primitive].infix
        if infix:
            level = PRECEDENCE[infix]
            left = self.expr(e.operands[0], level + (level == 1), expected[0])
            text = f"{left} {infix} {self.expr(e.operands[1], level + 1, expected[1])}"
            return f"({text})" if level < outer else text
        if e.primitive == "neg":
            text = self.expr(e.operands[0], UNARY)
            return f"-({text})" if isinstance(e.operands[0], Const) or text.startswith("-") else f"-{text}"
        arguments = [self.expr(a, expected=x) for a, x in zip(e.operands, expected, strict=True)]
        return f"{e.primitive}({', '.join(arguments)})"


def _cuts(e: Expr) -> set[int]:
    """The parts of an overlarge `e` (by identity) that get a name: the shared ones, and every `DEPTH` levels one."""
    size: dict[int, int] = {}
    depth: dict[int, int] = {}
    uses: Counter[int] = Counter()
    for part in e.parts:
        size[id(part)] = 1 + sum(size[id(a)] for a in part.args)
        depth[id(part)] = 1 + max((depth[id(a)] for a in part.args), default=0)
        uses.update(id(a) for a in part.args)
    if size[id(e)] <= SIZE and depth[id(e)] <= DEPTH:
        return set()
    cuts: set[int] = set()
    for part in e.parts:
        depth[id(part)] = 1 + max((depth[id(a)] for a in part.args), default=0)
        if part is not e and part.args and (uses[id(part)] > 1 or depth[id(part)] == DEPTH):
            cuts.add(id(part))
            depth[id(part)] = 1
    return cuts


def _literal_dtypes(e: Call) -> list[DType | None]:
    """For each operand, the dtype that the parser gives to a bare number there."""
    choice = PRIMITIVES[e.primitive].result == "branch"
    free = e.operands[choice:]
    typed = next((a.dtype for a in free if not isinstance(a, Const) or a.dtype == boolean), None)
    bare = [typed or (None if k == 0 else free[0].dtype) for k in range(len(free))]
    return [boolean, *bare] if choice else bare


def _number(e: Const) -> str:
    return str(e.value).lower() if isinstance(e.value, bool) else repr(e.value)


def _write_condition(surplus: Dim) -> str:
    """` if a >= b` for what must not be negative; nothing for 0."""
    least = max(0, -constant(surplus))
    return f" if {surplus + least} >= {least}" if surplus != 0 else ""


def print_program(program: Program, *, full: bool = False) -> str:
    """`program` as text; `full` appends the contents of large constants."""
    resources = program_resources(program)
    text = "\n".join(["program {", *(indent(item) for item in _items(program, resources)), "}"])
    return f"{text}\n{write_resources(resources)}" if full and resources else text


def program_resources(program: Program) -> dict[str, Data]:
    """The constants that `print_program` names without writing them out."""
    data = {name: _data(array, program.buffers[name]) for name, array in program.constants.items()}
    return {name: d for name, d in data.items() if write_array(d) is None}


def _data(array: Any, type: TensorType) -> Data:
    """`array` as stored bits; a bf16 constant may come as float32."""
    if isinstance(array, Data):
        return array
    values = np.asarray(array)
    return Data(type.dtype, values if values.dtype == storage(type.dtype) else stored(values, type.dtype))


def _items(p: Program, resources: Mapping[str, Data]) -> Iterator[str]:
    yield from map(write_size, program_sizes(p))
    for role, names in ("input", p.inputs), ("output", p.outputs):
        yield from (f"{role} {value_name(n)}: {p.buffers[n]}" for n in names)
    for name, array in p.constants.items():
        contents = global_name(name) if name in resources else write_array(_data(array, p.buffers[name]))
        yield f"constant {value_name(name)}: {p.buffers[name]} {contents}"
    declared = {*p.inputs, *p.outputs, *p.constants, *p.slices}
    yield from (f"buffer {value_name(n)}: {t}" for n, t in p.buffers.items() if n not in declared)
    yield from map(print_kernel, p.kernels.values())
    yield from map(_step, p.steps)


def _step(s: Step) -> str:
    if isinstance(s, Copy):
        return f"copy {value_name(s.source)} -> {value_name(s.target)}"
    if isinstance(s, Slice):
        return f"slice {value_name(s.name)} = {value_name(s.buffer)}[{spell(s.index, value_name)}]"
    if isinstance(s, Repeat):
        return "\n".join([f"repeat {value_name(s.var)} in 0..{s.count} {{", *(indent(_step(i)) for i in s.steps), "}"])
    purpose = f" for {quote(s.node)}" if s.node else ""
    arguments = f"({', '.join(map(value_name, s.arguments))})"
    if isinstance(s, Launch):
        return f"launch {global_name(s.kernel)}{arguments}{purpose}"
    results = f" -> {', '.join(map(value_name, s.results))}" if s.results else ""
    attrs = ", ".join(f"{k}={write_value(v)}" for k, v in s.attrs)
    return f"opaque {global_name(s.op)}{arguments}{results}{f' {{{attrs}}}' if attrs else ''}{purpose}"
