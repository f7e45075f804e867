"""Kernels -> object files: each distinct kernel is compiled once, or read from the cache.

LLVM runs in a background thread, which compiles one kernel while passes and codegen run on the next.  llvmlite holds one
lock around LLVM, so more threads gain nothing.  A helper process takes as long to start (0.3 s) as ten kernels to compile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object_file import DEFAULT_LEVEL, emit_object
from compiler.codegen.llvm.program_entry import Action, emit_program_entry
from compiler.codegen.llvm.targets import CPUTarget
from compiler.ir.tile.digest import kernel_digest
from compiler.ir.tile.kernel import Kernel
from compiler.runtime.cache import ObjectCache, object_key

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Build:
    """Compiles kernels in the background; `finish` waits for all of them.

    `objects` holds object files by symbol, `symbols` the symbol of each kernel, and `seconds` the compile time of each
    kernel that was not in the cache.  `level` is LLVM's optimization level.  `kernels` are those that have been added, by name.
    """

    target: CPUTarget
    cache: ObjectCache
    objects: dict[str, bytes] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    level: int = DEFAULT_LEVEL
    cache_hits: int = 0
    _pending: dict[str, Future[bytes]] = field(default_factory=dict)
    _threads: dict[str, ThreadPoolExecutor] = field(default_factory=dict)

    def add_kernels(self, kernels: Iterable[Kernel]) -> None:
        """Compile kernels and wait for them; equal kernels are compiled once."""
        for kernel in kernels:
            self.add(kernel)
        self.finish()

    def add(self, kernel: Kernel) -> None:
        """Start to compile a kernel, unless an equal one is compiled or in the cache."""
        if self.kernels.get(kernel.name) is kernel:
            return
        self.kernels[kernel.name] = kernel
        digest = kernel_digest(kernel)
        symbol = self.symbols[kernel.name] = f"kernel_{digest}"
        if symbol in self.objects or symbol in self._pending:
            return
        key = object_key(f"{digest} {self.level}", self.target)
        cached = self.cache.get(key)
        if cached is not None:
            self.objects[symbol] = cached
            self.cache_hits += 1
            return
        start = time.perf_counter()
        text = emit_kernel(replace(kernel, name=symbol), self.target)
        self.seconds[kernel.name] = time.perf_counter() - start
        self._pending[symbol] = self.submit("llvm", self._compile, kernel, text, key)

    def submit(self, thread: str, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `job(*args, **kwargs)` in the thread of that name, which runs its jobs in order."""
        if thread not in self._threads:
            self._threads[thread] = ThreadPoolExecutor(1, thread)
        return self._threads[thread].submit(job, *args, **kwargs)

    def finish(self) -> None:
        """Wait for all jobs; re-raise the exception of a failed compilation."""
        for thread in self._threads.values():
            thread.shutdown()
        self.objects.update({symbol: code.result() for symbol, code in self._pending.items()})
        self._pending.clear()
        self._threads.clear()

    def add_program_entry(self, name: str, actions: Iterable[Action], sizes: Mapping[str, int], parallel: bool) -> None:
        """Compile the entry function `name`, which performs `actions`, unless its object file came from a cache of programs."""
        if name in self.objects:
            return
        text = emit_program_entry(name, tuple(actions), sizes, parallel)
        self.objects[name] = emit_object(text, self.target, level=0)

    def _compile(self, kernel: Kernel, text: str, key: str) -> bytes:
        """Compile the LLVM IR of a kernel and store the object file in the cache."""
        start = time.perf_counter()
        code = emit_object(text, self.target, self.level)
        self.seconds[kernel.name] += time.perf_counter() - start
        self.cache.put(key, code)
        return code
