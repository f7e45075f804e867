"""Processes that measure one program after another; one that crashes or hangs is replaced, and its program goes on without the culprit."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from benchmarks.survey.measure import Report, describe_error, measure
from benchmarks.survey.program import Program
from benchmarks.survey.rows import Row

Measure = Callable[[Program, Sequence[str], int, Report], Row]
"""Measures a program with peers and a number of threads."""


class Workers:
    """One worker process at a time, with a limit of `timeout` seconds for each stage of a measurement."""

    def __init__(self, peers: Sequence[str], threads: int, timeout: float, function: Measure = measure) -> None:
        self.peers, self.threads, self.timeout = tuple(peers), threads, timeout
        self.function = function
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["benchmarks.survey.measure"])
        self.process: ForkServerProcess | None = None

    def measure(self, program: Program) -> Row:
        """Return the row of `program`; a peer that ends or blocks the process is a failure, and the others are measured without it."""
        failures: dict[str, str] = {}
        while True:
            peers = tuple(p for p in self.peers if p not in failures)
            answer = self._attempt(program, peers)
            if isinstance(answer, Row):
                return replace(answer, failures={**failures, **answer.failures})
            stage, reason = answer
            failures[stage] = reason
            if stage not in peers:
                return Row(program.seed, program.kind, program.index, program.family, self.threads, failures=failures)

    def _attempt(self, program: Program, peers: tuple[str, ...]) -> Row | tuple[str, str]:
        """Return a row, or the stage in which the process ended and why."""
        if self.process is None:
            self.connection, theirs = self.context.Pipe()
            self.process = self.context.Process(target=serve, args=(theirs, self.function), daemon=True)
            self.process.start()
            theirs.close()
        self.connection.send((program, peers, self.threads))
        stage = "start"
        while self.connection.poll(self.timeout):
            try:
                message = self.connection.recv()
            except (EOFError, ConnectionResetError):
                self.process.join()
                code = self.process.exitcode or 0
                self.close()
                return (
                    stage,
                    f"the process ended with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}",
                )
            if isinstance(message, Row):
                return message
            if isinstance(message, Exception):
                return stage, str(message)
            stage = message
        self.close()
        return stage, f"took more than {self.timeout:g} seconds"

    def close(self) -> None:
        if self.process:
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.process = None


def serve(connection: Connection, function: Measure) -> None:
    """Send the stages and the row of each received program until the connection closes."""
    with suppress(EOFError):
        while True:
            program, peers, threads = connection.recv()
            try:
                answer: Row | Exception = function(program, peers, threads, connection.send)
            except Exception as error:  # becomes a failure of its stage
                answer = RuntimeError(describe_error(error))
            connection.send(answer)
