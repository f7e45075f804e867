"""Machine code is tested for every target that this machine runs; Triton in processes of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from native import runnable_targets
from triton_process import choose


@pytest.fixture(params=runnable_targets())
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    """A process in which Triton interprets kernels."""
    with ProcessPoolExecutor(1, get_context("spawn"), choose, ("1",)) as pool:
        yield pool


@pytest.fixture(scope="module")
def offline() -> Iterator[ProcessPoolExecutor]:
    """A process in which Triton compiles kernels."""
    with ProcessPoolExecutor(1, get_context("spawn"), choose, ("0",)) as pool:
        yield pool
