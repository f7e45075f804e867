"""Worker processes for functions that may crash; a worker that dies is replaced.

An abort of LLVM or a bad memory access in generated code ends only a worker.  Time limits are of CPU time, so that a busy machine
or a paused process causes no timeout.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from compiler.testing.fuzz.check import Failure

JOB_TIMEOUT = 60
"""Limit for one work item, in seconds of CPU time."""

T = TypeVar("T")
R = TypeVar("R")


class Worker:
    """A process that calls `function` on each item it receives."""

    def __init__(self, function: Callable[[Any], Any], forks: bool = False) -> None:
        context: Any = multiprocessing.get_context("fork" if forks else "forkserver")
        if not forks:
            context.set_forkserver_preload(["compiler.testing.fuzz.check", "compiler.testing.fuzz.generate"])
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=run_worker, args=(theirs, function), daemon=True)
        self.process.start()
        theirs.close()

    def termination_failure(self) -> Failure:
        """Return the failure that ended the process: a timeout or a crash."""
        self.process.join()
        self.connection.close()
        code = self.process.exitcode or 0
        if code == -signal.SIGPROF:
            return Failure("timeout", "process", f"took more than {JOB_TIMEOUT} seconds")
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Failure("crash", "process", f"the process ended with {name}")

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def run_worker(connection: Connection, function: Callable[[Any], Any]) -> None:
    """Send the result of `function` for each received item until the connection closes."""
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    gc.freeze()  # the imported modules stay
    while True:
        try:
            item = connection.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, JOB_TIMEOUT)
        result = function(item)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send(result)


def map_in_processes(
    function: Callable[[T], R], work_items: Iterable[T], num_workers: int = 1, *, forks: bool = False
) -> Iterator[tuple[T, R | Failure]]:
    """Yield each item with the result of `function`, or with a Failure if its process died, in order of completion.

    With `forks`, workers are copies of this process, which must not have run native code on several threads.
    """
    pending, busy = iter(work_items), dict[Connection, tuple[Worker, T]]()

    def start(worker: Worker | None) -> None:
        for item in pending:
            worker = worker or Worker(function, forks)
            worker.connection.send(item)
            busy[worker.connection] = worker, item
            return
        if worker:
            worker.stop()

    try:
        for _ in range(num_workers):
            start(None)
        while busy:
            for connection in wait(list(busy)):
                worker, item = busy.pop(connection)  # type: ignore[call-overload]  # `wait` returns only our pipes
                try:
                    result: R | Failure = worker.connection.recv()
                except (EOFError, ConnectionResetError):
                    result = worker.termination_failure()
                    start(None)
                else:
                    start(worker)
                yield item, result
    finally:
        for worker, _ in busy.values():
            worker.stop()
