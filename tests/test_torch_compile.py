"""What users of `torch.compile` rely on: guards, graph breaks, aliases, writes, memory formats, training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from compiler import torch_backend
from compiler.driver.partitioned_graph import compile_graph
from compiler.ir.graph.graph import Graph
from compiler.options import Options
from compiler.testing.checks import check_accuracy
from compiler.torch_backend import tilewright

Program = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(program: Any, backend: Any = tilewright, **choices: Any) -> Any:
    options = {"cache": "", "fallback": "error", **choices.pop("options", {})}
    return torch.compile(program, backend=backend, options=options, **choices)


def wide(value: Any) -> Any:
    """A copy of a module, or of nested values, with what is floating-point in float64."""
    return tree_map(
        lambda v: v.double() if isinstance(v, nn.Module) or (isinstance(v, Tensor) and v.is_floating_point()) else v,
        copy.deepcopy(value),
    )


def everything(program: Program, args: tuple[Any, ...]) -> list[Any]:
    """The leaves of the result, and of the arguments as the call leaves them."""
    return tree_leaves((program(*args), args))


def tensors(values: Sequence[Any]) -> list[Tensor]:
    return [v for v in values if isinstance(v, torch.Tensor)]


def write_row(x: Tensor) -> Tensor:
    row = x[1]
    row.add_(1)
    return x * 2


def choose(x: Tensor) -> Tensor:
    y = x.exp()
    return y * 2 if y.sum() > 0 else y - 1


def select(x: Tensor) -> Tensor:
    return (x + 1)[x > 0] * 2


def assign(x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    y[mask] = 0
    y[0, 1:] = x[1, 1:]
    y[:, 0] += 3
    return y


def transposed_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    z = y.view(-1)
    z[2:5].mul_(-1)
    return y, z


def nested(x: Tensor, *, scale: float = 2.0, other: dict[str, Any] | None = None) -> dict[str, Any]:
    assert other is not None
    return {"sum": (x.sum(), [x * scale]), "none": None, "n": 3, "other": other["pair"][0] + other["pair"][1]}


def mixed_precision(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ x.mT).float()


def out_argument(x: Tensor, y: Tensor) -> Tensor:
    torch.mul(x, 2, out=y)
    return y.sum(0)


def image() -> Tensor:
    return torch.randn(2, 3, 4, 5)


def twice() -> tuple[Tensor, Tensor]:
    x = torch.randn(4, 3)
    return x, x


PROGRAMS: dict[str, tuple[Program, Callable[[], tuple[Any, ...]]]] = {
    "a break on a value": (choose, lambda: (torch.randn(3, 4),)),
    "a size that data decides": (select, lambda: (torch.randn(3, 4),)),
    "keywords and nested results": (
        lambda x, y: nested(x, scale=3.0, other={"pair": (x, y)}), lambda: (torch.randn(3), torch.randn(3)),
    ),
    "a view written": (write_row, lambda: (torch.randn(3, 4),)),
    "a view written and returned": (transposed_in_place, lambda: (torch.randn(3, 4),)),
    "assignments": (assign, lambda: (torch.randn(3, 4), torch.rand(3, 4) > 0.5)),
    "the same argument twice": (lambda x, y: x * y + x, twice),
    "out=": (out_argument, lambda: (torch.randn(3, 4), torch.zeros(3, 4))),
    "a transposed argument": (lambda x: F.softmax(x, -1) @ x.mT, lambda: (torch.randn(5, 3).mT,)),
    "every other column": (lambda x: x.tanh() + x.flip(1), lambda: (torch.randn(3, 8)[:, ::2],)),
    "a broadcast argument": (lambda x: x.cumsum(0) * 2, lambda: (torch.randn(4).expand(3, 4),)),
    "part of a larger tensor": (lambda x: x + x.sum(), lambda: (torch.randn(5, 6)[1:4, 2:5],)),
    "channels last": (
        lambda x: F.avg_pool2d(x, 2).relu() + x.mean((2, 3), True), lambda: (image().to(memory_format=torch.channels_last),),
    ),
    "a transposed argument written": (lambda x: x.mul_(2).sum(0), lambda: (torch.randn(5, 3).mT,)),
    "a scalar and nothing": (lambda x, y: (x * 2, torch.cat([y, y]).sum() + x), lambda: (torch.tensor(1.5), torch.randn(0, 3))),
    "numbers": (lambda x, n, f, b: (x * n + f) if b else x, lambda: (torch.randn(3), 3, 0.5, True)),
    "lists and dicts": (lambda xs: [x + xs["b"][0] for x in xs["a"]], lambda: ({"a": [torch.ones(2), torch.zeros(2)], "b": (torch.randn(2),)},)),
    "statistics of halves that stay": (
        lambda x, m, v: torch._native_batch_norm_legit(x, None, None, m, v, False, 0.1, 1e-5)[0],
        lambda: (torch.randn(4, 2, 3).bfloat16(), torch.randn(2).bfloat16(), torch.rand(2).bfloat16()),
    ),
    "mixed precision": (mixed_precision, lambda: (torch.randn(4, 8),)),
    "no operation": (lambda x, y: (y, x, x.T), lambda: (torch.randn(2, 3), torch.randn(3))),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    """Results, and what is written to arguments, are as near to float64 as PyTorch's; other leaves are the same."""
    program, given = PROGRAMS[name]
    args = given()
    truth, theirs = everything(program, wide(args)), everything(program, copy.deepcopy(args))
    ours = everything(compiled(program), copy.deepcopy(args))
    assert [v for v in ours if not isinstance(v, Tensor)] == [v for v in theirs if not isinstance(v, Tensor)]
    assert [v.dtype for v in tensors(ours)] == [v.dtype for v in tensors(theirs)]
    check_accuracy(tensors(ours), tensors(theirs), tensors(truth))


def test_arguments_over_one_memory() -> None:
    """What is written to one is read from the other."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        y[0] += 1
        return x[1:] + y

    a, b = torch.arange(12.0).view(4, 3), torch.arange(12.0).view(4, 3)
    torch.testing.assert_close(compiled(program)(a, a[1:]), program(b, b[1:]))
    torch.testing.assert_close(a, b)


def test_results_that_are_views_of_arguments() -> None:
    x = torch.randn(3, 2)
    same, part, turned = compiled(lambda x: (x, x[1:], x.T))(x)
    assert same is x
    assert part.data_ptr() == x[1:].data_ptr()
    assert (turned.data_ptr(), turned.stride()) == (x.data_ptr(), (1, 2))


# how often it compiles


class Counting:
    """The backend, and how many graphs Dynamo gave it."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any], **choices: Any) -> Callable[..., Any]:
        self.graphs += 1
        return tilewright(module, inputs, **choices)


class Encoder(nn.Module):
    """A layer of attention and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.down(F.gelu(self.up(x)))


@pytest.mark.parametrize(("dynamic", "most"), [(True, 2), (None, 3)])
def test_sizes_that_vary_are_captured_a_few_times(dynamic: bool | None, most: int) -> None:
    """Once for any size, and once more for a size of one; without a hint, once more for the first size."""
    count, program = Counting(), lambda x: (x * 2 + 1).softmax(-1)
    fast = compiled(program, count, dynamic=dynamic)
    for n in [5, 3, *range(1, 7), 5, 4, 2, 3, *range(1, 7), 5, 4]:
        x = torch.randn(n, 3)
        torch.testing.assert_close(fast(x), program(x))
    assert count.graphs <= most


@torch.no_grad()
def test_batches_of_a_model_are_captured_in_the_first_call() -> None:
    """For any batch, sometimes in two attempts: Dynamo takes numbers in modules for sizes first."""
    count, model = Counting(), Encoder().eval()
    fast = compiled(model, count, dynamic=True)
    for batch in (2, 3, 4) * 7:
        x = torch.randn(batch, 5, 8)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert count.graphs <= 2


def test_guards() -> None:
    """What a graph was specialised on is checked, and nothing else is."""

    def program(x: Tensor, n: int) -> Tensor:
        return x * n if torch.is_grad_enabled() else x + n

    count = Counting()
    fast = compiled(program, count)
    x, y = torch.randn(2, 3), torch.randn(2, 3, dtype=torch.float64)
    for _ in range(3):
        torch.testing.assert_close(fast(x, 2), x * 2)
        torch.testing.assert_close(fast(torch.ones(2, 3), 2), torch.full((2, 3), 2.0))
    assert count.graphs == 1
    torch.testing.assert_close(fast(y, 2), y * 2)
    assert count.graphs == 2
    with torch.no_grad():
        torch.testing.assert_close(fast(x, 2), x + 2)
    assert count.graphs == 3


def test_a_flag_of_a_module_is_guarded() -> None:
    model, x, count = nn.Dropout(0.5), torch.ones(64), Counting()
    fast = compiled(model, count)
    assert (fast(x) == 0).any()
    model.eval()
    assert (fast(x) == 1).all()
    assert count.graphs <= 2  # in evaluation mode there is nothing to compile


# choices


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes_are_accepted(mode: str) -> None:
    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(torch.exp, backend=tilewright, mode=mode)(x), x.exp())


def test_a_mode_stands_for_options(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[bool, str]]()

    def record(graph: Graph, options: Options, *rest: Any) -> Any:
        asked.append((options.cuda_graphs, options.effort))
        return compile_graph(graph, options, *rest)

    monkeypatch.setattr(torch_backend, "compile_graph", record)
    for mode in ("default", "reduce-overhead", "max-autotune"):
        torch._dynamo.reset()
        torch.compile(torch.exp, backend=tilewright, mode=mode)(torch.randn(3))
    assert asked == [(False, "default"), (True, "default"), (False, "tune")]


def test_options_reach_the_compiler() -> None:
    x = torch.randn(3)
    torch.testing.assert_close(compiled(torch.exp, options={"fuse": False, "verify": True})(x), x.exp())
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no_such_option"):
        compiled(torch.exp, options={"no_such_option": 1})(x)


# training


def gradients(step: Program, parameters: Sequence[Tensor], *args: Any) -> list[Tensor]:
    """The loss that `step` gives and its gradients."""
    loss = step(*args)
    return [loss.detach(), *torch.autograd.grad(loss, list(parameters))]


def check_gradients(model: nn.Module, *args: Any) -> None:
    """Loss, gradients and buffers after a step are as near to float64 as PyTorch's."""
    twins = [copy.deepcopy(model), copy.deepcopy(model), wide(model)]
    steps = [compiled(twins[0]), *twins[1:]]
    ours, theirs, truth = (
        gradients(lambda *a, run=run: run(*a).square().mean(), list(twin.parameters()), *given)
        for run, twin, given in zip(steps, twins, (args, args, wide(args)), strict=True)
    )
    ours, theirs, truth = (
        tensors([*found, *twin.buffers()]) for found, twin in zip((ours, theirs, truth), twins, strict=True)
    )
    check_accuracy(ours, theirs, truth)


def test_batch_normalisation_updates_its_buffers() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4, momentum=None),
        nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip
    x = torch.randn(4, 3, 8, 8)
    model(x)
    check_gradients(model, x)


def test_channels_last_is_trained() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.GroupNorm(2, 6), nn.SiLU(), nn.Conv2d(6, 4, 1))
    check_gradients(model.to(memory_format=torch.channels_last), image().to(memory_format=torch.channels_last))


class Tied(nn.Module):
    """Words in, the same weights for words out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(ids)))  # type: ignore[no-any-return]  # a module's result


def test_tied_weights() -> None:
    check_gradients(Tied(), torch.randint(0, 7, (2, 5)))


def test_dropout_comes_from_the_generator_and_is_the_same_in_both_directions() -> None:
    fast = compiled(lambda x: F.dropout(x, 0.25))
    x = torch.ones(40, 50, requires_grad=True)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        y = fast(x)
        (slope,) = torch.autograd.grad(y.sum(), [x])
        assert torch.equal(slope, y.detach())  # y = x * mask / (1 - p), and x = 1
        found.append(y.detach())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert abs(float((found[0] == 0).float().mean()) - 0.25) < 0.05
    assert set(found[0].unique().tolist()) == {0.0, float(torch.tensor(1 / 0.75))}


OPTIMIZERS: dict[str, Callable[[Sequence[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01),
}


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_step_of_the_optimizer(kind: str, inside: bool) -> None:
    """Parameters after three steps, the update being compiled or not."""
    first = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    twins = [copy.deepcopy(first), copy.deepcopy(first), wide(first)]
    x, found = torch.randn(5, 4), []
    for number, model in enumerate(twins):
        optimizer, given = OPTIMIZERS[kind](list(model.parameters())), x if number < 2 else x.double()
        update: Program = optimizer.step
        forward: Program = model
        if number == 0:
            forward = compiled(model)
            update = compiled(lambda step=optimizer.step: step()) if inside else update
        for _ in range(3):
            optimizer.zero_grad()
            forward(given).square().mean().backward()
            update()
        found.append([p.detach() for p in model.parameters()])
    check_accuracy(*found)


# freezing


def frozen(model: Any, count: Any = tilewright) -> Any:
    return compiled(model, count, options={"freezing": True})


@torch.no_grad()
def test_frozen_weights_are_constants_while_they_stay_the_same() -> None:
    """Written weights are seen: they are inputs from then on, at the price of one more compilation."""
    model, x, count = Encoder().eval(), torch.randn(2, 5, 8), Counting()
    fast = frozen(model, count)
    for _ in range(2):
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    model.up.weight.mul_(2)
    with pytest.warns(UserWarning, match="weights have changed"):
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    model.norm.bias.add_(1)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert count.graphs == 1


def test_frozen_weights_are_packed_and_no_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    import compiler.torch_backend

    graphs = []
    compile_graph = compiler.torch_backend.compile_graph
    monkeypatch.setattr(compiler.torch_backend, "compile_graph", lambda g, *o: graphs.append(g) or compile_graph(g, *o))
    model, x = Encoder().eval(), torch.randn(2, 5, 8)
    with torch.no_grad():
        frozen(model)(x)
        torch._dynamo.reset()
        compiled(model)(x)
    assert [len(g.inputs) for g in graphs] == [1, 1 + len(list(model.parameters()))]


REPLACEMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "other memory": torch.ones_like,
    "other strides": lambda w: w.t(),
    "another shape": lambda w: w[:3],
    "another dtype": lambda w: w.view(torch.bfloat16),
}


@pytest.mark.parametrize("case", REPLACEMENTS)
@pytest.mark.filterwarnings("ignore:frozen weights have changed")
@torch.no_grad()
def test_frozen_weights_that_are_replaced_through_data(case: str) -> None:
    model, x = nn.Linear(4, 4, bias=False, dtype=torch.float16), torch.randn(2, 4)
    fast = frozen(lambda x: x @ model.weight.to(x.dtype).t())
    for _ in range(2):
        torch.testing.assert_close(fast(x), x @ model.weight.float().t())
        model.weight.data = REPLACEMENTS[case](model.weight.data)
    torch.testing.assert_close(fast(x), x @ model.weight.float().t())


@torch.no_grad()
def test_models_that_share_code_do_not_share_frozen_weights() -> None:
    x, models = torch.randn(2, 4), [nn.Linear(4, 3), nn.Linear(4, 3)]
    fast = frozen(lambda model, x: model(x))
    torch.testing.assert_close(fast(models[0], x), models[0](x))
    with pytest.warns(UserWarning, match="weights have changed"):
        other = fast(models[1], x)
    torch.testing.assert_close(other, models[1](x))


def test_freezing_leaves_training_alone() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), torch.randn(5, 3)
    twin, fast = copy.deepcopy(model), frozen(model)
    torch.testing.assert_close(
        gradients(lambda: fast(x)[0].sum(), list(model.parameters())),
        gradients(lambda: twin(x)[0].sum(), list(twin.parameters())),
    )
    with torch.no_grad():  # buffers are written, which is no change behind our back
        for _ in range(2):
            torch.testing.assert_close(fast(x), twin(x))
    torch.testing.assert_close(list(model.buffers()), list(twin.buffers()))


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "halves": lambda x: torch.vsplit(x, 2),
    "parts": lambda x: x.chunk(2),
    "all but the first rows": lambda x: (x[2:], x * 2),
    "one row for all": lambda x: x[1:2].expand(x.shape[0], x.shape[1]),
    "turned": lambda x: x.t()[1:],
    "a column": lambda x: x[:, 1],
    "the middle, of two rows": lambda x: x[x.shape[0] // 2 :][:2],
}


@pytest.mark.parametrize("case", VIEWS)
def test_views_of_open_arguments(case: str) -> None:
    """AOTAutograd takes strides and offset from what the backend returns, and the elements from the argument."""
    torch._dynamo.reset()
    view = VIEWS[case]
    compiled = torch.compile(view, backend="tilewright", dynamic=True, options={"cache": ""})
    for rows in (6, 8, 10):
        x = torch.randn(rows, 4)
        found, truth = (tree_leaves(f(x)) for f in (compiled, view))
        for a, b in zip(found, truth, strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        found[0].fill_(7.0)
        assert bool((x == 7.0).any())
