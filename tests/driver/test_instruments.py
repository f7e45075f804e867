"""The instruments that options ask for."""

from __future__ import annotations

import pytest

from compiler.driver.instruments import instruments_for
from compiler.errors import PassError
from compiler.options import Options
from compiler.passes.instrument import PrintIR, Verify
from compiler.passes.semantic_check import SemanticCheck


def test_options_select_instruments() -> None:
    assert instruments_for(Options()) == []
    assert [type(i) for i in instruments_for(Options(verify=True, check=True))] == [Verify, SemanticCheck]
    (printer,) = instruments_for(Options(print_before="fuse,cse", print_after="all"))
    assert printer == PrintIR(("fuse", "cse"), ("all",), False)
    assert instruments_for(Options(print_after_change=True)) == [PrintIR(on_change=True)]


def test_a_strict_check() -> None:
    (check,) = instruments_for(Options(check="strict"))
    assert isinstance(check, SemanticCheck)
    assert check.strict
    assert check.run_native


def test_unknown_passes_are_refused() -> None:
    with pytest.raises(PassError, match="no pass is called fuze; did you mean fuse"):
        instruments_for(Options(print_after="fuze"))
