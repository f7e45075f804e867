"""The tutorial on schedules is one text in three forms: a page, a script and a notebook."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from documents import ROOT, blocks

from compiler.testing import checks

TUTORIAL, FORMS = "docs/tutorial-schedules.md", ROOT / "examples"
FENCE = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


def tutorial_script() -> str:
    """The code of the tutorial in one file."""
    code = [b.text for b in blocks(TUTORIAL) if b.kind == "python"]
    return '"""Schedule a matrix product: the code of docs/tutorial-schedules.md."""\n\n' + "\n\n".join(code)


def tutorial_notebook() -> str:
    """The tutorial as a Jupyter notebook: a cell for each block of code, and one for the text before it."""
    cells, end, text = list[dict[str, object]](), 0, (ROOT / TUTORIAL).read_text()
    for m in (m for m in FENCE.finditer(text) if m["kind"] == "python"):
        prose = FENCE.sub(lambda f: "" if f["kind"] == "text" else f[0], text[end : m.start()]).strip()
        cells += [markdown_cell(prose)] * bool(prose) + [code_cell(m["text"].strip())]
        end = m.end()
    cells.append(markdown_cell(text[end:].strip()))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    numbered = [{"id": f"cell{k}", **cell} for k, cell in enumerate(cells)]
    book = {"cells": numbered, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def markdown_cell(text: str) -> dict[str, object]:
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}


def code_cell(text: str) -> dict[str, object]:
    source = text.splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}


@pytest.mark.parametrize(("name", "make"), [("py", tutorial_script), ("ipynb", tutorial_notebook)])
def test_forms_of_the_tutorial(name: str, make: Callable[[], str]) -> None:
    """With --bless, script and notebook are written."""
    path, wanted = FORMS / f"tutorial_schedules.{name}", make()
    if checks.BLESS:
        path.write_text(wanted)
    assert path.read_text() == wanted, f"{path.name} differs from {TUTORIAL}; to write it: pytest --bless"


def test_the_notebook_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Every cell, on small matrices; what it prints stands behind its code in the document."""
    found, space = blocks(TUTORIAL), dict[str, object]()
    expected = {b.text.strip(): after for b, after in pairwise(found) if after.kind == "text"}
    book = json.loads((FORMS / "tutorial_schedules.ipynb").read_text())
    for cell in (c for c in book["cells"] if c["cell_type"] == "code"):
        code = "".join(cell["source"])
        exec(code.replace("128, 3072, 768, seconds=1.0", "8, 48, 16, seconds=0.01"), space)
        printed = capsys.readouterr().out
        if code in expected:
            expected[code].must_be(printed)
    assert "the compiler's own" in printed
    assert "differ" not in printed
