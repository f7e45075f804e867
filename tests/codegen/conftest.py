"""Machine code is tested for every target that this machine runs."""

from __future__ import annotations

import pytest
from native import runnable_targets


@pytest.fixture(params=runnable_targets())
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)
