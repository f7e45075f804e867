"""Object files -> callable addresses, with LLVM's JIT linker."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path
from types import MappingProxyType

import llvmlite.binding as llvm

from compiler.codegen.llvm.object_file import target_machine
from compiler.codegen.llvm.targets import host_target

LIBC = ("memcpy", "memmove", "memset", "bcmp")
LIBM = tuple(f + suffix for f in ("fma", "fmod", "floor", "ceil", "trunc", "rint", "round", "roundeven", "sqrt")
             for suffix in ("", "f"))  # fmt: skip
LIBGCC = ("__extendhfsf2", "__truncsfhf2", "__truncdfhf2")
"""Functions that LLVM calls for operations without an instruction on the target: of LIBC, LIBM and LIBGCC."""


def host_module(*files: str) -> str:
    """Return LLVM IR files of this folder as the beginning of one module for this machine."""
    texts = (Path(__file__).with_name(f"{name}.ll").read_text(encoding="utf-8") for name in files)
    return "".join([f'target triple = "{host_target().triple}"\n', *texts])


class Library:
    """Loaded machine code, unloaded when this object is freed.  `library[symbol]` is an address."""

    def __init__(self, tracker: llvm.orcjit.ResourceTracker) -> None:
        self._tracker = tracker

    def __getitem__(self, symbol: str) -> int:
        return int(self._tracker[symbol])


def link_objects(
    objects: Sequence[bytes], exports: Sequence[str], imports: Mapping[str, int] = MappingProxyType({})
) -> Library:
    """Link object files, libc, libm, libgcc and the functions at the addresses `imports`; RuntimeError if one is missing."""
    builder = llvm.JITLibraryBuilder()
    for image in objects:
        builder.add_object_img(image)
    for name, address in {**_system_symbols(), **imports}.items():
        builder.import_symbol(name, address)
    for name in exports:
        builder.export_symbol(name)
    with _LINK_LOCK:
        return Library(builder.link(_jit(), f"tilewright{next(_LIBRARY_NUMBERS)}"))


_LINK_LOCK = threading.Lock()
_LIBRARY_NUMBERS = count()


@lru_cache(maxsize=1)
def _jit() -> llvm.LLJIT:
    return llvm.create_lljit_compiler(target_machine(host_target()), use_jit_link=True)


def symbol_address(library: ctypes.CDLL, symbol: str) -> int:
    """Return the address of `symbol`; AttributeError if the library does not have it."""
    value = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    assert value is not None
    return value


@lru_cache(maxsize=1)
def _system_symbols() -> Mapping[str, int]:
    addresses = {}
    for file, names in ((None, (*LIBC, *LIBM)), ("libgcc_s.so.1", LIBGCC)):
        for name in names:
            try:
                addresses[name] = symbol_address(ctypes.CDLL(file), name)
            except (OSError, AttributeError):  # some C libraries lack roundeven, some systems libgcc
                continue
    return addresses
