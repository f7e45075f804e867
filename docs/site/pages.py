"""Every page of the site as text: written pages, the reference made from declarations, and the sources that they link to.

A page is known by its path in the repository; a generated one by the path that it would have, as in docs/passes/tile.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from docs.site.figures import with_figures
from docs.site.markdown import fenced
from docs.site.op_pages import op_pages
from docs.site.pass_pages import pass_pages

ROOT = Path(__file__).parents[2]

LINK = re.compile(r"(?<=\]\()(?!\w+:)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
"""A link to a file; not one to a place on the same page."""


def written_pages() -> dict[str, str]:
    """Return the text of README.md and of every page in docs/."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in paths}


def site_files() -> dict[str, str]:
    """Return the content of every file of the site by its path there; FileNotFoundError for a link to nothing."""
    pages = {**written_pages(), **pass_pages(), **op_pages()}
    sources: dict[str, str] = {}
    for page, text in [*pages.items()]:
        for target in linked_paths(page, text):
            if target not in pages:
                sources |= source_pages(page, target)
    pages |= sources
    files = {site_path(page, pages): with_site_links(page, text, pages) for page, text in pages.items()}
    files["performance.md"], figures = with_figures(files["performance.md"])
    return files | figures


def linked_paths(page: str, text: str) -> list[str]:
    """Return the paths in the repository that a page links to."""
    return [resolve(page, m["path"]) for m in LINK.finditer(text)]


def resolve(page: str, link: str) -> str:
    """Return the path in the repository of a link on a page."""
    return os.path.normpath(PurePosixPath(page).parent / link)


def source_pages(page: str, target: str) -> dict[str, str]:
    """Return the pages that show a file, or a folder and the Python files in it."""
    path = ROOT / target
    if path.is_dir():
        files = [f"{target}/{f.name}" for f in sorted(path.iterdir()) if f.suffix == ".py"]
        listing = "".join(f"* [{PurePosixPath(f).name}]({PurePosixPath(f).name})\n" for f in files)
        folder = {f"{target}/index.md": f"{SOURCE_HEADER}# {target}\n\n{listing}"}
        return {k: v for f in files for k, v in source_pages(page, f).items()} | folder
    if not path.is_file():
        raise FileNotFoundError(f"{page} links to {target}, which is not there")
    text = path.read_text(encoding="utf-8")
    language = {".py": "python", ".toml": "toml", ".ll": "llvm"}.get(path.suffix, "text")
    return {target: f"{SOURCE_HEADER}# {target}\n\n{fenced(text, language)}"}


SOURCE_HEADER = "---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n\n"
"""Front matter of pages that show sources: the search finds the pages that explain them."""


def site_path(page: str, pages: Mapping[str, str]) -> str:
    """Return the path on the site of a page, of a source, or of a folder of sources."""
    if page == "README.md":
        return "index.md"
    if page in pages and page.startswith("docs/"):
        return page.removeprefix("docs/")
    if (folder := f"{page}/index.md") in pages:
        return site_path(folder, pages)
    return f"source/{page}" if page.endswith(".md") else f"source/{page}.md"


def with_site_links(page: str, text: str, pages: Mapping[str, str]) -> str:
    """Return the text of a page with links to other pages of the site."""
    here = PurePosixPath(site_path(page, pages)).parent

    def relative(m: re.Match[str]) -> str:
        target = site_path(resolve(page, m["path"]), pages)
        return os.path.relpath(target, here) + (m["anchor"] or "")

    return LINK.sub(relative, text)
