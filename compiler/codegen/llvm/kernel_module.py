"""LLVM module around the statements of a kernel: signature, attributes and, for a parallel kernel, its OpenMP entry.

    @name.body     the statements, for thread `%thread` of `%threads`
    @name.thread   loads the arguments from a frame and calls the body: one call per OpenMP thread
    @name          stores the arguments in a frame and calls `GOMP_parallel`; calls the body if the parallel condition fails

A serial kernel has only `@name`, which holds the statements.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.llvm.addresses import size_param_name
from compiler.codegen.llvm.builder import IRBuilder
from compiler.codegen.llvm.expressions import ExprEmitter
from compiler.codegen.llvm.scope import CodegenScope
from compiler.codegen.llvm.targets import CPUTarget
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.tile.dynamic_sizes import kernel_dynamic_sizes
from compiler.ir.tile.inplace import aliasable_pairs
from compiler.ir.tile.kernel import Kernel


def module_text(kernel: Kernel, target: CPUTarget, body: IRBuilder, parallel: bool) -> str:
    """Return the text of the module that defines `kernel`, whose statements are in `body`."""
    sizes = [f"i64 {size_param_name(s)}" for s in kernel_dynamic_sizes(kernel)]
    arguments = [*(f"ptr %p{k}" for k in range(len(kernel.params))), *sizes, "ptr %status"]
    noalias = _noalias_params(kernel)
    params = [f"ptr noalias %p{k}" if k in noalias else a for k, a in enumerate(arguments)]
    if parallel:
        header = f"internal void @{kernel.name}.body({', '.join([*params, 'i64 %thread', 'i64 %threads'])}) noinline"
    else:
        header = f"void @{kernel.name}({', '.join(params)})"
    attributes = (
        f'"target-cpu"="{target.cpu}" "target-features"="{target.features}" '
        f'"prefer-vector-width"="{target.vector_bits}" nounwind'
    )
    lines = [f'target triple = "{target.triple}"', "", f"define {header} #0 {{", "entry:"]
    lines += [*body.allocas, *body.lines, "  ret void", "}", ""]
    if parallel:
        lines += _parallel_entry(kernel.name, arguments, kernel.parallel_condition)
    lines += [*sorted(body.declarations), "", f"attributes #0 = {{ {attributes} }}", "!0 = !{i32 1}"]
    return "\n".join(lines) + "\n"


def _noalias_params(kernel: Kernel) -> set[int]:
    """Return the positions of the parameters that share memory with no other one."""
    aliased = {name for pair in aliasable_pairs(kernel) for name in pair}
    has_inout = any(p.role == "inout" for p in kernel.params)
    unaliased = [p.name not in aliased and (p.role in ("const", "out") or not has_inout) for p in kernel.params]
    return {k for k, holds in enumerate(unaliased) if holds}


def _parallel_entry(name: str, arguments: Sequence[str], parallel_condition: Dim) -> list[str]:
    frame = f"[{len(arguments)} x ptr]"
    pack, unpack = [], []
    for k, argument in enumerate(arguments):
        type_, value = argument.split()
        slot = f"  %s{k} = getelementptr {frame}, ptr %frame, i64 0, i64 {k}"
        pack += [slot, f"  store {argument}, ptr %s{k}, align 8"]
        unpack += [slot, f"  {value} = load {type_}, ptr %s{k}, align 8"]
    params = ", ".join(arguments)
    return [
        f"define internal void @{name}.thread(ptr %frame) #0 {{",
        *unpack,
        "  %id = call i32 @omp_get_thread_num()",
        "  %count = call i32 @omp_get_num_threads()",
        "  %thread = sext i32 %id to i64",
        "  %threads = sext i32 %count to i64",
        f"  call void @{name}.body({params}, i64 %thread, i64 %threads)",
        "  ret void",
        "}",
        "",
        f"define void @{name}({params}) #0 {{",
        "entry:",
        f"  %frame = alloca {frame}, align 8",
        *_serial_fallback(parallel_condition, f"  call void @{name}.body({params}, i64 0, i64 1)"),
        *pack,
        f"  call void @GOMP_parallel(ptr @{name}.thread, ptr %frame, i32 0, i32 0)",
        "  ret void",
        "}",
        "",
        "declare void @GOMP_parallel(ptr, ptr, i32, i32)",
        "declare i32 @omp_get_thread_num()",
        "declare i32 @omp_get_num_threads()",
    ]


def _serial_fallback(parallel_condition: Dim, call: str) -> list[str]:
    """Run the body on the calling thread if the parallel condition is negative; nothing if it is always 0."""
    if parallel_condition == 0:
        return []
    b = IRBuilder()
    condition = ExprEmitter(b, CodegenScope()).emit_resolved_index(parallel_condition, {}, None)
    b.emit_void(f"br i1 {b.emit(f'icmp slt i64 {condition}, 0')}, label %serial, label %parallel")
    return [*b.lines, "serial:", call, "  ret void", "parallel:"]
