"""Options of the test run."""

from __future__ import annotations

import pytest
import torch

from compiler.driver import program_cache
from compiler.options import Options
from compiler.passes import reproducer


def pytest_configure() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Every test draws the same random numbers, whichever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def reproducers(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """IR that a failed pass leaves lies with the temporary files of the test run, which pytest deletes."""
    monkeypatch.setattr(reproducer, "FOLDER", tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def no_programs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs its passes: programs are cached only in a directory that a test names.

    A test may replace parts of the compiler, and the key of a program does not know of it.
    """
    program_key, default = program_cache.program_key, Options().cache
    monkeypatch.setattr(
        program_cache, "program_key", lambda g, o, t: program_key(g, o, t) if o.cache != default else ""
    )
