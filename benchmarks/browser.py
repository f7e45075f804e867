"""A headless Chromium for pages that are saved as files; it reaches no network."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def missing_browser() -> str:
    """Return what is missing to open pages here, "" if nothing is."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return ", ".join([*absent, *([] if find_spec("selenium") else ["the Python package selenium"])])


@contextmanager
def opened_page(file: Path, width: int = 1680, height: int = 1000) -> Iterator[Any]:
    """Open a page, and yield the selenium driver as soon as its scripts have run; RuntimeError if they do not."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.support.ui import WebDriverWait

    with tempfile.TemporaryDirectory() as profile:
        options = Options()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.get(file.resolve().as_uri())
            WebDriverWait(driver, 30).until(
                lambda d: d.execute_script("return document.documentElement.dataset.ready"), console_errors(driver)
            )
            yield driver
        finally:
            driver.quit()


def console_errors(driver: Any) -> str:
    """Return what the page wrote to the console since the last time, by lines."""
    return "\n".join(entry["message"] for entry in driver.get_log("browser"))
