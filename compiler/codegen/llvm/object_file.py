"""LLVM IR text -> machine code.

Tile passes have chosen loops, vectors and unrolling, so LLVM only promotes stack slots, simplifies control flow and combines
instructions.  Value numbering is done while the text is emitted (see `IRBuilder.emit`).  The machine scheduler is off: it
hoists the loads of all unrolled iterations, spills accumulators for them, and makes a convolution up to twice as slow.
LLVM's standard pipeline gave the same speed on every kernel tried (contractions, attention, softmax, scans, pooling,
elementwise) and took half as long again; its NewGVN pass aborts the process on some kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TypeAlias

import llvmlite.binding as llvm

from compiler.codegen.llvm.kernel_module import NO_STRENGTH_REDUCTION
from compiler.codegen.llvm.targets import CPUTarget
from compiler.errors import TilewrightError

TargetMachine: TypeAlias = "llvm.TargetMachine"

DEFAULT_LEVEL = 2
"""LLVM's own default among its optimization levels, 0..3."""

EFFORT_LEVELS = {"fast": 1, "default": DEFAULT_LEVEL, "tune": DEFAULT_LEVEL}
"""Optimization level of each value of `Options.effort`."""

_GENERATING = threading.Lock()


class LLVMError(TilewrightError):
    """LLVM rejected the IR of a kernel, or has no backend for the target.  Invalid IR is a bug in this compiler."""


def emit_object(llvm_ir: str, target: CPUTarget, level: int = DEFAULT_LEVEL) -> bytes:
    """Return the relocatable object file of an LLVM module; LLVMError if it does not parse or verify.

    Level 0 runs no passes and takes a tenth of the time; use it for code that only calls other functions.
    """
    machine = target_machine(target, level)
    module = _optimize_module(llvm_ir, machine, level) if level else _parse_module(llvm_ir, machine)
    with _strength_reduction(NO_STRENGTH_REDUCTION not in llvm_ir):
        return bytes(machine.emit_object(module))


def emit_assembly(llvm_ir: str, target: CPUTarget) -> str:
    """Return the assembly text of an LLVM module, for inspection."""
    machine = target_machine(target)
    module = _optimize_module(llvm_ir, machine)
    with _strength_reduction(NO_STRENGTH_REDUCTION not in llvm_ir):
        return str(machine.emit_assembly(module))


@contextmanager
def _strength_reduction(enabled: bool) -> Iterator[None]:
    """Generate code with or without strength reduction: an option of the process, so that one thread at a time generates code."""
    with _GENERATING:
        llvm.set_option("tilewright", f"-disable-lsr={str(not enabled).lower()}")
        yield


@cache
def target_machine(target: CPUTarget, level: int = DEFAULT_LEVEL) -> TargetMachine:
    """Return the LLVM target machine for `target`; LLVMError if this LLVM has no such backend.

    Cached, because the first module that a machine compiles takes a millisecond more than the others.
    """
    initialize_llvm()
    try:
        backend = llvm.Target.from_triple(target.triple)
    except RuntimeError as error:
        raise LLVMError(f"LLVM has no backend for {target.triple}: {error}") from None
    return backend.create_target_machine(
        cpu=target.cpu, features=target.features, opt=level, reloc="pic", codemodel="small"
    )


@cache
def initialize_llvm() -> None:
    """Register every backend of LLVM and turn its machine scheduler off: an option of the process."""
    llvm.set_option("tilewright", "-enable-misched=false")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()


def _parse_module(llvm_ir: str, machine: TargetMachine) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(llvm_ir, llvm.create_context())
        module.data_layout = data_layout(machine)
        module.verify()
    except RuntimeError as error:
        raise LLVMError(f"invalid LLVM IR: {error}") from None
    return module


def _optimize_module(llvm_ir: str, machine: TargetMachine, level: int = DEFAULT_LEVEL) -> llvm.ModuleRef:
    module = _parse_module(llvm_ir, machine)
    passes, builder = pass_pipeline(machine, level)
    passes.run(module, builder)
    return module


@cache
def pass_pipeline(machine: TargetMachine, level: int) -> tuple[llvm.ModulePassManager, llvm.PassBuilder]:
    """Return LLVM's passes of a level, cached because every call into LLVM waits for Python's lock on return."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    if level > 1:
        passes.add_instruction_combine_pass()
    return passes, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())


@cache
def data_layout(machine: TargetMachine) -> str:
    """Return LLVM's data layout string: sizes and alignments of the machine's types."""
    return str(machine.target_data)
