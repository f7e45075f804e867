"""A process whose results come one at a time and that is ended when their time is up, whatever it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

SPAWN = get_context("spawn")
"""Fresh processes: a GPU cannot be used in a forked one."""


class BudgetedProcess:
    """Runs `function`, which a module defines and which yields results, in a process that serves one call after another.

    A call that takes too long ends the process; the next one starts another.
    """

    def __init__(self, function: Callable[..., Iterator[Any]]) -> None:
        self.function = function
        self._process: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None

    def results(self, *args: Any, seconds: float) -> Iterator[Any]:
        """Yield the results of a call; TimeoutError after `seconds`, RuntimeError if the process fails, with its words."""
        end = time.monotonic() + seconds
        connection = self._connect()
        connection.send(args)
        try:
            while connection.poll(max(0.0, end - time.monotonic())):
                kind, value = connection.recv()
                if kind == "end":
                    return
                if kind == "error":
                    raise RuntimeError(value)
                yield value
        except EOFError:
            self.close()
            raise RuntimeError("the process died") from None
        self.close()
        raise TimeoutError(f"not done in {seconds:.0f} s")

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._connection = None

    def _connect(self) -> Connection[Any, Any]:
        if self._connection is None:
            self._connection, other = SPAWN.Pipe()
            self._process = SPAWN.Process(target=serve, args=(self.function, other), daemon=True)
            self._process.start()
            other.close()
        return self._connection


def serve(function: Callable[..., Iterator[Any]], connection: Connection[Any, Any]) -> None:
    """Answer calls until the other side is gone."""
    while True:
        try:
            args = connection.recv()
        except EOFError:
            return
        try:
            for value in function(*args):
                connection.send(("result", value))
            connection.send(("end", None))
        except Exception as error:  # whatever a compiler or a device raises; the caller says it
            first = (str(error).splitlines() or [""])[0][:200]
            connection.send(("error", f"{type(error).__name__}: {first}"))
