"""Which tensors share memory, byte by byte."""

from __future__ import annotations

import pytest
import torch

from compiler.driver.argument_overlap import overlap

x = torch.zeros(6, 8)

PAIRS = {
    "same": (x, x, True),
    "columns apart": (x[:, :4], x[:, 4:], False),
    "columns that meet": (x[:, :5], x[:, 4:], True),
    "every second": (x[::2], x[1::2], False),
    "transposed": (x.t(), x[3], True),
    "rows apart": (x[:3], x[3:], False),
    "expanded": (x[0, :1].expand(9), x[:, 0], True),
    "bytes of another dtype": (x.view(torch.uint8)[:, 1::4], x.view(torch.uint8)[:, ::4], False),
    "one byte of an element": (x.view(torch.uint8)[:, 1::4], x[:, 3:4], True),
    "empty": (x[:0], x, False),
    "other memory": (x, torch.zeros(6, 8), False),
}


@pytest.mark.parametrize("case", PAIRS)
def test_overlap(case: str) -> None:
    first, second, shared = PAIRS[case]
    assert overlap(first, second) is overlap(second, first) is shared
