"""Attributes that a model assigns in a call: compiled code does not, and a warning says so."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compiler

x = torch.ones(3)


class Assigning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count, self.mode, self.last, self.history, self.cache = 300, "a", torch.zeros(3), [], {}
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor, attribute: str = "") -> Tensor:
        assigned: dict[str, Any] = {
            "count": self.count + 1,
            "mode": self.mode + "b",
            "last": x * 2,
            "history": [*self.history, x],
            "cache": {"x": x},
        }
        if attribute:
            setattr(self, attribute, assigned[attribute])
        self.count, self.mode = self.count + 0, "".join(self.mode)
        self.total = self.total + x
        return x + self.total


@pytest.mark.parametrize("attribute", ["count", "mode", "last", "history", "cache"])
def test_assigned_attributes_are_named_and_left_alone(attribute: str) -> None:
    model = nn.Sequential(Assigning())
    old = str(getattr(model[0], attribute))
    says = f"assigns 0.{attribute}, which compiled code does not: make what later calls read a buffer"
    model[0].forward = lambda x: Assigning.forward(model[0], x, attribute)
    with pytest.warns(UserWarning, match=says) as caught:
        compiler.compile(model, (x,))
    assert [w.filename for w in caught if says in str(w.message)] == [__file__]
    assert str(getattr(model[0], attribute)) == old
    assert not model._forward_hooks


def test_layers_that_list_their_weights_assign_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiler.compile(nn.LSTM(4, 5), (torch.ones(3, 2, 4),))


def test_buffers_may_be_assigned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = compiler.compile(Assigning(), (x,))
    assert torch.equal(compiled(x), 2 * x)
    assert torch.equal(compiled(x), 3 * x)
