"""Make one matrix product of a contraction over several loops: convolutions as implicit products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from compiler.analysis.accesses import Accesses
from compiler.cost.gpu_contraction import ProductLoops, dependent_loops, product_loops
from compiler.cost.gpu_product import best_block
from compiler.cost.machine import GPU
from compiler.errors import TransformError
from compiler.ir.symbolic.index_expr import Dim, var
from compiler.ir.tile.contraction import Contraction, contraction_of
from compiler.ir.tile.kernel import For, Kernel, Range, Reduce, dim_hint, stmt_body
from compiler.ir.tile.loop_nest import perfect_parallel_nest, wrap_in_nest
from compiler.ir.tile.substitution import substitute_indices
from compiler.passes.base import Context, TilePass, register
from compiler.passes.gpu.gpu_rows import gpu_of
from compiler.passes.remark import format_seconds
from compiler.transforms.interchange import interchange


@register
@dataclass(frozen=True)
class ImplicitProduct(TilePass):
    """Collapse the loops over rows, over columns and over the sum of a contraction into one each.

    parallel %n { parallel %o { parallel %h in 0..56 { parallel %w in 0..56 { reduce add %c, %r in 0..3 { x[%n, %c, %h + %r, %w] * k[%o, %c, %r] } } } } }
    ->  parallel %o { parallel %n { reduce add %c { x[%n//3136, %c//3, %n//56 % 56 + %c % 3, %n % 56] * k[%o, %c//3, %c % 3] } } }

    The product of a convolution's patches with its filters, without a copy of the patches (implicit GEMM of cuDNN).  Applies to each kind
    of loop where the cost model predicts less time: blocks are full although images, windows or channels are small.
    """

    name = "implicit-product"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        gpu, best = gpu_of(context), ir
        seconds = unfused = product_seconds(ir, gpu)
        for kind in ("rows", "columns", "depth"):
            collapsed = collapse_loops(best, kind)
            if collapsed is None or (predicted := product_seconds(collapsed, gpu)) >= seconds:
                continue
            times = f"{format_seconds(predicted)} instead of {format_seconds(unfused)}"
            if context.may_apply(self, f"one loop over the {kind}: {times}"):
                best, seconds = collapsed, predicted
        return best


def product_of(ir: Kernel) -> tuple[list[For], Reduce, Contraction] | None:
    """Return the parallel loops, the reduction and the contraction of a kernel with one reduction in a perfect nest."""
    nest = perfect_parallel_nest(ir.body)
    found = [s for s in (nest[-1].body if nest else ()) if stmt_body(s) or isinstance(s, Reduce)]
    if len(found) != 1 or not isinstance(found[0], Reduce) or (contraction := contraction_of(found[0])) is None:
        return None
    return nest, found[0], contraction


def product_seconds(ir: Kernel, gpu: GPU) -> float:
    """Return the time of the contraction of a kernel by the cost model; infinite if it is no matrix product."""
    match = product_of(ir)
    found = product_loops(Accesses(ir), match[2]) if match else ""
    best = best_block(found.product, gpu) if isinstance(found, ProductLoops) else None
    return best[1].seconds if best else inf


def collapse_loops(ir: Kernel, kind: str) -> Kernel | None:
    """Return the kernel with one loop for all over "rows", "columns" or "depth"; None if there are no two that can be."""
    match = product_of(ir)
    if match is None:
        return None
    nest, reduction, contraction = match
    table = Accesses(ir)
    a, b = (dependent_loops(table, e) for e in (contraction.lhs, contraction.rhs))
    used = {"rows": a - b, "columns": b - a, "depth": a & b}[kind]
    loops = [
        r for r in (reduction.ranges if kind == "depth" else [f.range for f in nest]) if r.var in used and r.extent != 1
    ]
    if len(loops) < 2 or not all(r.lo == 0 and isinstance(r.extent, int) for r in loops):
        return None
    joint, indices = joint_range(loops)
    body = tuple(substitute_indices(s, indices) for s in nest[-1].body)
    if kind == "depth":
        ranges = (*(r for r in reduction.ranges if r not in loops), joint)
        body = tuple(replace(s, ranges=ranges) if isinstance(s, Reduce) else s for s in body)
        return ir.with_body(wrap_in_nest(nest, body))
    order = [*(f for f in nest if f.range not in loops), For(joint, (), True)]
    try:
        return ir.with_body(interchange(order, body))
    except TransformError:
        return None


def joint_range(loops: Sequence[Range]) -> tuple[Range, dict[str, Dim]]:
    """Return one range for nested ones, and the index that each of them has in it."""
    name, indices = loops[0].var, dict[str, Dim]()
    rest: Dim = var(name)
    for k, r in enumerate(loops):
        inner = prod(dim_hint(s.extent) for s in loops[k + 1 :])
        indices[r.var], rest = rest // inner, rest % inner
    return Range(name, 0, prod(dim_hint(r.extent) for r in loops)), indices
