"""Machine code is tested for every target that this machine runs."""

from __future__ import annotations

import pytest
from native import runnable


@pytest.fixture(params=runnable())
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)
