"""Events of MkDocs: the generated files replace and complete those in docs/."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.site.pages import site_files  # found through the path above

CONTENTS = site_files()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the generated pages in the navigation, below the entries that name their folders."""
    assert config.nav
    config.nav = [with_pages(entry) for entry in config.nav]
    return config


def with_pages(entry: Any) -> Any:
    """Return an entry of the navigation; `folder/` stands for all pages of a folder."""
    if isinstance(entry, str) and entry.endswith("/"):
        return sorted(
            (p for p in CONTENTS if p.startswith(entry) and p.endswith(".md")),
            key=lambda p: (p != f"{entry}index.md", p.removesuffix(".md")),
        )
    if isinstance(entry, dict):
        return {title: with_pages(value) for title, value in entry.items()}
    return [with_pages(e) for e in entry] if isinstance(entry, list) else entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Give each page the content that `site_files` made."""
    for path, content in CONTENTS.items():
        if known := files.get_file_from_path(path):
            files.remove(known)
        files.append(File.generated(config, path, content=content))
    return files
