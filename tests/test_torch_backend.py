"""The backend of `torch.compile`, native code included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compiler.errors import UnsupportedOpError
from compiler.torch_backend import tilewright


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(program: Any, **options: Any) -> Any:
    dynamic = options.pop("dynamic", None)
    return torch.compile(program, backend=tilewright, dynamic=dynamic, options={"cache": "", **options})


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        return x + self.out(F.gelu(y))


def test_inference() -> None:
    model, x = Block().eval(), torch.randn(2, 5, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-4, atol=1e-5)


def test_training_follows_eager() -> None:
    model, twin = Block(), Block()
    twin.load_state_dict(model.state_dict())
    fast, data = compiled(model), [torch.randn(2, 5, 16) for _ in range(3)]
    losses = []
    for net, params in ((fast, model.parameters()), (twin, twin.parameters())):
        optimizer = torch.optim.SGD(params, lr=0.1)
        for x in data:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    torch.testing.assert_close(losses[:3], losses[3:], rtol=1e-4, atol=1e-6)


def test_sizes_that_change() -> None:
    def program(x: Tensor, n: int) -> tuple[Tensor, int]:
        return (x * n).softmax(-1), x.shape[0] + n

    fast = compiled(program, dynamic=True)
    for rows, n in ((3, 5), (7, 6), (4, 9)):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(fast(x, n), ((x * n).softmax(-1), rows + n))


def test_arguments_written_in_place() -> None:
    def program(x: Tensor) -> Tensor:
        x.mul_(2)
        return x[1:] + 1

    a, b = torch.randn(4, 3), torch.zeros(4, 3)
    b.copy_(a)
    torch.testing.assert_close(compiled(program)(a), program(b))
    torch.testing.assert_close(a, b)


def test_what_has_no_conversion_runs_in_pytorch_unless_refused() -> None:
    x = torch.rand(5) + 1
    with pytest.warns(UserWarning, match="aten.special_airy_ai"):
        result = compiled(lambda x: torch.special.airy_ai(x).exp() + 1)(x)
    torch.testing.assert_close(result, torch.special.airy_ai(x).exp() + 1)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(lambda x: torch.special.airy_ai(x), fallback="error")(x)
    assert isinstance(caught.value.__cause__ or caught.value.inner_exception, UnsupportedOpError)
