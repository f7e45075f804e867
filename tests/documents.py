"""Fenced blocks of the documentation: files, scripts, commands and what they print.

`python` is a script, or stands in a file of `examples/` word for word; the block `text` behind it is what that prints.  `console` holds
commands with their output.  A block with a `title` is a file of that name, in the folder where the blocks of its page run.
A comment before a block says why it is not run, or why its output is not compared:

    <!-- not run: takes minutes -->
    <!-- output varies: times -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from compiler.testing import checks

ROOT = Path(__file__).parent.parent
EXAMPLES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")}
PAGES = {str(path.relative_to(ROOT)): path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
"""Every page by its path from the root of the repository."""

FENCE_OR_HEADING = re.compile(
    r"^#+ (?P<heading>[^\n]+)$|^(?:<!-- (?P<note>not run|output varies): (?P<reason>[^>]+) -->\n)?"
    r"^```(?P<kind>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.M | re.S,
)
RUN = {"python", "console", "bash", "sh"}
"""Kinds of blocks that a reader may run."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, below the heading `section`; `note` is "not run", "output varies" or "", `title` names a file."""

    page: Path
    section: str
    kind: str
    text: str
    title: str = ""
    note: str = ""

    @property
    def is_run(self) -> bool:
        return self.kind in RUN and not self.title and self.note != "not run"

    @property
    def example(self) -> Path | None:
        """The example that holds this block."""
        return next((path for path, source in EXAMPLES.items() if self.text in source), None)

    @property
    def commands(self) -> list[str]:
        return re.findall(r"^\$ (.*)$", self.text, re.M)

    def must_be(self, wanted: str) -> None:
        """The block holds the lines `wanted`; with --bless, it does afterwards."""
        if self.note == "output varies" or self.text == wanted:
            return
        assert checks.BLESS, f"{self.page.name} shows other output; to accept the new one: pytest --bless\n{wanted}"
        whole = self.page.read_text(encoding="utf-8")
        old = f"```{self.kind}\n{self.text}```"
        assert old in whole
        self.page.write_text(whole.replace(old, f"```{self.kind}\n{wanted}```", 1), encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    found, section = [], ""
    for m in FENCE_OR_HEADING.finditer(PAGES[page].read_text(encoding="utf-8")):
        section = m["heading"] or section
        if m["text"] is not None:
            found.append(Block(PAGES[page], section, m["kind"], m["text"], m["title"] or "", m["note"] or ""))
    return found


def notebook(page: str) -> Path | None:
    """The notebook that a page is, whose test runs its code."""
    path = ROOT / "examples" / f"{PAGES[page].stem.replace('-', '_')}.ipynb"
    return path if path.exists() else None


def steps(page: str) -> list[tuple[Block, Block | None]]:
    """What a page runs, in order: scripts and commands, and the block that shows what a script prints.

    Several blocks of one example are one script, and it is run where its output stands.  A notebook has a test of its own.
    """
    found: list[tuple[Block, Block | None]] = []
    if notebook(page):
        return []
    for block in blocks(page):
        script, output = found[-1] if found else (None, None)
        if block.kind == "text" and not block.title and script and script.kind == "python":
            found[-1] = script, block
        elif block.is_run and not (script and not output and block.example and block.example == script.example):
            found.append((block, None))
    return [(script, output) for script, output in found if output or not script.example]


def write_files(page: str, folder: Path) -> None:
    """Write the files that a page shows, and a link to the examples, into a folder."""
    (folder / "examples").symlink_to(ROOT / "examples")
    for block in blocks(page):
        if block.title:
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text, encoding="utf-8")
