"""LLVM module around the statements of a kernel: signature, attributes and, for a parallel kernel, its phases.

    @name.phase0        the statements of a phase: chunk `%first` of `%chunks`, and those that `%claimer` gets further
    @name.phase0.join   loads the arguments from an array and calls the phase: one call per thread that takes part
    @name               stores the arguments in an array and passes each phase to `@tilewright_parallel`, which has threads
                        call it

A serial kernel has only `@name`, which holds the statements.  The last argument of all is the frame of the program's call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from compiler.codegen.llvm.addresses import size_param_name
from compiler.codegen.llvm.builder import IRBuilder
from compiler.codegen.llvm.call_frame import THREADS
from compiler.codegen.llvm.debug_info import DebugInfo
from compiler.codegen.llvm.expressions import ExprEmitter
from compiler.codegen.llvm.scope import CodegenScope
from compiler.codegen.llvm.targets import CPUTarget
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.tile.inplace import aliasable_pairs
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.loop_nest import has_scalar_loops

PARALLEL = "tilewright_parallel"
"""`(ptr phase, ptr arguments, i64 chunks, i64 threads)`: threads call `phase(arguments, claimer, first, chunks)`; at most so many."""

NEXT_CHUNK = "tilewright_next_chunk"
"""`(ptr claimer)` returns the next chunk for the calling thread; -1 if none is left, or if `claimer` is null."""

NOT_NEGATIVE = "range(i64 0, -9223372036854775808)"
"""Attribute of a size, with which `0 <= i && i < size` becomes one unsigned comparison."""

NO_STRENGTH_REDUCTION = '"no-strength-reduction"'
"""Attribute of functions whose loops all have lanes: LLVM's strength reduction takes a sixth of its time, and gains in scalar loops alone."""


@dataclass(frozen=True)
class PhaseBody:
    """Statements of a phase.  `steps` holds the number of iterations of each parallel loop."""

    body: IRBuilder
    steps: tuple[Dim, ...]


def serial_module(kernel: Kernel, target: CPUTarget, body: IRBuilder, debug: DebugInfo | None = None) -> str:
    """Return the text of the module that defines `kernel`, whose statements are in `body`."""
    header = f"void @{kernel.name}({', '.join(_parameters(kernel))})"
    return _module(
        kernel, target, _function(header, body), body.declarations, debug.metadata([kernel.name]) if debug else ()
    )


def parallel_module(
    kernel: Kernel, target: CPUTarget, phases: Sequence[PhaseBody], debug: DebugInfo | None = None
) -> str:
    """Return the text of the module that defines `kernel`, whose statements are in the bodies of `phases`."""
    names = [f"{kernel.name}.phase{k}" for k in range(len(phases))]
    params = ", ".join([*_parameters(kernel), "ptr %claimer", "i64 %first", "i64 %chunks"])
    lines = list[str]()
    for name, phase in zip(names, phases, strict=True):
        lines += _function(f"internal void @{name}({params}) noinline", phase.body)
    entry, declarations = _parallel_entry(kernel, dict(zip(names, phases, strict=True)))
    declarations |= {f"declare void @{PARALLEL}(ptr, ptr, i64, i64)"}.union(*(p.body.declarations for p in phases))
    return _module(kernel, target, [*lines, *entry], declarations, debug.metadata(names) if debug else ())


def _module(
    kernel: Kernel,
    target: CPUTarget,
    functions: Sequence[str],
    declarations: Collection[str],
    metadata: Sequence[str],
) -> str:
    attributes = (
        f'"target-cpu"="{target.cpu}" "target-features"="{target.features}" '
        f'"prefer-vector-width"="{target.vector_bits}" nounwind'
    )
    if not kernel.dynamic_sizes and not has_scalar_loops(kernel.body):
        attributes += f" {NO_STRENGTH_REDUCTION}"
    lines = [f'target triple = "{target.triple}"', "", *functions, *sorted(declarations), ""]
    return "\n".join([*lines, f"attributes #0 = {{ {attributes} }}", "!0 = !{i32 1}", *metadata]) + "\n"


def _function(header: str, body: IRBuilder) -> list[str]:
    debug = f" !dbg !{body.scope}" if body.scope else ""
    return [f"define {header} #0{debug} {{", "entry:", *body.allocas, *body.lines, "}", ""]


def _arguments(kernel: Kernel) -> list[str]:
    sizes = [f"i64 {size_param_name(s)}" for s in kernel.dynamic_sizes]
    return [*(f"ptr %p{k}" for k in range(len(kernel.params))), *sizes, "ptr %frame"]


def _parameters(kernel: Kernel) -> list[str]:
    """Return the parameters with what LLVM may assume: buffers that share no memory, and sizes that are not negative."""
    noalias = _noalias_params(kernel)
    attributes = {f"ptr %p{k}": f"ptr noalias %p{k}" for k in noalias}
    attributes |= {f"i64 {v}": f"i64 {NOT_NEGATIVE} {v}" for v in map(size_param_name, kernel.dynamic_sizes)}
    return [attributes.get(a, a) for a in _arguments(kernel)]


def _noalias_params(kernel: Kernel) -> set[int]:
    """Return the positions of the parameters that share memory with no other one."""
    aliased = {name for pair in aliasable_pairs(kernel) for name in pair}
    has_inout = any(p.role == "inout" for p in kernel.params)
    unaliased = [p.name not in aliased and (p.role in ("const", "out") or not has_inout) for p in kernel.params]
    return {k for k, holds in enumerate(unaliased) if holds}


def _parallel_entry(kernel: Kernel, phases: Mapping[str, PhaseBody]) -> tuple[list[str], set[str]]:
    """Return the entry function and what threads call, and the declarations that these need."""
    arguments = _arguments(kernel)
    params, array = ", ".join(arguments), f"[{len(arguments)} x ptr]"
    pack, unpack = [], []
    for k, argument in enumerate(arguments):
        type_, value = argument.split()
        slot = f"  %s{k} = getelementptr {array}, ptr %arguments, i64 0, i64 {k}"
        pack += [slot, f"  store {argument}, ptr %s{k}, align 8"]
        unpack += [slot, f"  {value} = load {type_}, ptr %s{k}, align 8"]
    lines = list[str]()
    for name in phases:
        lines += [
            f"define internal void @{name}.join(ptr %arguments, ptr %claimer, i64 %first, i64 %chunks) #0 {{",
            *unpack,
            f"  call void @{name}({params}, ptr %claimer, i64 %first, i64 %chunks)",
            "  ret void",
            "}",
            "",
        ]
    b = IRBuilder()
    sizes = ExprEmitter(b, CodegenScope())
    threads = b.emit(f"load i64, ptr {b.emit(f'getelementptr i64, ptr %frame, i64 {THREADS}')}, align 8")
    for name, phase in phases.items():
        steps = [sizes.emit_resolved_index(n, {}, None) for n in phase.steps]
        most = reduce(lambda x, y: b.intrinsic("i64", "llvm.smax.i64", ("i64", x), ("i64", y)), steps)
        if kernel.max_chunks is not None:
            max_chunks = sizes.emit_resolved_index(kernel.max_chunks, {}, None)
            most = b.intrinsic("i64", "llvm.smin.i64", ("i64", most), ("i64", max_chunks))
        b.emit_void(f"call void @{PARALLEL}(ptr @{name}.join, ptr %arguments, i64 {most}, i64 {threads})")
    body = [f"define void @{kernel.name}({params}) #0 {{", "entry:", f"  %arguments = alloca {array}, align 8"]
    return [*lines, *body, *pack, *b.lines, "  ret void", "}", ""], b.declarations
