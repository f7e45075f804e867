"""Width of indices: the number of elements, not of bytes, of the largest parameter decides, at its largest size."""

from __future__ import annotations

import pytest

from compiler.analysis.index_width import INT32_INDEX_LIMIT, has_long_indices
from compiler.ir.tile.kernel import Kernel
from compiler.testing.checks import parse_ir


def kernel(params: str, body: str = "") -> Kernel:
    ir = parse_ir(f"kernel @k({params}) {{ {body} }}")
    assert isinstance(ir, Kernel)
    return ir


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ("", False),
        ("out %y: f32[4]", False),
        (f"out %y: f32[{INT32_INDEX_LIMIT - 1}]", False),
        (f"out %y: f32[{INT32_INDEX_LIMIT}]", True),
        (f"in %x: i8[2, {INT32_INDEX_LIMIT // 2}], out %y: f32[4]", True),
        (f"out %y: f32[4], const %w: f64[2, {INT32_INDEX_LIMIT // 2 - 1}]", False),
    ],
)
def test_a_parameter_of_many_elements_needs_long_indices(params: str, expected: bool) -> None:
    assert has_long_indices(kernel(params)) == expected


@pytest.mark.parametrize(
    ("largest", "shape", "expected"),
    [
        (INT32_INDEX_LIMIT - 1, "n", False),
        (INT32_INDEX_LIMIT, "n", True),
        (1 << 15, "n, 65535", False),
        (1 << 15, "n, 65536", True),
        (1 << 15, "n, n, 2", True),
        ((1 << 15) - 1, "n, n, 2", False),
        (1 << 31, "n//2", False),
    ],
)
def test_a_dynamic_size_counts_at_its_largest_whatever_its_hint(largest: int, shape: str, expected: bool) -> None:
    assert has_long_indices(kernel(f"size n in 1..{largest + 1} hint 8, out %y: f32[{shape}]")) == expected


def test_a_local_buffer_does_not_count() -> None:
    assert not has_long_indices(kernel("out %y: f32[4]", f"local %t: f32[{INT32_INDEX_LIMIT}]"))
