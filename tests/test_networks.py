"""Small networks, compiled with every check on and compared with PyTorch in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compiler
from compiler.ir.tile.program import Launch, Program
from compiler.report.measure import numerical_error

CHECKED = compiler.Options(check=True, verify=True, cache="")
APART = CHECKED.with_(fuse=False)
"""A kernel for every op: what is padded or concatenated is then always made by another kernel."""


class Net(nn.Module):
    """Layers by name, and a function of them."""

    def __init__(self, forward: Callable[..., object], **layers: nn.Module) -> None:
        super().__init__()
        self.apply_to = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *xs: Tensor) -> object:
        return self.apply_to(self, *xs)


def run(model: nn.Module, *xs: Tensor, options: compiler.Options = APART) -> Program:
    """The lowered program, once its answers are found as near to float64 as adding in any order is."""
    model = model.eval()
    with torch.no_grad():
        compiled = compiler.compile(model, xs, options=options)
        truth = copy.deepcopy(model).double()(*(x.double() for x in xs))
        for _ in range(2):  # the second call finds the memory of the first
            got = compiled(*xs)
            assert numerical_error(as_list(got), as_list(truth)).relative < 2e-6
    return compiled.stages.lowered


def as_list(x: object) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else list(x)  # type: ignore[call-overload]  # a sequence of tensors


def copied(program: Program) -> list[str]:
    """What kernels read that only pad and concatenate."""
    found = []
    for s in program.steps:
        if isinstance(s, Launch) and s.kernel.startswith(("cat_", "pad_")):
            params = program.kernels[s.kernel].params
            found += [a for a, p in zip(s.arguments, params, strict=True) if p.role != "out"]
    return found


def conv(inputs: int, outputs: int, size: int = 3, **more: int) -> nn.Module:
    return nn.Conv2d(inputs, outputs, size, **({"padding": size // 2} | more))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


IMAGE = (1, 2, 4, 4)


@pytest.mark.parametrize("options", [APART, CHECKED], ids=["unfused", "fused"])
def test_padded_convolutions(options: compiler.Options) -> None:
    net = Net(lambda m, x: m.c(F.relu(m.b(F.relu(m.a(x))))), a=conv(2, 3), b=conv(3, 3, stride=2), c=conv(3, 2, 1))
    assert set(copied(run(net, torch.randn(IMAGE), options=options))) <= {"x", "xs_0"}


def test_a_residual_that_is_used_twice() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        y = m.a(x)
        z = F.relu(m.b(y)) + y
        return m.c(z) + y + z

    run(Net(forward, a=conv(2, 3), b=conv(3, 3), c=conv(3, 3)), torch.randn(IMAGE))


@pytest.mark.parametrize("options", [APART, CHECKED], ids=["unfused", "fused"])
def test_dense_blocks(options: compiler.Options) -> None:
    """Every layer reads all results before it."""

    def forward(m: Net, x: Tensor) -> Tensor:
        for layer in (m.a, m.b, m.c):
            x = torch.cat([x, F.relu(layer(x))], 1)
        return m.d(x)

    net = Net(forward, a=conv(2, 2, 1), b=conv(4, 2, 1), c=conv(6, 2, 1), d=conv(8, 2))
    program = run(net, torch.randn(IMAGE), options=options)
    if options is APART:
        first, *rest = copied(program)
        assert first in program.inputs
        assert all(name not in program.inputs for name in rest)


CONCATENATIONS: dict[str, tuple[Callable[..., object], int]] = {
    "nested": (lambda m, x: m.c(torch.cat([torch.cat([m.a(x), m.b(x)], 1), F.relu(x)], 1)), 0),
    "twice in one": (lambda m, x: m.c(torch.cat([(y := m.a(x)), y, x], 1)), 2),
    "in two": (lambda m, x: (torch.cat([(y := m.a(x)), m.b(x)], 1), torch.cat([y, -x], 1)), 1),
    "in two of one": (
        lambda m, x: torch.cat([torch.cat([(y := m.a(x)), m.b(x)], 1), torch.cat([y, -x], 1)], 2),
        1,
    ),
    "an output too": (lambda m, x: ((y := m.a(x)), torch.cat([y, m.b(x)], 1)), 1),
    "inputs": (lambda m, x: torch.cat([x, x], 1) + 1, 1),
    "padded": (lambda m, x: F.pad(torch.cat([m.a(x), m.b(x)], 1), (1, 0, 2, 1), value=0.5), 0),
    "called too": (lambda m, x: (torch.cat([(y := m.a(x)), m.b(x)], 1), torch.matrix_exp(y)), 1),
    "called between": (lambda m, x: torch.cat([m.a(x), -torch.matrix_exp(x), m.b(x)], 1), 0),
    "called parts": (lambda m, x: torch.cat([m.a(x), torch.matrix_exp(x)], 1), 1),
    "other sides": (lambda m, x: torch.cat([m.a(x).mT, m.b(x)], 2), 0),
}


@pytest.mark.parametrize("case", CONCATENATIONS)
def test_concatenations(case: str) -> None:
    forward, copies = CONCATENATIONS[case]
    net = Net(forward, a=conv(2, 2, 1), b=conv(2, 2, 1), c=conv(6, 2, 1))
    assert len(copied(run(net, torch.randn(IMAGE)))) == copies


def test_a_residual_network_with_pooling() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(m.a(x)), 3, 2, 1)
        return F.relu(m.b(x) + x).mean((2, 3))

    run(Net(forward, a=conv(2, 3, stride=2), b=conv(3, 3)), torch.randn(1, 2, 8, 8), options=CHECKED)


def test_pooling_pads_with_less_than_all_numbers() -> None:
    """A border of zeros would win over the negative."""
    net = Net(lambda m, x: F.max_pool2d(-m.a(x).abs() - 1, 3, 2, 1), a=conv(2, 2, 1))
    run(net, torch.randn(1, 2, 5, 5))


@pytest.mark.parametrize("options", [APART, CHECKED], ids=["unfused", "fused"])
def test_depthwise(options: compiler.Options) -> None:
    net = Net(lambda m, x: m.c(F.relu(m.b(m.a(x)))), a=conv(2, 4, 1), b=conv(4, 4, groups=4, stride=2), c=conv(4, 2, 1))
    run(net, torch.randn(1, 2, 5, 5), options=options)


TRANSPOSED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "1d": (nn.ConvTranspose1d(2, 3, 4, 2, 1), (2, 2, 5)),
    "1d, window as wide as the stride": (nn.ConvTranspose1d(2, 3, 3, 3), (1, 2, 4)),
    "1d, window narrower than the stride": (nn.ConvTranspose1d(2, 2, 2, 3, bias=False), (1, 2, 4)),
    "2d": (nn.ConvTranspose2d(2, 3, 3, 2, 1, output_padding=1), (1, 2, 3, 4)),
    "2d, groups": (nn.ConvTranspose2d(4, 4, 2, 2, groups=2), (1, 4, 3, 3)),
    "2d, depthwise": (nn.ConvTranspose2d(3, 3, 3, 2, 1, groups=3), (1, 3, 4, 3)),
    "2d, dilated": (nn.ConvTranspose2d(2, 2, (2, 3), (2, 1), (1, 0), dilation=(3, 2)), (1, 2, 4, 3)),
    "2d, stride of one": (nn.ConvTranspose2d(2, 2, 3, 1, 1), (1, 2, 3, 3)),
    "3d": (nn.ConvTranspose3d(1, 2, 2, 2, output_padding=(1, 0, 1)), (1, 1, 2, 2, 2)),
}


@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_convolutions(case: str) -> None:
    layer, shape = TRANSPOSED[case]
    run(Net(lambda m, x: F.relu(m.a(x)), a=layer), torch.randn(shape), options=CHECKED)


def test_up_and_down_again() -> None:
    """A U: what is halved on the way down stands beside what is doubled on the way up."""

    def forward(m: Net, x: Tensor) -> Tensor:
        y = F.relu(m.a(x))
        z = F.relu(m.b(F.max_pool2d(y, 2)))
        return m.d(torch.cat([m.c(z), y], 1))

    layers = {"a": conv(2, 2), "b": conv(2, 3), "c": nn.ConvTranspose2d(3, 2, 2, 2), "d": conv(4, 2)}
    assert copied(run(Net(forward, **layers), torch.randn(IMAGE))) == ["xs_0"]
