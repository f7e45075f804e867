"""Operators on lists of tensors become one operator for each tensor, which then fuses."""

from __future__ import annotations

from typing import Any

import torch
from frontend_kit import FunctionModule, import_module, interpret_imported
from torch import Tensor

from compiler.frontend.decompositions import autograd_decompositions
from compiler.frontend.foreach import foreach_decompositions
from compiler.ir.graph.structure import Opaque

aten = torch.ops.aten


def lists(count: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [[torch.rand(shape, generator=generator) + 0.5 for shape in ((2, 3), (4,))] for _ in range(count)]


def program(a: list[Tensor], b: list[Tensor], c: list[Tensor]) -> list[list[Tensor]]:
    return [
        aten._foreach_add(a, b, alpha=2),
        aten._foreach_sub(a, [0.5, 2.5]),
        aten._foreach_maximum(a, 0.7),
        aten._foreach_minimum(a, b),
        aten._foreach_addcdiv(a, b, c, [0.5, 2.5]),
        aten._foreach_addcmul(a, b, c, 3),
        aten._foreach_lerp(a, b, [0.25, 0.75]),
        aten._foreach_lerp(a, b, c),
        aten._foreach_pow(2.0, a),
        aten._foreach_mul(a, b[1][0]),
        aten._foreach_norm(a, 1, torch.float64),
        aten._foreach_powsum(a, 3),
        aten._foreach_max(a),
        aten._foreach_sqrt(a),
        aten._foreach_zero(a),
    ]


def test_each_tensor_has_its_own_op() -> None:
    arguments = lists(3)
    imported = import_module(FunctionModule(program), arguments)
    assert not [n for n in imported.graph if isinstance(n.structure, Opaque)]
    got: Any = interpret_imported(imported, arguments)
    for ours, theirs in zip(got, program(*arguments), strict=True):
        torch.testing.assert_close(list(ours), theirs)


def test_updates_of_parameters_are_compiled() -> None:
    def step(weights: list[Tensor], gradients: list[Tensor]) -> None:
        torch._foreach_mul_(gradients, 0.9)
        torch._foreach_add_(weights, gradients, alpha=-0.1)

    (weights, gradients), (expected, other) = lists(2), lists(2)
    torch.compile(step, backend="tilewright", fullgraph=True, options={"fallback": "error"})(weights, gradients)
    step(expected, other)
    torch.testing.assert_close((weights, gradients), (expected, other))


def test_numbers_in_a_tensor_are_left_alone() -> None:
    table = {str(o) for o in autograd_decompositions()} & {str(o) for o in foreach_decompositions()}
    assert {"aten._foreach_addcdiv.ScalarList", "aten._foreach_copy.default"} <= table
    assert "aten._foreach_addcdiv.Tensor" not in table
