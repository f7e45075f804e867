"""Kernels -> object files: each distinct kernel compiled once, or taken from the cache.

LLVM has a thread of its own, which compiles one kernel while the text of the next is written; llvmlite holds one lock around LLVM, so
more threads gain nothing, and a helper process takes as long to start (0.3 s) as ten kernels take to compile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.main import Action, emit_main
from compiler.codegen.llvm.object import to_object
from compiler.codegen.target import Target
from compiler.ir.digest import kernel_digest
from compiler.ir.tile import Kernel
from compiler.runtime.cache import ObjectCache, object_key


@dataclass
class Build:
    """Object files by symbol, the symbol of each kernel, and the seconds spent on each kernel that had to be compiled."""

    target: Target
    cache: ObjectCache
    objects: dict[str, bytes] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    hits: int = 0

    def add_kernels(self, kernels: Iterable[Kernel]) -> None:
        """Compile every kernel whose like is not here yet."""
        started: dict[str, Future[bytes]] = {}
        with ThreadPoolExecutor(1, "llvm") as llvm:
            for kernel in kernels:
                digest = kernel_digest(kernel)
                symbol = self.symbols[kernel.name] = f"kernel_{digest}"
                if symbol in self.objects or symbol in started:
                    continue
                key = object_key(digest, self.target)
                known = self.cache.get(key)
                if known is not None:
                    self.objects[symbol] = known
                    self.hits += 1
                    continue
                start = time.perf_counter()
                text = emit_kernel(replace(kernel, name=symbol), self.target)
                self.seconds[kernel.name] = time.perf_counter() - start
                started[symbol] = llvm.submit(self._compile, kernel, text, key)
        for symbol, future in started.items():
            self.objects[symbol] = future.result()

    def add_main(self, name: str, actions: Iterable[Action], sizes: Mapping[str, int]) -> None:
        """Compile the function `name` that performs `actions`; cheap, so never cached."""
        self.objects[name] = to_object(emit_main(name, tuple(actions), sizes), self.target, optimize=False)

    def _compile(self, kernel: Kernel, text: str, key: str) -> bytes:
        """The object file for the text of a kernel, which the cache keeps."""
        start = time.perf_counter()
        code = to_object(text, self.target)
        self.seconds[kernel.name] += time.perf_counter() - start
        self.cache.put(key, code)
        return code
