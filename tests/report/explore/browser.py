"""What a user does with a page in a browser: read, press keys, click."""

from __future__ import annotations

from typing import Any


def texts(page: Any, selector: str) -> list[str]:
    """Return the text of each element that a selector finds."""
    return page.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector
    )  # type: ignore[no-any-return]  # what the script returns


def press(page: Any, *keys: str) -> None:
    """Press keys one after the other."""
    for key in keys:
        page.execute_script(
            "document.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))", key
        )


def click(page: Any, selector: str, number: int = 0) -> None:
    """Click one of the elements that a selector finds."""
    page.execute_script("document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, number)
