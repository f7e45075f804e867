"""Targets as values."""

from __future__ import annotations

import pytest

from compiler.codegen.backend import target_by_name, targets
from compiler.target import MATRIX_DTYPES, MatrixShape, MemorySpace, Target

TARGET = Target(
    name="toy",
    backend="llvm",
    native_dtypes=("f32",),
    memory=(MemorySpace("registers", 512, "thread"), MemorySpace("memory", None, "device")),
)


def test_defaults_need_no_features_and_no_machine() -> None:
    assert TARGET.missing_features() == ""
    assert TARGET.machine is None
    assert TARGET.matrix_shapes == ()


@pytest.mark.parametrize("name", ["host", *targets()])
def test_memory_goes_from_fast_to_large(name: str) -> None:
    target = target_by_name(name)
    capacities = [space.capacity for space in target.memory if space.capacity is not None]
    assert capacities == sorted(capacities)
    assert target.memory[-1].capacity is None
    assert {space.owner for space in target.memory} <= {"thread", "block", "device"}
    assert len({space.name for space in target.memory}) == len(target.memory)


def test_matrix_shapes_of_gpus() -> None:
    for name in ("sm90", "gfx942"):
        shapes = target_by_name(name).matrix_shapes
        assert MatrixShape(16, 16, 16, "bf16", "bf16", "f32") in shapes
        assert {(s.lhs, s.accumulator) for s in shapes} == set(MATRIX_DTYPES)
    assert target_by_name("aarch64").matrix_shapes == ()
