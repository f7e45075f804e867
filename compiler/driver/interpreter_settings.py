"""Settings of the Python interpreter during a compilation: thread switches, garbage collection, memory of its stack."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

GIL_SWITCH_INTERVAL = 0.0005
"""Seconds that LLVM's thread waits for Python's lock between two of its calls; a kernel takes about twenty."""

STACK_CHUNK_WORDS = 1 << 16
"""Words in the frame below a compilation.  The chunk around it has twice as many: room for a thousand more frames."""

_saved_settings: list[tuple[bool, float]] = []
"""An entry for each compilation that runs now: whether Python collected cycles before the first, and its switch interval."""

_settings_lock = threading.Lock()


def compile_time(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that compiles: it runs under `compile_time_settings`, and `in_one_stack_chunk`."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with compile_time_settings():
            return in_one_stack_chunk(lambda: function(*args, **kwargs))

    return run


@contextmanager
def compile_time_settings() -> Iterator[None]:
    """Hand Python's lock over soon, and collect no cycles: there are few, and the search for them takes long."""
    with _settings_lock:
        now = gc.isenabled(), sys.getswitchinterval()
        _saved_settings.append(_saved_settings[-1] if _saved_settings else now)
        gc.disable()
        sys.setswitchinterval(min(GIL_SWITCH_INTERVAL, now[1]))
    try:
        yield
    finally:
        with _settings_lock:
            gc_was_on, interval = _saved_settings.pop()
            if not _saved_settings:
                sys.setswitchinterval(interval)
                if gc_was_on:
                    gc.enable()


def in_one_stack_chunk(function: Callable[[], T]) -> T:
    """Call `function` with room for the frames of its calls in one chunk of the interpreter's stack.

    CPython 3.11 and later map a chunk of 16 KiB for the call that no longer fits, and unmap it when that call returns.  A
    loop at such a depth maps memory in each iteration, which made compilations up to 1.4 times as long.  A chunk is as
    large as its first frame needs, so that the frame of this function is declared larger than it is.
    """
    return function()


in_one_stack_chunk.__code__ = in_one_stack_chunk.__code__.replace(co_stacksize=STACK_CHUNK_WORDS)
