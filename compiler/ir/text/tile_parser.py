"""Parser of Tile IR; the grammars of kernels and expressions are in compiler.ir.tile.kernel and .text.expr_parser.

program ::= "program" "{" item* "}" resources?
item    ::= size | ("input" | "buffer") %name ":" type
          | "output" %name ":" type ("->" %input)?               written back into an input
          | "constant" %name ":" type (array | @name)
          | kernel
          | "launch" @kernel "(" %name,* ")" ("for" string)?
          | "opaque" @op "(" %name,* ")" ("->" %name,*)? attrs? ("for" string)?
          | "copy" %name "->" %name
          | "view" %name "=" %name "[" dim "]"                    an entry along the first dimension
          | "repeat" %var "in" "0" ".." dim "{" step* "}"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compiler.errors import did_you_mean
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.structure import IDENTITIES
from compiler.ir.symbolic.index_expr import Dim, variables
from compiler.ir.text.expr_parser import NameScope, as_typed_expr, expect_name, read_expr, read_typed_expr
from compiler.ir.text.lexer import Cursor, parse_all
from compiler.ir.text.literal import read_array, read_attrs
from compiler.ir.text.resources import Resources, parse_with_resources
from compiler.ir.text.type_parser import read_dim, read_dims, read_size_declaration, read_type
from compiler.ir.tile.kernel import (
    ANY_REUSE,
    ROLES,
    AsyncCopy,
    Block,
    BoundsCheck,
    For,
    Kernel,
    Let,
    Local,
    Param,
    Prefetch,
    Range,
    Reduce,
    ReuseRange,
    Stmt,
    Store,
    Wait,
)
from compiler.ir.tile.program import Copy, Launch, OpaqueCall, Program, Repeat, Step, View, view_type
from compiler.ir.types import TensorType, i64

KEYWORDS = ("store", "local", "check", "prefetch", "copy_async", "wait", "for", "parallel")


def parse_kernel(text: str) -> Kernel:
    """Parse a kernel.  Raises ParseError."""
    return parse_all(text, _read_kernel)


def parse_program(text: str, resources: Mapping[str, ConstantData] | None = None) -> Program:
    """Parse a program; `resources` gives the contents of `@name` constants.  Raises ParseError."""
    return parse_with_resources(text, _read_program, resources)


# kernels and statements


def _read_kernel(c: Cursor) -> Kernel:
    c.expect("kernel")
    name = c.expect_kind("global", "the kernel's @name").text
    scope = NameScope()
    read = c.read_list("(", lambda: read_size_declaration(c) if c.next_is("size") else _read_param(c, scope), ")")
    max_chunks = read_dim(c) if c.accept("max_chunks") else None
    warps = c.expect_integer() if c.accept("warps") else 0
    max_registers = c.expect_integer() if c.accept("max_registers") else 0
    persistent = c.expect_integer() if c.accept("persistent") else 0
    warp_specialized = c.accept("warp_specialized")
    subtiles = c.expect_integer() if c.accept("subtiles") else 0
    body = _read_body(c, scope)
    c.index_names = None
    params = tuple(p for p in read if p is not None)
    return Kernel(name, params, body, max_chunks, warps, max_registers, persistent, warp_specialized, subtiles)


def read_condition(c: Cursor) -> Dim:
    """Read the condition `if a >= b` as the expression `a - b`, to be compared with 0."""
    _, lhs, _ = c.expect("if"), read_dim(c), c.expect(">=")
    return lhs - c.expect_integer()


def _read_param(c: Cursor, scope: NameScope) -> Param:
    role = c.take().text if c.next_is(*ROLES) else "in"
    at, (name, type) = c.next, _read_buffer(c)
    if name in scope.buffers:
        raise c.error(f"{at} is defined twice", at)
    scope.buffers[name] = type.dtype
    return Param(name, type, role, c.accept("descriptor"))


def _read_buffer(c: Cursor) -> tuple[str, TensorType]:
    name, _ = c.expect_kind("value", "a buffer's %name").text, c.expect(":")
    return name, read_type(c)


def _read_body(c: Cursor, scope: NameScope) -> Block:
    c.expect("{")
    body = _read_block(c, scope.child_scope())
    c.expect("}")
    return body


def _read_block(c: Cursor, scope: NameScope) -> Block:
    body: list[Stmt] = []
    while c.next.kind == "value" or c.next_is(*KEYWORDS):
        body.append(_read_statement(c, scope))
    return tuple(body)


def _read_statement(c: Cursor, scope: NameScope) -> Stmt:
    c.index_names = scope.values
    if c.next_is("for", "parallel"):
        parallel = c.take().text == "parallel"
        inner = scope.child_scope()
        c.index_names = inner.values
        return For(_read_range(c, inner), _read_body(c, inner), parallel)
    if c.accept("store"):
        return _read_store(c, scope)
    if c.accept("local"):
        buffer, type = _read_buffer(c)
        scope.buffers[buffer] = type.dtype
        return Local(buffer, type, c.expect_kind("word", "a memory space").text if c.accept("in") else "")
    if c.accept("check"):
        name = c.expect_kind("value", "a %name").text
        return BoundsCheck(name, *_read_bounds(c))
    if c.accept("prefetch"):
        return read_prefetch(c, expect_name(c, scope.buffers, "buffer").text)
    if c.accept("copy_async"):
        return _read_async_copy(c, scope)
    if c.accept("wait"):
        buffer = expect_name(c, scope.buffers, "buffer").text
        return Wait(buffer, c.expect_integer() if c.accept("pending") else 0)
    name = c.expect_kind("value", "a statement").text
    c.expect("=")
    if c.accept("reduce"):
        stmt: Let | Reduce = _read_reduce(c, name, scope.child_scope())
    else:
        stmt = Let(name, read_typed_expr(c, scope))
    scope.values[name] = stmt.value.dtype
    return stmt


def read_prefetch(c: Cursor, buffer: str) -> Prefetch:
    """Read a prefetch of `buffer` behind its name."""
    index, level = read_dims(c), c.expect_integer() if c.accept("level") else 1
    return Prefetch(buffer, index, level, _read_reuse(c) if c.accept("reuse") else ANY_REUSE)


def _read_store(c: Cursor, scope: NameScope) -> Store:
    at, value = c.next, read_expr(c, scope)
    c.expect(",")
    buffer = expect_name(c, scope.buffers, "buffer")
    index, dtype = read_dims(c), scope.buffers[buffer.text]
    nontemporal = (read_condition(c) if c.next_is("if") else 0) if c.accept("nontemporal") else None
    return Store(buffer.text, index, as_typed_expr(c, value, dtype, at), nontemporal)


def _read_async_copy(c: Cursor, scope: NameScope) -> AsyncCopy:
    source, source_index = expect_name(c, scope.buffers, "buffer").text, read_dims(c)
    c.expect("->")
    target, target_index = expect_name(c, scope.buffers, "buffer").text, read_dims(c)
    c.expect("size")
    sizes = [read_dim(c)]
    while c.accept(","):
        sizes.append(read_dim(c))
    return AsyncCopy(source, source_index, target, target_index, tuple(sizes))


def _read_reuse(c: Cursor) -> ReuseRange:
    least = c.expect_integer()
    c.expect("..")
    return least, c.expect_integer() if c.next.kind == "int" else None


def _read_reduce(c: Cursor, name: str, scope: NameScope) -> Reduce:
    op = c.expect_kind("word", "a reduction")
    if op.text not in IDENTITIES:
        raise c.error(f"unknown reduction {op}; use {', '.join(IDENTITIES)}", op)
    c.index_names = scope.values
    ranges = [_read_range(c, scope)]
    while c.accept(","):
        ranges.append(_read_range(c, scope))
    c.expect("{")
    body = _read_block(c, scope)
    c.expect("yield")
    c.index_names = scope.values
    value = read_typed_expr(c, scope)
    c.expect("}")
    return Reduce(name, op.text, tuple(ranges), body, value)


def _read_range(c: Cursor, scope: NameScope) -> Range:
    """Read a loop header and add its variable to `scope`."""
    name = c.expect_kind("value", "the loop's %variable").text
    result = Range(name, *_read_bounds(c))
    scope.values[name] = i64
    while c.next_is("tile", "lanes", "unroll", "accumulators", "stages"):
        option = c.take().text
        result = result.with_(**{option: c.expect_integer()})
    return result.with_(balanced=True) if c.accept("balanced") else result


def _read_bounds(c: Cursor) -> tuple[Dim, Dim]:
    c.expect("in")
    low = read_dim(c)
    c.expect("..")
    return low, read_dim(c)


# programs


@dataclass
class _ProgramParts:
    """The parts of a program read so far."""

    buffers: dict[str, TensorType] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    output_aliases: dict[str, str] = field(default_factory=dict)


def _read_program(c: Cursor, resources: Resources) -> Program:
    c.expect("program")
    c.expect("{")
    p = _ProgramParts()
    while not c.accept("}"):
        if c.next_is("kernel"):
            at, kernel = c.peek(), _read_kernel(c)
            if p.kernels.setdefault(kernel.name, kernel) is not kernel:
                raise c.error(f"{at} is defined twice", at)
        elif c.next_is("size"):
            read_size_declaration(c)
        elif c.next_is("input", "output", "constant", "buffer"):
            _read_declaration(c, p, resources)
        else:
            p.steps.append(_read_step(c, p))
    inputs, outputs, steps = tuple(p.inputs), tuple(p.outputs), tuple(p.steps)
    return Program(p.buffers, inputs, outputs, p.constants, p.kernels, steps, p.output_aliases)


def _read_declaration(c: Cursor, p: _ProgramParts, resources: Resources) -> None:
    """Read the declaration of a buffer; an input may be declared again as an output of the same type."""
    role, at = c.take().text, c.next
    name, type = _read_buffer(c)
    if name in p.buffers and (role != "output" or p.buffers[name] != type):
        raise c.error(f"{at} is declared twice", at)
    p.buffers[name] = type
    if role == "input":
        p.inputs.append(name)
    elif role == "output":
        p.outputs.append(name)
        if c.accept("->"):
            p.output_aliases[name] = expect_name(c, dict.fromkeys(p.inputs), "input").text
    elif role == "constant":
        p.constants[name] = resources.get(c, c.take(), type).array if c.next.kind == "global" else read_array(c, type)


def _read_step(c: Cursor, p: _ProgramParts) -> Step:
    def read_name() -> str:
        return expect_name(c, p.buffers, "buffer").text

    if c.accept("copy"):
        source = read_name()
        c.expect("->")
        return Copy(source, read_name())
    if c.accept("launch"):
        kernel = c.expect_kind("global", "a kernel's @name")
        if kernel.text not in p.kernels:
            raise c.error(f"unknown kernel {kernel}{did_you_mean(kernel.text, p.kernels)}", kernel)
        return Launch(kernel.text, c.read_list("(", read_name, ")"), _read_node_name(c))
    if c.accept("view"):
        return _read_view(c, p)
    if c.accept("repeat"):
        return _read_repeat(c, p)
    if not c.accept("opaque"):
        raise c.error(f"expected a declaration, a kernel or a step, found {c.next}")
    op, arguments = c.expect_kind("global", "an op's @name").text, c.read_list("(", read_name, ")")
    results: list[str] = []
    while c.accept("," if results else "->"):
        results.append(read_name())
    attrs = tuple(read_attrs(c).items())
    return OpaqueCall(op, attrs, arguments, tuple(results), _read_node_name(c))


def _read_view(c: Cursor, p: _ProgramParts) -> View:
    name, _ = c.expect_kind("value", "the view's %name"), c.expect("=")
    buffer = expect_name(c, p.buffers, "buffer").text
    if name.text in p.buffers:
        raise c.error(f"{name} is declared twice", name)
    if not p.buffers[buffer].rank:
        raise c.error(f"%{buffer} has rank 0; a view needs a dimension to index", name)
    c.expect("[")
    index, count = read_dim(c), None
    if c.accept(":"):
        at, size = c.next, read_dim(c) - index
        if not isinstance(size, int) or size < 1:
            raise c.error("a view has a constant number of entries", at)
        count = size
    c.expect("]")
    p.buffers[name.text] = view_type(p.buffers[buffer], count)
    return View(name.text, buffer, index, count)


def _read_repeat(c: Cursor, p: _ProgramParts) -> Repeat:
    variable = c.expect_kind("value", "the loop's %variable").text
    at, (low, count) = c.next, _read_bounds(c)
    if low != 0 or variables(count):
        raise c.error("repeat must run from 0 to a constant or a size", at)
    c.expect("{")
    steps: list[Step] = []
    while not c.accept("}"):
        steps.append(_read_step(c, p))
    return Repeat(variable, count, tuple(steps))


def _read_node_name(c: Cursor) -> str:
    """Read the optional name of the graph node that a step computes."""
    return c.expect_kind("string", "the name of a node, in quotes").text if c.accept("for") else ""
