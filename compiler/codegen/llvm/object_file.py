"""LLVM IR text -> machine code.

Tile passes have already chosen loops, vectors and unrolling, so LLVM is asked only to tidy up: promote stack slots, fold and
combine instructions.  Instructions stay in the order of the text: LLVM's scheduler brings the loads of all steps that are
written out to the front, accumulators leave their registers for them, and a convolution takes up to twice as long.  Values are
numbered as the text is written (see `Builder.emit`).  LLVM's standard pipeline gave the same speed on every kernel tried
(contractions, attention, softmax, scans, pooling, elementwise) and took half as long again; its NewGVN pass aborts the process
on some kernels.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import llvmlite.binding as llvm

from compiler.codegen.target import Target
from compiler.errors import TilewrightError

TargetMachine: TypeAlias = "llvm.TargetMachine"

CODEGEN_OPT_LEVEL = 2
"""How hard LLVM's backend tries, of 0..3."""


class LLVMError(TilewrightError):
    """LLVM refused the text that codegen wrote: a bug in this compiler."""


def emit_object(llvm_ir: str, target: Target, optimize: bool = True) -> bytes:
    """The relocatable object file of an LLVM module; LLVMError where it does not parse or verify.

    `optimize=False` takes a tenth of the time: for code that does no work of its own.
    """
    machine = target_machine(target, CODEGEN_OPT_LEVEL if optimize else 0)
    module = _optimize_module(llvm_ir, machine) if optimize else _parse_module(llvm_ir, machine)
    return bytes(machine.emit_object(module))


def emit_assembly(llvm_ir: str, target: Target) -> str:
    """The assembly text of the same code, for reading."""
    machine = target_machine(target)
    return str(machine.emit_assembly(_optimize_module(llvm_ir, machine)))


def emit_optimized_ir(llvm_ir: str, target: Target) -> str:
    """The module after LLVM's own passes, for reading."""
    return str(_optimize_module(llvm_ir, target_machine(target)))


@cache
def target_machine(target: Target, level: int = CODEGEN_OPT_LEVEL) -> TargetMachine:
    """The LLVM target machine for `target`; LLVMError where this LLVM has no such backend.

    Made once, because the first module that a machine compiles takes a millisecond more than the others.
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
    """Register every backend of LLVM, once, and keep instructions in order (in the whole process: LLVM has one setting)."""
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


def _optimize_module(llvm_ir: str, machine: TargetMachine) -> llvm.ModuleRef:
    module = _parse_module(llvm_ir, machine)
    passes, builder = pass_pipeline(machine)
    passes.run(module, builder)
    return module


@cache
def pass_pipeline(machine: TargetMachine) -> tuple[llvm.ModulePassManager, llvm.PassBuilder]:
    """LLVM's own passes, made once: a thread asks for Python's lock after each call of LLVM, and waits for it."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    return passes, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())


@cache
def data_layout(machine: TargetMachine) -> str:
    """How large and aligned the machine's types are, as LLVM spells it."""
    return str(machine.target_data)
