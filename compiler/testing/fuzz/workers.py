"""Work that may end its process: done in forked ones, which are replaced when they die.

A graph that makes LLVM abort, or machine code that writes where it must not, takes only a worker along.  Limits are of CPU time: a
machine that is busy, or a process that is paused, is no hang.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any, TypeVar

from compiler.testing.fuzz.check import Failure

JOB_TIMEOUT = 60
"""The CPU time that one piece of work may take."""

T = TypeVar("T")
R = TypeVar("R")


class Worker:
    """A process that calls `function` on what it is sent."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["compiler.testing.fuzz.check", "compiler.testing.fuzz.generate"])
        self.connection, theirs = context.Pipe()
        self.process: ForkServerProcess = context.Process(target=run_worker, args=(theirs, function), daemon=True)
        self.process.start()
        theirs.close()

    def termination_failure(self) -> Failure:
        """What became of the process, which is no more."""
        self.process.join()
        self.connection.close()
        code = self.process.exitcode or 0
        if code == -signal.SIGPROF:
            return Failure("hang", "process", f"took more than {JOB_TIMEOUT} seconds")
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Failure("crash", "process", f"the process ended with {name}")

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def run_worker(connection: Connection, function: Callable[[Any], Any]) -> None:
    """Answer until nobody asks."""
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, JOB_TIMEOUT)
        answer = function(asked)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send(answer)


def map_in_processes(
    function: Callable[[T], R], work_items: Iterable[T], num_workers: int = 1
) -> Iterator[tuple[T, R | Failure]]:
    """`function` of each piece of work, as it is done, by `jobs` processes; a Failure where the process did not survive it."""
    waiting, busy = iter(work_items), dict[Connection, tuple[Worker, T]]()

    def start(worker: Worker | None) -> None:
        for piece in waiting:
            worker = worker or Worker(function)
            worker.connection.send(piece)
            busy[worker.connection] = worker, piece
            return
        if worker:
            worker.stop()

    try:
        for _ in range(num_workers):
            start(None)
        while busy:
            for connection in wait(list(busy)):
                worker, piece = busy.pop(connection)  # type: ignore[call-overload]  # pipes are all that is waited for
                try:
                    answer: R | Failure = worker.connection.recv()
                except (EOFError, ConnectionResetError):
                    answer = worker.termination_failure()
                    start(None)
                else:
                    start(worker)
                yield piece, answer
    finally:
        for worker, _ in busy.values():
            worker.stop()
