"""Einstein sums: imported without a second trace by PyTorch, and compared with eager in float64."""

from __future__ import annotations

import pytest
import torch
from frontend_kit import FunctionModule, import_module, interpret_imported

SHAPES = {
    "ij,jk->ik": [(3, 4), (4, 5)],
    "ij,jk": [(3, 4), (4, 5)],
    "bhqd,bhkd->bhqk": [(2, 3, 4, 5), (2, 3, 6, 5)],
    "abc,dbc->ad": [(3, 4, 5), (6, 4, 5)],
    "aij,bjk->abik": [(2, 3, 4), (5, 4, 6)],
    "ij,kj->i": [(3, 4), (5, 4)],
    "ij->ji": [(3, 4)],
    "ba": [(3, 4)],
    "Ab,bA->": [(3, 4), (4, 3)],
    "i , j -> i j": [(3,), (4,)],
    "ii->i": [(4, 4)],
    "iij,jk->ik": [(3, 3, 4), (4, 5)],
    "...ij,...jk->...ik": [(2, 3, 4), (1, 4, 5)],
    "...ij,...jk": [(7, 2, 3, 4), (2, 4, 5)],
    "i...->...": [(3, 4, 5)],
    "ij,ij->i": [(3, 1), (3, 4)],
    "ij,jk,kl->il": [(3, 4), (4, 5), (5, 6)],
    "bn,anm,bm->ba": [(2, 5), (3, 5, 4), (2, 4)],
}


@pytest.mark.parametrize("equation", SHAPES)
def test_sums_are_those_of_eager(equation: str) -> None:
    generator = torch.Generator().manual_seed(0)
    operands = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in SHAPES[equation]]
    module = FunctionModule(lambda *xs: torch.einsum(equation, *xs))
    result = interpret_imported(import_module(module, operands), operands)
    torch.testing.assert_close(result, module(*operands))


def test_a_product_of_two_operands_is_a_matrix_product() -> None:
    module = FunctionModule(lambda x, y: torch.einsum("abc,dbc->ad", x, y))
    graph = import_module(module, [torch.zeros(3, 4, 5), torch.zeros(6, 4, 5)]).graph
    assert "matmul" in [n.op.name for n in graph.nodes]
