"""Options of the test run."""

from __future__ import annotations

import pytest
import torch

from compiler.testing import checks


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="write what a pass gives into the test that expects it")


def pytest_configure(config: pytest.Config) -> None:
    checks.BLESS = config.getoption("--bless")
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Every test draws the same random numbers, whichever ran before it."""
    torch.manual_seed(0)
