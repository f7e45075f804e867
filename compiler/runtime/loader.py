"""Object files -> callable addresses, through LLVM's JIT linker."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count

import llvmlite.binding as llvm

from compiler.codegen.llvm.object_file import emit_object, target_machine
from compiler.codegen.target import Target
from compiler.runtime import threads

LIBC = ("memcpy", "memmove", "memset", "bcmp")
LIBM = tuple(f + suffix for f in ("fma", "fmod", "floor", "ceil", "trunc", "rint", "round", "roundeven", "sqrt")
             for suffix in ("", "f"))  # fmt: skip
LIBGCC = ("__extendhfsf2", "__truncsfhf2", "__truncdfhf2")
"""What LLVM may call where the target has no instruction for it."""


class Library:
    """Loaded machine code, unloaded when this object dies.  `library[symbol]` is an address."""

    def __init__(self, tracker: llvm.orcjit.ResourceTracker) -> None:
        self._tracker = tracker

    def __getitem__(self, symbol: str) -> int:
        return int(self._tracker[symbol])


def link_objects(objects: Sequence[bytes], exports: Sequence[str]) -> Library:
    """Link object files with each other and with what generated code calls; RuntimeError where a symbol is missing."""
    builder = llvm.JITLibraryBuilder()
    for image in objects:
        builder.add_object_img(image)
    parallel = threads.openmp_addresses()
    if parallel is None:
        builder.add_object_img(_serial_runtime_object())
    for name, where in {**_system_symbols(), **(parallel or {})}.items():
        builder.import_symbol(name, where)
    for name in exports:
        builder.export_symbol(name)
    with _LINK_LOCK:
        return Library(builder.link(_jit(), f"tilewright{next(_LIBRARY_NUMBERS)}"))


_LINK_LOCK = threading.Lock()
_LIBRARY_NUMBERS = count()


@lru_cache(maxsize=1)
def _jit() -> llvm.LLJIT:
    return llvm.create_lljit_compiler(target_machine(Target.host()), use_jit_link=True)


@lru_cache(maxsize=1)
def _serial_runtime_object() -> bytes:
    return emit_object(threads.SERIAL_RUNTIME_IR, Target.host())


@lru_cache(maxsize=1)
def _system_symbols() -> Mapping[str, int]:
    found = {}
    for file, names in ((None, (*LIBC, *LIBM)), ("libgcc_s.so.1", LIBGCC)):
        for name in names:
            try:
                found[name] = threads.symbol_address(ctypes.CDLL(file), name)
            except (OSError, AttributeError):  # not every C library has roundeven, nor every system libgcc
                continue
    return found
