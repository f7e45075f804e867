"""A target of your own: C99.  Tile IR means what its scalar program means, so a printer of scalar loops is a backend."""

import torch
from torch import nn

import compiler
from compiler.codegen.backend import Backend, Pipelines, register_backend
from compiler.codegen.listing import Listing
from compiler.errors import TilewrightError
from compiler.ir.graph.structure import IDENTITIES
from compiler.ir.scalar import PRIMITIVES, Const, Expr, IndexValue, Load, PrimitiveCall, Ref
from compiler.ir.symbolic.index_atoms import format_index
from compiler.ir.symbolic.index_expr import Dim, product, var
from compiler.ir.tile.kernel import (
    AsyncCopy,
    For,
    Kernel,
    Let,
    Local,
    Range,
    Reduce,
    Stmt,
    Store,
    Wait,
    stmt_ranges,
)
from compiler.ir.types import Layout, TensorType
from compiler.target import MemorySpace, Target

TYPES = {"f32": "float", "f64": "double", "i32": "int32_t", "i64": "int64_t", "bool": "bool"}
FUNCTIONS = {"exp", "log", "sqrt", "tanh", "erf", "fabs", "floor", "ceil"}
COMBINE = {
    "add": "{a} += {v};",
    "mul": "{a} *= {v};",
    "max": "{a} = {v} > {a} ? {v} : {a};",
    "min": "{a} = {v} < {a} ? {v} : {a};",
}


def name(text: str) -> str:
    """Return an identifier of C."""
    return "v_" + "".join(c if c.isalnum() else "_" for c in text)


def dim(d: Dim) -> str:
    """Return an index expression; indices are not negative, so `/` and `%` of C round as ours do."""
    return format_index(d, name).replace("//", "/")


def element(buffer: str, type_: TensorType, index: tuple[Dim, ...]) -> str:
    """Return one element of a buffer, which lies as the layout of its type says."""
    layout = type_.layout or Layout.from_order(range(type_.rank))
    offset: Dim = 0
    for extent, place in zip(layout.physical_shape(type_.shape), layout.physical_index(index), strict=True):
        offset = offset * extent + place
    return f"{name(buffer)}[{dim(offset)}]"


class Printer:
    """One kernel being printed: `types` knows every buffer in scope."""

    def __init__(self, kernel: Kernel) -> None:
        self.types = {p.name: p.type for p in kernel.params}

    def expr(self, e: Expr) -> str:
        """Return an expression of C."""
        if isinstance(e, Const):
            return repr(e.value).lower().replace("inf", "INFINITY").replace("nan", "NAN")
        if isinstance(e, Ref):
            return name(e.name)
        if isinstance(e, IndexValue):
            return f"({dim(e.index)})"
        if isinstance(e, Load):
            read = element(e.buffer, self.types[e.buffer], e.index)
            return read if e.mask is None else f"({self.expr(e.mask)} ? {read} : {self.expr(e.other)})"
        assert isinstance(e, PrimitiveCall)
        args = [self.expr(a) for a in e.operands]
        if infix := PRIMITIVES[e.primitive].infix:
            return f"({args[0]} {infix} {args[1]})"
        if e.primitive == "cast":
            return f"({TYPES[e.dtype.name]}){args[0]}"
        if e.primitive in ("max", "min"):
            return f"f{e.primitive}({args[0]}, {args[1]})"
        if e.primitive in FUNCTIONS:
            return f"{e.primitive}({', '.join(args)})"
        raise TilewrightError(f"this C target has no {e.primitive}")

    def block(self, body: tuple[Stmt, ...]) -> list[str]:
        """Return the lines of several statements."""
        return [line for s in body for line in self.statement(s)]

    def loops(self, ranges: tuple[Range, ...], body: list[str]) -> list[str]:
        """Return `body` inside nested loops, of which tiles and lanes are one step after the other."""
        for r in reversed(ranges):
            v = name(r.var)
            body = [f"for (long {v} = {dim(r.lo)}; {v} < {dim(r.hi)}; {v}++) {{", *(f"  {line}" for line in body), "}"]
        return body

    def statement(self, s: Stmt) -> list[str]:
        """Return the lines of a statement."""
        if isinstance(s, Let):
            return [f"{TYPES[s.value.dtype.name]} {name(s.name)} = {self.expr(s.value)};"]
        if isinstance(s, Local):
            self.types[s.buffer] = s.type
            return [f"{TYPES[s.type.dtype.name]} {name(s.buffer)}[{dim(product(s.type.shape))}];"]
        if isinstance(s, Store):
            return [f"{element(s.buffer, self.types[s.buffer], s.index)} = {self.expr(s.value)};"]
        if isinstance(s, For):
            return self.loops(stmt_ranges(s), self.block(s.body))
        if isinstance(s, AsyncCopy):  # at once: no program sees when elements move before the wait
            ranges = tuple(Range(f"copy.{k}", 0, n) for k, n in enumerate(s.sizes))
            ends = zip((s.source, s.target), s.indices(tuple(var(r.var) for r in ranges)), strict=True)
            read, written = (element(buffer, self.types[buffer], index) for buffer, index in ends)
            return self.loops(ranges, [f"{written} = {read};"])
        if isinstance(s, Wait):
            return []
        if isinstance(s, Reduce) and s.op in COMBINE:
            accumulator, dtype = name(s.name), s.value.dtype
            start = self.expr(Const(dtype, IDENTITIES[s.op](dtype)))
            update = COMBINE[s.op].format(a=accumulator, v=self.expr(s.value))
            lines = self.loops(stmt_ranges(s), [*self.block(s.body), update])
            return [f"{TYPES[dtype.name]} {accumulator} = {start};", *lines]
        raise TilewrightError(f"this C target has no {type(s).__name__}")


def print_c(kernel: Kernel, target: Target) -> str:
    """Return a kernel as a function of C."""
    const = {"in": "const ", "const": "const "}
    params = ", ".join(f"{const.get(p.role, '')}{TYPES[p.type.dtype.name]} *{name(p.name)}" for p in kernel.params)
    body = [f"  {line}" for line in Printer(kernel).block(kernel.body)]
    return "\n".join([f"void {kernel.name}({params}) {{", *body, "}"])


def list_c(kernel: Kernel, target: Target) -> Listing:
    """Return the listing of a kernel: its text, without lines of Tile IR."""
    return Listing(print_c(kernel, target))


C = Target(
    name="c99", backend="c", native_dtypes=tuple(TYPES), memory=(MemorySpace("memory", None, "device"),),
    async_copies=(("memory", "memory"),),
)  # fmt: skip
register_backend(
    Backend(name="c", targets={C.name: C}, pipelines=Pipelines(program="fuse-loops"), listings={"c": list_c})
)


def main() -> str:
    """Print softmax as C."""
    compiled = compiler.compile(nn.Softmax(1), (torch.randn(4, 10),), options={"target": "c99"})
    print(compiled.print_ir("c"))
    return compiled.print_ir("c")


if __name__ == "__main__":
    main()
