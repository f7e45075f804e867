"""The page as one file: template, style, scripts, and data as compressed JSON."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from compiler.report.explore.page_data import Page
from compiler.report.page import TOKEN_PATTERN, render_template

FOLDER = files("compiler.report.explore")
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.M)


def page_html(page: Page) -> str:
    """Return the page as HTML that reads nothing else."""
    pattern = TOKEN_PATTERN.pattern.replace("(?P<", "(?<")
    style, script = FOLDER.joinpath("explore.css").read_text(), bundled_script()
    data = encoded_json({"page": page, "tokens": pattern})
    return render_template("explore/explore.html", title=page.title, style=style, script=script, data=data)


def save_page(page: Page, path: str | os.PathLike[str]) -> Path:
    """Write the page to `path`, and return the path."""
    file = Path(path)
    file.write_text(page_html(page), encoding="utf-8")
    return file


def encoded_json(value: object) -> str:
    """Return a value as JSON, compressed by gzip, in base64."""
    text = json.dumps(value, default=vars, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def bundled_script() -> str:
    """Return the modules of the page as one: each after those that it imports, without import and export."""
    return "\n".join(re.sub(r"^export ", "", IMPORT.sub("", text), flags=re.M) for text in _modules("main", set()))


def _modules(name: str, seen: set[str]) -> Iterator[str]:
    seen.add(name)
    text = FOLDER.joinpath(f"{name}.js").read_text(encoding="utf-8")
    for other in IMPORT.findall(text):
        if other not in seen:
            yield from _modules(other, seen)
    yield text
