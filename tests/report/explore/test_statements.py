"""A statement of Tile IR, its code and its graph nodes: selecting one marks the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.browser import console_errors, missing_browser, opened_page
from compiler.api import explore
from tests.report.explore.browser import click, press, texts
from tests.report.explore.pages import Net, final_text, page_data

VIEW = ".view:first-child"
GRAPH, TILE, CODE = (f"{VIEW} .pane:nth-child({k})" for k in (3, 4, 6))


@pytest.fixture(scope="module", params=["host", "sm90"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    return explore(Net().eval(), path, (torch.randn(8, 32),), options={"target": request.param}, repeats=1)


@pytest.fixture(scope="module")
def page(file: Path) -> Iterator[Any]:
    if absent := missing_browser():
        pytest.skip(f"no browser: {absent} is missing")
    with opened_page(file) as driver:
        yield driver
        assert console_errors(driver) == ""


def test_statements_lead_to_graph_nodes(file: Path) -> None:
    """Accumulators and stores stand for the node that they compute, not for all of their kernel."""
    data = page_data(file)
    (way,), names = data["ways"], [o["name"] for o in data["origins"]]
    found = list[tuple[str, set[str]]]()
    for k in way["kernels"]:
        lines = final_text(k["tile"]).splitlines()
        assert len(k["statements"]["first_lines"]) == len(lines)
        for line, origins in k["statements"]["origins"].items():
            found.append((lines[int(line) - 1].strip(), {names[o] for o in origins}))
    assert [nodes for line, nodes in found if " / %acc" in line and line.startswith("store")] == [{"softmax_0"}]
    products = [nodes for line, nodes in found if "yield" in line and "] * %" in line]
    assert {"linear_0"} in products
    assert {"linear_1"} in products


def show_last_tile_step(page: Any) -> None:
    """Show the scheduled Tile IR of the kernel that computes the softmax."""
    page.execute_script(
        "const i = document.querySelector('#search input'); i.value = 'node %softmax_0';"
        "i.dispatchEvent(new Event('input')); i.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))"
    )


def test_a_statement_marks_its_code_and_back(page: Any) -> None:
    show_last_tile_step(page)
    lines = texts(page, f"{TILE} .line")
    click(page, f"{TILE} .line", next(k for k, t in enumerate(lines) if " / %acc" in t and "store" in t))
    for _ in texts(page, f"{CODE} h2 button"):
        (stage,) = texts(page, f"{CODE} h2 [aria-selected=true]")
        marked = texts(page, f"{CODE} .line.marked")
        assert marked, stage
        assert any({"llvm": "fdiv", "assembly": "div", "triton": "div_rn("}[stage] in t for t in marked)
        assert all(" / %acc" in t for t in texts(page, f"{TILE} .line.marked"))
        press(page, "Escape")
        assert not texts(page, f"{CODE} .line.marked")
        all_lines = texts(page, f"{CODE} .line")
        click(page, f"{CODE} .line", all_lines.index(marked[-1]))
        assert texts(page, f"{CODE} .line.marked") == marked
        assert all(" / %acc" in t for t in texts(page, f"{TILE} .line.marked"))
        assert any("%softmax_0" in t for t in texts(page, f"{GRAPH} .line.marked"))
        press(page, "c")


def test_keys_step_through_statements(page: Any) -> None:
    show_last_tile_step(page)
    press(page, "s")
    assert "kernel @" in texts(page, f"{TILE} .line.marked")[0]
    press(page, "s")
    assert "parallel " in texts(page, f"{TILE} .line.marked")[0]
    assert texts(page, f"{CODE} .line.marked")
    press(page, "S")
    assert "kernel @" in texts(page, f"{TILE} .line.marked")[0]


def test_a_line_of_an_earlier_step_marks_the_code_it_becomes(page: Any) -> None:
    """A statement that later passes keep is followed through them; code shows the last step if the statement is new there."""
    show_last_tile_step(page)
    press(page, "t", *["ArrowUp"] * 40)
    assert "at first" in texts(page, f"{TILE} .title")[0]
    lines = texts(page, f"{TILE} .line")
    click(page, f"{TILE} .line", next(k for k, t in enumerate(lines) if " / %acc" in t and "store" in t))
    marked = texts(page, f"{TILE} .line.marked")
    press(page, "s")
    press(page, "S")
    assert any(" / %acc" in t for t in [*marked, *texts(page, f"{TILE} .line.marked")])
    assert texts(page, f"{CODE} .line.marked")
