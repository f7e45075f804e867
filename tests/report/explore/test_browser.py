"""The page in a browser: it loads, steps, selects, searches and compares without an error on the console."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.browser import console_errors, missing_browser, opened_page
from tests.report.explore.browser import click, press, texts

pytestmark = pytest.mark.skipif(bool(missing_browser()), reason=f"no browser: {missing_browser()} is missing")


@pytest.fixture(scope="module")
def page(compared_ways: Path) -> Iterator[Any]:
    with opened_page(compared_ways) as driver:
        yield driver


@pytest.fixture(autouse=True)
def no_errors(page: Any) -> Iterator[None]:
    yield
    assert console_errors(page) == ""


def show_imported_graph(page: Any) -> None:
    """Go to the first step, where no pass has joined nodes."""
    press(page, "g", *["ArrowUp"] * 30)


def test_ways_stand_side_by_side(page: Any) -> None:
    assert texts(page, ".view:not([hidden]) .summary b") == ["default", "unfused", "gpu"]
    assert "a call, measured" in texts(page, "#dock th")
    press(page, "2")
    assert texts(page, ".view:not([hidden]) .summary b") == ["default", "gpu"]
    press(page, "2")
    assert len(texts(page, ".view:not([hidden])")) == 3


def test_keys_step_through_passes(page: Any) -> None:
    show_imported_graph(page)
    assert texts(page, ".view:first-child .step.active") == ["imported"]
    title = ".view:first-child .pane:nth-child(3) .title"
    assert texts(page, title) == ["Graph IR at first"]
    while "decompose" not in texts(page, title)[0]:
        press(page, "ArrowDown")
    assert any("layer_norm_0.sum" in line for line in texts(page, ".view:first-child .line.added"))
    assert any("= layer_norm " in line for line in texts(page, ".view:first-child .line.removed"))


def test_keys_step_through_rewrites(page: Any) -> None:
    show_imported_graph(page)
    press(page, "ArrowRight")
    title = ".view:first-child .pane:nth-child(3) .title"
    assert re.match(r"Graph IR after \w+, rewrite 1 of ", texts(page, title)[0])
    assert texts(page, ".view:first-child .step.active")[0].startswith("1. ")
    assert texts(page, ".view:first-child .line.added")
    press(page, "ArrowRight", "ArrowLeft", "ArrowLeft")
    assert texts(page, title) == ["Graph IR at first"]


def test_a_kernel_is_selected_everywhere(page: Any) -> None:
    click(page, "#dock button.kernel")
    name = texts(page, "#dock button.kernel")[0].split()[0]
    assert texts(page, ".view:first-child .details .title") == [f"Kernel {name}"]
    assert texts(page, ".view:first-child .pane:nth-child(4) .title")[0].startswith(f"Tile IR of {name}")
    for view in ("first-child", "nth-child(2)", "last-child"):  # the same part of the model in every way
        assert texts(page, f".view:{view} .pane:nth-child(3) .line.marked")
        assert texts(page, f".view:{view} .pane:nth-child(5) .line.marked")
    press(page, "Escape")
    assert not texts(page, ".line.marked")


def test_a_source_line_selects_its_kernel(page: Any) -> None:
    lines = texts(page, ".view:first-child .pane:nth-child(5) .line")
    click(
        page,
        ".view:first-child .pane:nth-child(5) .line",
        next(k for k, t in enumerate(lines) if "torch.softmax(" in t),
    )
    assert any("torch.softmax(" in t for t in texts(page, ".view:first-child .line.marked"))
    kernels = texts(page, ".details .title")
    assert len(kernels) == 3
    assert "exp" in texts(page, ".view:first-child .details dd")[0]


def test_search_finds_modules(page: Any) -> None:
    show_imported_graph(page)
    page.execute_script(
        "const i = document.querySelector('#search input'); i.value = 'module blocks.1.linear';"
        "i.dispatchEvent(new Event('input')); i.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))"
    )
    marked = texts(page, ".view:first-child .pane:nth-child(3) .line.marked")
    assert marked
    assert all("linear_1" in line for line in marked)


@pytest.mark.parametrize("tab", ["Kernels", "Roofline", "Memory", "Timeline", "Remarks"])
def test_tabs_show_something(page: Any, tab: str) -> None:
    click(page, "#dock .tabs button", texts(page, "#dock .tabs button").index(tab))
    shape = {"Kernels": "tbody tr", "Remarks": "tbody tr", "Roofline": ".mark"}.get(tab, ".block")
    assert page.execute_script(f"return document.querySelectorAll('#dock {shape}').length") > 1


def test_boxes_open_and_close(page: Any) -> None:
    def pixels() -> str:
        script = "const done = arguments[0]; requestAnimationFrame(() => setTimeout(() => done(document.querySelector('canvas').toDataURL())))"
        return page.execute_async_script(script)  # type: ignore[no-any-return]  # what the script returns

    click(page, ".graph button", 4)
    closed = pixels()
    click(page, ".graph button", 3)
    assert pixels() != closed


def test_both_themes(page: Any) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    first = page.execute_script(colour)
    press(page, "d")
    assert page.execute_script(colour) != first
    press(page, "d", "?")
    assert page.execute_script("return document.querySelector('dialog').open")
    press(page, "?")
