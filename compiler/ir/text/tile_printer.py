"""Printer of Tile IR; for the grammar see compiler.ir.tile.kernel and, for programs, compiler.ir.text.tile_parser.

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

from compiler.ir import scalar
from compiler.ir.graph.constant import ConstantData, to_storage
from compiler.ir.scalar import PRIMITIVES, Const, Expr, IndexValue, Load, PrimitiveCall, Ref
from compiler.ir.symbolic.index_atoms import constant_term, format_index
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.text.graph_printer import (
    MAX_HEADER_WIDTH,
    format_global_name,
    format_value_name,
    indent,
    write_dynamic_size,
    write_header,
)
from compiler.ir.text.lexer import quote
from compiler.ir.text.literal import write_array, write_value
from compiler.ir.text.resources import write_resources
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.dynamic_sizes import program_dynamic_sizes
from compiler.ir.tile.kernel import (
    ANY_REUSE,
    AsyncCopy,
    BoundsCheck,
    For,
    Kernel,
    Let,
    Local,
    Prefetch,
    Range,
    Reduce,
    Stmt,
    Store,
    Wait,
)
from compiler.ir.tile.program import Copy, Launch, Program, Repeat, Step, View
from compiler.ir.types import DType, TensorType, boolean, i64

PRECEDENCE: Mapping[str, int] = {
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 1),
    "|": 2, "^": 3, "&": 4, "<<": 5, ">>": 5, "+": 6, "-": 6, "*": 7, "/": 7,
}  # fmt: skip
"""Precedence of each infix primitive: Python's, but comparisons do not chain."""

UNARY_PRECEDENCE = 8
"""Precedence of unary minus."""

MAX_DEPTH, MAX_SIZE = 40, 200
"""Largest depth and size (nodes, counted once per use) of an expression in one statement; chosen empirically."""


def print_kernel(kernel: Kernel) -> str:
    """Return `kernel` as text; large expressions are split into bindings of fresh names `%t0 = ...`."""
    return print_kernel_parts(kernel)[0]


def print_kernel_parts(kernel: Kernel) -> tuple[str, int, dict[int, int]]:
    """Return `kernel` as text, the number of lines of its header, and that of each statement by its `id`."""
    printer = _KernelPrinter(kernel.body, {p.name: p.type.dtype for p in kernel.params})
    params = [write_dynamic_size(s) for s in kernel.dynamic_sizes]
    params += [f"{p.role} {format_value_name(p.name)}: {p.type}{' descriptor' * p.descriptor}" for p in kernel.params]
    max_chunks = "" if kernel.max_chunks is None else f" max_chunks {kernel.max_chunks}"
    numbers = {"warps": kernel.warps, "max_registers": kernel.max_registers, "persistent": kernel.persistent}
    schedule = max_chunks + "".join(f" {what} {n}" for what, n in numbers.items() if n)
    schedule += " warp_specialized" * kernel.warp_specialized + f" subtiles {kernel.subtiles}" * bool(kernel.subtiles)
    header = write_header(f"kernel {format_global_name(kernel.name)}", params, schedule)
    text = "\n".join([header, *map(indent, printer.print_block(kernel.body)), "}"])
    return text, 1 + header.count("\n"), printer.heights


def print_expr(e: Expr) -> str:
    """Return `e` on one line, every variable with its `%`."""
    return _KernelPrinter((), {}, all_names_bound=True).print_expr(e)


def print_prefetch(s: Prefetch) -> str:
    """Return a prefetch on one line, every variable with its `%`."""
    return _KernelPrinter((), {}, all_names_bound=True).print_prefetch(s)


class _KernelPrinter:
    """Prints statements and expressions in the context of a kernel: bound names, dtypes of buffers, fresh names."""

    def __init__(self, body: tile.Block, buffers: Mapping[str, DType], all_names_bound: bool = False) -> None:
        stmts = list(tile.walk(body))
        self.bound_names = {s.name for s in stmts if isinstance(s, (Let, Reduce))}
        self.bound_names |= {r.var for s in stmts for r in tile.stmt_ranges(s)}
        self.buffers = {**buffers, **{s.buffer: s.type.dtype for s in stmts if isinstance(s, Local)}}
        self.all_names_bound = all_names_bound
        self.fresh_names = (n for k in range(1 << 30) if (n := f"t{k}") not in self.bound_names)
        self.heights: dict[int, int] = {}  # number of lines of each printed statement, by its id

    # statements

    def print_block(self, body: tile.Block) -> list[str]:
        """Return the text of each statement of a block."""
        texts = ["\n".join(self.print_stmt(s)) for s in body]
        self.heights |= {id(s): 1 + text.count("\n") for s, text in zip(body, texts, strict=True)}
        return texts

    def print_stmt(self, s: Stmt) -> Iterator[str]:
        """Yield the lines of one statement."""
        if isinstance(s, Let):
            yield from (lines := self.split_expr(s.value))[:-1]
            yield f"{format_value_name(s.name)} = {lines[-1]}"
        elif isinstance(s, Store):
            *lines, value = self.split_expr(s.value, self.buffers.get(s.buffer))
            yield from lines
            condition = "" if s.nontemporal is None else f" nontemporal{write_condition(s.nontemporal)}"
            yield f"store {value}, {self.print_element(s.buffer, s.index)}{condition}"
        elif isinstance(s, Local):
            space = f" in {s.space}" if s.space else ""
            yield f"local {format_value_name(s.buffer)}: {s.type}{space}"
        elif isinstance(s, BoundsCheck):
            yield f"check {format_value_name(s.name)} in {self.print_dim(s.low)}..{self.print_dim(s.high)}"
        elif isinstance(s, Prefetch):
            yield self.print_prefetch(s)
        elif isinstance(s, AsyncCopy):
            source, target = (self.print_element(name, index) for name, index, _ in s.boxes)
            yield f"copy_async {source} -> {target} size {', '.join(map(self.print_dim, s.sizes))}"
        elif isinstance(s, Wait):
            yield f"wait {format_value_name(s.buffer)}{f' pending {s.pending}' if s.pending else ''}"
        elif isinstance(s, For):
            lines = self.print_block(s.body)
            head = f"{'parallel' if s.parallel else 'for'} {self.print_range(s.range)} {{"
            yield "\n".join([head, *map(indent, lines), "}"])
        else:
            yield self.print_reduce(s)

    def print_prefetch(self, s: Prefetch) -> str:
        level = f" level {s.level}" if s.level > 1 else ""
        reuse = f" reuse {s.reuse_text}" if s.reuse != ANY_REUSE else ""
        return f"prefetch {self.print_element(s.buffer, s.index)}{level}{reuse}"

    def print_reduce(self, s: Reduce) -> str:
        lines = self.print_block(s.body)
        *more, value = self.split_expr(s.value)
        lines += [*more, f"yield {value}"]
        head = f"{format_value_name(s.name)} = reduce {s.op} {', '.join(map(self.print_range, s.ranges))} {{"
        one_line = f"{head} {lines[0]} }}"
        if len(lines) == 1 and len(one_line) <= MAX_HEADER_WIDTH:
            return one_line
        return "\n".join([head, *map(indent, lines), "}"])

    def print_range(self, r: Range) -> str:
        defaults = {"tile": 1, "lanes": 0, "unroll": 1, "accumulators": 1, "stages": 1}
        options = {name: getattr(r, name) for name in defaults}
        words = [f"{name} {value}" for name, value in options.items() if value != defaults[name]]
        words += ["balanced"] * r.balanced
        return " ".join([f"{format_value_name(r.var)} in {self.print_dim(r.lo)}..{self.print_dim(r.hi)}", *words])

    def print_dim(self, d: Dim) -> str:
        return format_index(d, self.print_variable)

    def print_variable(self, name: str) -> str:
        text = format_value_name(name)
        return text if self.all_names_bound or name in self.bound_names or '"' in text else name

    def print_element(self, buffer: str, index: tuple[Dim, ...]) -> str:
        return f"{format_value_name(buffer)}[{', '.join(map(self.print_dim, index))}]"

    # expressions

    def split_expr(self, e: Expr, expected: DType | None = None) -> list[str]:
        """Return bindings of subexpressions if `e` is large, then the text of `e` in terms of them."""
        named = _subexprs_to_name(e)
        lines: list[str] = []
        memo: dict[int, Expr] = {}
        for x in e.subexprs if named else ():
            value = scalar.with_args(x, tuple(memo[id(a)] for a in x.args))
            if id(x) in named:
                name = next(self.fresh_names)
                lines.append(f"{format_value_name(name)} = {self.print_expr(value)}")
                value = Ref(x.dtype, name)
            memo[id(x)] = value
        return [*lines, self.print_expr(memo.get(id(e), e), expected=expected)]

    def print_expr(self, e: Expr, outer_precedence: int = 0, expected: DType | None = None) -> str:
        """Return `e` as an operand of an operator of `outer_precedence`; literals of dtype `expected` need no type."""
        if isinstance(e, Const):
            return _print_const(e) if e.dtype in (expected, boolean) else f"{_print_const(e)}:{e.dtype}"
        if isinstance(e, Ref):
            return format_value_name(e.name)
        if isinstance(e, IndexValue):
            return f"index{'' if e.dtype == i64 else f'<{e.dtype}>'}({self.print_dim(e.index)})"
        if isinstance(e, Load):
            return self.print_load(e)
        assert isinstance(e, PrimitiveCall)
        return self.print_call(e, outer_precedence)

    def print_load(self, e: Load) -> str:
        element = self.print_element(e.buffer, e.index)
        if e.mask is None:
            return element
        other = f", {self.print_expr(e.other, expected=e.dtype)}" if e.other is not None else ""
        return f"load({element}, {self.print_expr(e.mask)}{other})"

    def print_call(self, e: PrimitiveCall, outer_precedence: int) -> str:
        if PRIMITIVES[e.primitive].result_rule == "given":
            operands = ", ".join(self.print_expr(a) for a in e.operands)
            return f"{e.primitive}<{e.dtype}>({operands})"
        expected = _literal_dtypes(e)
        if infix := PRIMITIVES[e.primitive].infix:
            precedence = PRECEDENCE[infix]
            left = self.print_expr(e.operands[0], precedence + (precedence == 1), expected[0])
            text = f"{left} {infix} {self.print_expr(e.operands[1], precedence + 1, expected[1])}"
            return f"({text})" if precedence < outer_precedence else text
        if e.primitive == "neg":
            text = self.print_expr(e.operands[0], UNARY_PRECEDENCE)
            return f"-({text})" if isinstance(e.operands[0], Const) or text.startswith("-") else f"-{text}"
        arguments = [self.print_expr(a, expected=x) for a, x in zip(e.operands, expected, strict=True)]
        return f"{e.primitive}({', '.join(arguments)})"


def _subexprs_to_name(e: Expr) -> set[int]:
    """Return the ids of the subexpressions of a large `e` to name: shared ones, and one every `MAX_DEPTH` levels."""
    size: dict[int, int] = {}
    depth: dict[int, int] = {}
    uses: Counter[int] = Counter()
    for x in e.subexprs:
        size[id(x)] = 1 + sum(size[id(a)] for a in x.args)
        depth[id(x)] = 1 + max((depth[id(a)] for a in x.args), default=0)
        uses.update(id(a) for a in x.args)
    if size[id(e)] <= MAX_SIZE and depth[id(e)] <= MAX_DEPTH:
        return set()
    named: set[int] = set()
    for x in e.subexprs:
        depth[id(x)] = 1 + max((depth[id(a)] for a in x.args), default=0)
        if x is not e and x.args and (uses[id(x)] > 1 or depth[id(x)] == MAX_DEPTH):
            named.add(id(x))
            depth[id(x)] = 1
    return named


def _literal_dtypes(e: PrimitiveCall) -> list[DType | None]:
    """Return the dtype that the parser infers for a bare number in place of each operand."""
    has_condition = PRIMITIVES[e.primitive].result_rule == "branch"
    values = e.operands[has_condition:]
    typed = next((a.dtype for a in values if not isinstance(a, Const) or a.dtype == boolean), None)
    inferred = [typed or (None if k == 0 else values[0].dtype) for k in range(len(values))]
    return [boolean, *inferred] if has_condition else inferred


def _print_const(e: Const) -> str:
    return str(e.value).lower() if isinstance(e.value, bool) else repr(e.value)


def write_condition(condition: Dim) -> str:
    """Return ` if a >= b` for the condition a - b >= 0 with b >= 0; an empty string for the constant 0."""
    b = max(0, -constant_term(condition))
    return f" if {condition + b} >= {b}" if condition != 0 else ""


def print_program(program: Program, *, full: bool = False) -> str:
    """Return `program` as text; `full` appends the contents of large constants."""
    resources = program_resources(program)
    text = "\n".join(["program {", *(indent(item) for item in _program_items(program, resources)), "}"])
    return f"{text}\n{write_resources(resources)}" if full and resources else text


def program_resources(program: Program) -> dict[str, ConstantData]:
    """Return the constants that `print_program` writes as `@name`."""
    data = {name: _stored_data(array, program.buffers[name]) for name, array in program.constants.items()}
    return {name: d for name, d in data.items() if write_array(d) is None}


def _stored_data(array: Any, type: TensorType) -> ConstantData:
    """Return `array` as `ConstantData`; an array of an encoded type may hold values or codes."""
    if isinstance(array, ConstantData):
        return array
    values = np.asarray(array)
    is_stored = values.dtype == type.dtype.storage
    return ConstantData(type.dtype, values if is_stored else to_storage(values, type.dtype))


def _program_items(p: Program, resources: Mapping[str, ConstantData]) -> Iterator[str]:
    yield from map(write_dynamic_size, program_dynamic_sizes(p))
    yield from (f"input {format_value_name(n)}: {p.buffers[n]}" for n in p.inputs)
    for name in p.outputs:
        written = f" -> {format_value_name(p.output_aliases[name])}" if name in p.output_aliases else ""
        yield f"output {format_value_name(name)}: {p.buffers[name]}{written}"
    for name, array in p.constants.items():
        contents = format_global_name(name) if name in resources else write_array(_stored_data(array, p.buffers[name]))
        yield f"constant {format_value_name(name)}: {p.buffers[name]} {contents}"
    declared = {*p.inputs, *p.outputs, *p.constants, *p.views}
    yield from (f"buffer {format_value_name(n)}: {t}" for n, t in p.buffers.items() if n not in declared)
    yield from map(print_kernel, p.kernels.values())
    yield from map(_print_step, p.steps)


def _print_step(s: Step) -> str:
    if isinstance(s, Copy):
        return f"copy {format_value_name(s.source)} -> {format_value_name(s.target)}"
    if isinstance(s, View):
        ends = (s.index,) if s.count is None else (s.index, s.stop)
        entries = ":".join(format_index(d, format_value_name) for d in ends)
        return f"view {format_value_name(s.name)} = {format_value_name(s.buffer)}[{entries}]"
    if isinstance(s, Repeat):
        body = [indent(_print_step(inner)) for inner in s.steps]
        return "\n".join([f"repeat {format_value_name(s.var)} in 0..{s.count} {{", *body, "}"])
    node = f" for {quote(s.node)}" if s.node else ""
    arguments = f"({', '.join(map(format_value_name, s.arguments))})"
    if isinstance(s, Launch):
        return f"launch {format_global_name(s.kernel)}{arguments}{node}"
    results = f" -> {', '.join(map(format_value_name, s.results))}" if s.results else ""
    attrs = ", ".join(f"{k}={write_value(v)}" for k, v in s.attrs)
    return f"opaque {format_global_name(s.op)}{arguments}{results}{f' {{{attrs}}}' if attrs else ''}{node}"
