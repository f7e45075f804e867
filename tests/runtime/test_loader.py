"""Object files become callable."""

import ctypes
import subprocess
import sys

import pytest

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.kernel_module import NO_STRENGTH_REDUCTION
from compiler.codegen.llvm.object_file import LLVMError, emit_assembly, emit_object
from compiler.codegen.llvm.targets import CPU_TARGETS, host_target
from compiler.errors import TargetError
from compiler.runtime import loader

ADD_ONE = """
define void @add_one(ptr %x) {
  %a = load <16 x float>, ptr %x, align 4
  %b = fadd <16 x float> %a, splat (float 1.0)
  store <16 x float> %b, ptr %x, align 4
  ret void
}
"""

TWICE = """
define void @twice(ptr %x) {
  call void @add_one(ptr %x)
  call void @add_one(ptr %x)
  ret void
}
declare void @add_one(ptr)
"""
LOST = """
define void @lost() {
  call void @nowhere()
  ret void
}
declare void @nowhere()
"""
IMPORTS = """
import sys
import compiler.codegen.llvm.emit, compiler.codegen.llvm.object_file, compiler.codegen.llvm.program_entry
assert "torch" not in sys.modules
"""


def call(library: loader.Library, symbol: str, argument: ctypes.Array) -> None:
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library[symbol])(ctypes.addressof(argument))


def test_code_runs():
    library = loader.link_objects([emit_object(ADD_ONE, host_target())], ["add_one"])
    x = (ctypes.c_float * 16)(*range(16))
    call(library, "add_one", x)
    assert list(x) == [k + 1 for k in range(16)]


def test_objects_call_each_other():
    objects = [emit_object(TWICE, host_target(), level=0), emit_object(ADD_ONE, host_target())]
    library = loader.link_objects(objects, ["twice"])
    x = (ctypes.c_float * 16)()
    call(library, "twice", x)
    assert list(x) == [2.0] * 16


def test_a_missing_symbol_is_an_error():
    with pytest.raises(RuntimeError, match="materialize"):
        loader.link_objects([emit_object(LOST, host_target())], ["lost"])


def test_libraries_unload():
    objects = [emit_object(ADD_ONE, host_target())]
    for _ in range(50):
        loader.link_objects(objects, ["add_one"])
    x = (ctypes.c_float * 16)()
    call(loader.link_objects(objects, ["add_one"]), "add_one", x)
    assert list(x) == [1.0] * 16


@pytest.mark.parametrize(
    ("name", "register"), [("x86-64", "%xmm"), ("x86-64-v3", "%ymm"), ("x86-64-v4", "%zmm"), ("aarch64", "v0.4s")]
)
def test_targets_use_their_widest_registers(name, register):
    assert register in emit_assembly(ADD_ONE, target_by_name(name))
    assert emit_object(ADD_ONE, CPU_TARGETS[name])


def test_fma_is_known():
    assert [target_by_name(n).has_feature("fma") for n in ("x86-64", "x86-64-v3", "x86-64-v4")] == [False, True, True]


def test_unknown_targets_and_bad_ir_are_refused():
    with pytest.raises(TargetError, match=r"code for host, .* runs here"):
        target_by_name("z80")
    with pytest.raises(LLVMError, match="invalid LLVM IR"):
        emit_object("define void @f() { ret i32 0 }", host_target())


def test_codegen_imports_without_torch():
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)


STRIDED_SUM = """
define void @sum(ptr %x, ptr %y, i64 %step) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %s = phi float [ 0.0, %entry ], [ %added, %loop ]
  %k = mul nsw i64 %i, %step
  %p = getelementptr float, ptr %x, i64 %k
  %e = load float, ptr %p
  %added = fadd float %s, %e
  %next = add nsw i64 %i, 1
  %more = icmp slt i64 %next, 1000
  br i1 %more, label %loop, label %done
done:
  store float %added, ptr %y
  ret void
}"""


def test_strength_reduction_is_what_a_module_asks_for() -> None:
    """Whatever was compiled before."""
    plain = STRIDED_SUM.replace("i64 %step) {", f"i64 %step) {NO_STRENGTH_REDUCTION} {{")
    codes = [emit_object(text, host_target()) for text in (STRIDED_SUM, plain, STRIDED_SUM, plain)]
    assert codes[:2] == codes[2:]
    assert codes[0] != codes[1]
