"""Object files become callable, on PyTorch's own threads."""

import ctypes
import subprocess
import sys
import threading

import pytest
import torch

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.object_file import LLVMError, emit_assembly, emit_object
from compiler.codegen.llvm.targets import CPU_TARGETS, host_target
from compiler.errors import TargetError
from compiler.runtime import loader, threads

COUNT_THREADS = """
define internal void @work(ptr %counter) { %old = atomicrmw add ptr %counter, i32 1 seq_cst  ret void }
define void @count(ptr %counter) {
  call void @GOMP_parallel(ptr @work, ptr %counter, i32 0, i32 0)
  ret void
}
declare void @GOMP_parallel(ptr, ptr, i32, i32)
"""
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


def used_threads(library: loader.Library) -> int:
    counter = (ctypes.c_int32 * 1)()
    call(library, "count", counter)
    return counter[0]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_code_runs():
    library = loader.link_objects([emit_object(ADD_ONE, host_target())], ["add_one"])
    x = (ctypes.c_float * 16)(*range(16))
    call(library, "add_one", x)
    assert list(x) == [k + 1 for k in range(16)]


def test_objects_call_each_other():
    objects = [emit_object(TWICE, host_target(), optimize=False), emit_object(ADD_ONE, host_target())]
    library = loader.link_objects(objects, ["twice"])
    x = (ctypes.c_float * 16)()
    call(library, "twice", x)
    assert list(x) == [2.0] * 16


def test_a_missing_symbol_is_an_error():
    with pytest.raises(RuntimeError, match="materialize"):
        loader.link_objects([emit_object(LOST, host_target())], ["lost"])


def test_set_num_threads_counts(two_threads):
    library = loader.link_objects([emit_object(COUNT_THREADS, host_target())], ["count"])
    assert used_threads(library) == 2
    torch.set_num_threads(1)
    assert used_threads(library) == 1


def test_in_another_thread_too(two_threads):
    library, seen = loader.link_objects([emit_object(COUNT_THREADS, host_target())], ["count"]), []

    def work() -> None:
        threads.sync_thread_count()
        seen.append(used_threads(library))

    torch.set_num_threads(1)
    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert seen == [1]


def test_without_openmp_it_is_serial(monkeypatch, two_threads):
    monkeypatch.setattr(threads, "openmp_addresses", lambda: None)
    assert used_threads(loader.link_objects([emit_object(COUNT_THREADS, host_target())], ["count"])) == 1


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
    with pytest.raises(TargetError, match="choose host"):
        target_by_name("z80")
    with pytest.raises(LLVMError, match="invalid LLVM IR"):
        emit_object("define void @f() { ret i32 0 }", host_target())


def test_codegen_imports_without_torch():
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
