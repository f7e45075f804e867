"""The process that benchmarks on a GPU measure in.  Each one starts in a moment, because this module imports little."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from benchmarks.budgeted_process import BudgetedProcess


def counted(n: int) -> Iterator[int]:
    """Yield the numbers below n, and fail or hang after them: for a negative one at once."""
    yield from range(n)
    if n == 3:
        raise ValueError("three")
    if n == 4:
        time.sleep(60)
    if n == 5:
        os._exit(1)


def test_a_process_serves_calls_until_their_time_is_up() -> None:
    worker = BudgetedProcess(counted)
    try:
        assert list(worker.results(2, seconds=60)) == [0, 1]
        with pytest.raises(RuntimeError, match="ValueError: three"):
            list(worker.results(3, seconds=60))
        assert list(worker.results(1, seconds=60)) == [0]
        slow, seen = worker.results(4, seconds=2), []
        with pytest.raises(TimeoutError, match="not done"):
            seen.extend(slow)
        assert list(worker.results(1, seconds=60)) == [0]  # by another process
        with pytest.raises(RuntimeError, match="died"):
            list(worker.results(5, seconds=60))
        assert list(worker.results(1, seconds=60)) == [0]
    finally:
        worker.close()
