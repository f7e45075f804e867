"""What the tests of passes check: IR before and after, taken from their calls of `check_pass`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from compiler.passes.pipeline_text import print_pipeline

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Check:
    """One call of `check_pass` in a test; `pipeline` is text."""

    file: str
    test: str
    pipeline: str
    before: str = ""
    after: str = ""
    unchanged: str = ""
    remark: str = ""


class _Called(BaseException):
    """Carries the arguments of the first call of `check_pass` out of a test, which thus ends there."""

    def __init__(self, pipeline: Any, **arguments: Any) -> None:
        self.pipeline = pipeline if isinstance(pipeline, str) else print_pipeline(pipeline)
        self.texts = {k: v for k, v in arguments.items() if k in ("before", "after", "unchanged", "remark")}


def recorded_checks() -> Iterator[Check]:
    """Yield the first check of each test in tests/passes; a parametrized test runs once, with its first arguments."""
    for path in sorted((ROOT / "tests" / "passes").rglob("test_*.py")):
        tests = vars(_load(path))
        tests["check_pass"] = _interrupt
        for name, test in [*tests.items()]:
            checks = name.startswith("test_") and "check_pass" in test.__code__.co_names
            if checks and (call := _first_call(test)):
                yield Check(str(path.relative_to(ROOT)), name, call.pipeline, **call.texts)


def _interrupt(pipeline: Any, **arguments: Any) -> None:
    raise _Called(pipeline, **arguments)


def _first_call(test: Callable[..., None]) -> _Called | None:
    """Run a test up to its first check; None if it takes fixtures."""
    arguments: dict[str, Any] = {}
    for mark in getattr(test, "pytestmark", ()):
        names, values = mark.args[:2]
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else names
        first = next(iter(values))
        if hasattr(first, "marks"):  # a pytest.param
            first = first.values
        elif len(names) == 1:
            first = (first,)
        arguments |= dict(zip(names, first, strict=True))
    if arguments.keys() != inspect.signature(test).parameters.keys():
        return None
    try:
        test(**arguments)
    except _Called as call:
        return call
    return None


def _load(path: Path) -> ModuleType:
    """Import a test file, which may import its neighbours in tests/."""
    spec = importlib.util.spec_from_file_location(f"recorded_{path.stem}", path)
    assert spec
    assert spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with _on_path(ROOT / "tests"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
