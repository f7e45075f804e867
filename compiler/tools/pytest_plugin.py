"""Plugin of pytest: `--bless` writes what a pass gives into the test that expects it, see `check_pass`."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    parser.addoption("--bless", action="store_true", help="write what a pass gives into the test that expects it")


def pytest_configure(config: pytest.Config) -> None:
    """Tell `check_pass`; without the option nothing is imported."""
    if config.getoption("--bless"):
        from compiler.testing import checks

        checks.BLESS = True
