"""LLVM module around the statements of a kernel: signature, attributes and, for a parallel kernel, its phases.

    @name.phase0        the statements of a phase: chunk `%first` of `%chunks`, and those that `%claimer` gets further
    @name.phase0.join   loads the arguments from a frame and calls the phase: one call per thread that takes part
    @name               stores the arguments in a frame and passes each phase to `@tilewright_parallel`, which has threads call
                        it; calls the phases itself if the parallel condition fails

A serial kernel has only `@name`, which holds the statements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from compiler.codegen.llvm.addresses import size_param_name
from compiler.codegen.llvm.builder import IRBuilder
from compiler.codegen.llvm.expressions import ExprEmitter
from compiler.codegen.llvm.scope import CodegenScope
from compiler.codegen.llvm.targets import CPUTarget
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.tile.dynamic_sizes import kernel_dynamic_sizes
from compiler.ir.tile.inplace import aliasable_pairs
from compiler.ir.tile.kernel import Kernel

PARALLEL = "tilewright_parallel"
"""`(ptr phase, ptr frame, i64 chunks)` has threads call `phase(frame, claimer, first, chunks)`, with at most so many chunks."""

NEXT_CHUNK = "tilewright_next_chunk"
"""`(ptr claimer)` returns the next chunk for the calling thread; -1 if none is left, or if `claimer` is null."""


@dataclass(frozen=True)
class PhaseBody:
    """Statements of a phase.  `steps` holds the number of iterations of each parallel loop."""

    body: IRBuilder
    steps: tuple[Dim, ...]


def serial_module(kernel: Kernel, target: CPUTarget, body: IRBuilder) -> str:
    """Return the text of the module that defines `kernel`, whose statements are in `body`."""
    header = f"void @{kernel.name}({', '.join(_parameters(kernel))})"
    return _module(target, _function(header, body), body.declarations)


def parallel_module(kernel: Kernel, target: CPUTarget, phases: Sequence[PhaseBody]) -> str:
    """Return the text of the module that defines `kernel`, whose statements are in the bodies of `phases`."""
    names = [f"{kernel.name}.phase{k}" for k in range(len(phases))]
    params = ", ".join([*_parameters(kernel), "ptr %claimer", "i64 %first", "i64 %chunks"])
    lines = list[str]()
    for name, phase in zip(names, phases, strict=True):
        lines += _function(f"internal void @{name}({params}) noinline", phase.body)
    entry, declarations = _parallel_entry(kernel, dict(zip(names, phases, strict=True)))
    declarations |= {f"declare void @{PARALLEL}(ptr, ptr, i64)"}.union(*(p.body.declarations for p in phases))
    return _module(target, [*lines, *entry], declarations)


def _module(target: CPUTarget, functions: Sequence[str], declarations: Collection[str]) -> str:
    attributes = (
        f'"target-cpu"="{target.cpu}" "target-features"="{target.features}" '
        f'"prefer-vector-width"="{target.vector_bits}" nounwind'
    )
    lines = [f'target triple = "{target.triple}"', "", *functions, *sorted(declarations), ""]
    return "\n".join([*lines, f"attributes #0 = {{ {attributes} }}", "!0 = !{i32 1}"]) + "\n"


def _function(header: str, body: IRBuilder) -> list[str]:
    return [f"define {header} #0 {{", "entry:", *body.allocas, *body.lines, "  ret void", "}", ""]


def _arguments(kernel: Kernel) -> list[str]:
    sizes = [f"i64 {size_param_name(s)}" for s in kernel_dynamic_sizes(kernel)]
    return [*(f"ptr %p{k}" for k in range(len(kernel.params))), *sizes, "ptr %status"]


def _parameters(kernel: Kernel) -> list[str]:
    noalias = _noalias_params(kernel)
    return [f"ptr noalias %p{k}" if k in noalias else a for k, a in enumerate(_arguments(kernel))]


def _noalias_params(kernel: Kernel) -> set[int]:
    """Return the positions of the parameters that share memory with no other one."""
    aliased = {name for pair in aliasable_pairs(kernel) for name in pair}
    has_inout = any(p.role == "inout" for p in kernel.params)
    unaliased = [p.name not in aliased and (p.role in ("const", "out") or not has_inout) for p in kernel.params]
    return {k for k, holds in enumerate(unaliased) if holds}


def _parallel_entry(kernel: Kernel, phases: Mapping[str, PhaseBody]) -> tuple[list[str], set[str]]:
    """Return the entry function and what threads call, and the declarations that these need."""
    arguments = _arguments(kernel)
    params, frame = ", ".join(arguments), f"[{len(arguments)} x ptr]"
    pack, unpack = [], []
    for k, argument in enumerate(arguments):
        type_, value = argument.split()
        slot = f"  %s{k} = getelementptr {frame}, ptr %frame, i64 0, i64 {k}"
        pack += [slot, f"  store {argument}, ptr %s{k}, align 8"]
        unpack += [slot, f"  {value} = load {type_}, ptr %s{k}, align 8"]
    lines = list[str]()
    for name in phases:
        lines += [
            f"define internal void @{name}.join(ptr %frame, ptr %claimer, i64 %first, i64 %chunks) #0 {{",
            *unpack,
            f"  call void @{name}({params}, ptr %claimer, i64 %first, i64 %chunks)",
            "  ret void",
            "}",
            "",
        ]
    b = IRBuilder()
    sizes = ExprEmitter(b, CodegenScope())
    if kernel.parallel_condition != 0:
        condition = sizes.emit_resolved_index(kernel.parallel_condition, {}, None)
        b.emit_void(f"br i1 {b.emit(f'icmp slt i64 {condition}, 0')}, label %serial, label %parallel")
        b.block("serial")
        for name in phases:
            b.emit_void(f"call void @{name}({params}, ptr null, i64 0, i64 1)")
        b.emit_void("ret void")
        b.block("parallel")
    for name, phase in phases.items():
        steps = [sizes.emit_resolved_index(n, {}, None) for n in phase.steps]
        most = reduce(lambda x, y: b.intrinsic("i64", "llvm.smax.i64", ("i64", x), ("i64", y)), steps)
        b.emit_void(f"call void @{PARALLEL}(ptr @{name}.join, ptr %frame, i64 {most})")
    body = [f"define void @{kernel.name}({params}) #0 {{", "entry:", f"  %frame = alloca {frame}, align 8"]
    return [*lines, *body, *pack, *b.lines, "  ret void", "}", ""], b.declarations
