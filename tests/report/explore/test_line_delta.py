"""Differences of texts by lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compiler.report.explore.line_delta import line_delta
from tests.report.explore.pages import apply_delta

TEXTS = st.lists(st.sampled_from("abc}"), max_size=12)


@given(TEXTS, TEXTS)
def test_a_delta_makes_the_new_text(old: list[str], new: list[str]) -> None:
    assert apply_delta(old, line_delta(old, new)) == new


@given(TEXTS)
def test_equal_texts_have_none(text: list[str]) -> None:
    assert line_delta(text, text) == []


def test_one_changed_line_is_one_hunk() -> None:
    old = [f"line {k}" for k in range(1000)]
    assert line_delta(old, [*old[:500], "new", *old[501:]]) == [(500, 1, ["new"])]


def test_hunks_count_in_the_old_text() -> None:
    assert line_delta(list("abcde"), list("xabde")) == [(0, 0, ["x"]), (2, 1, [])]
