"""Models in which data decides sizes, whole: exported, saved, compiled by torch.compile, and trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import compiler
from compiler import ArgumentError, UnsupportedOpError
from compiler.driver.partitioned_graph import PartitionedGraph
from compiler.report.measure import numerical_error
from compiler.torch_backend import tilewright
from tests.frontend.frontend_kit import FunctionModule


def first(x: Tensor, n: Tensor) -> Tensor:
    count = n.item()
    torch._check(count >= 0)
    torch._check(count <= x.shape[0])
    return x[:count].exp()


def row(x: Tensor, n: Tensor) -> Tensor:
    place = n.item()
    torch._check(place >= 0)
    torch._check(place < x.shape[0])
    return x[place] * 2


def x() -> Tensor:
    return torch.randn(6, 7)


def small() -> Tensor:
    return torch.tensor(2)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]] = {
    "elements": (lambda a: a[a > 0] * 2 + 1, lambda: (x(),)),
    "rows": (lambda a: a[a.sum(1) > 0].softmax(-1), lambda: (x(),)),
    "two masks of one size": (lambda a: a[a > 0] + a.exp()[a > 0], lambda: (x(),)),
    "masked_select": (lambda a, b: torch.masked_select(a, b > 0).exp().sum(), lambda: (x(), torch.randn(7))),
    "beside other indices": (lambda a, i: a[:, i > 0, None][a[:, 0] > 0], lambda: (x(), torch.randn(7))),
    "assigned": (lambda a: torch.zeros_like(a).index_put((a > 0,), a[a > 0] * 2), lambda: (x(),)),
    "filled": (lambda a: a.masked_scatter(a > 0, a[a > 0].exp()), lambda: (x(),)),
    "places": (lambda a: (a > 0).nonzero().float().mean(0), lambda: (x(),)),
    "places by dimension": (lambda a: torch.nonzero(a > 0, as_tuple=True), lambda: (x(),)),
    "unique": (lambda a: torch.unique(a.round(), return_inverse=True, return_counts=True), lambda: (x(),)),
    "repeated": (lambda a: torch.repeat_interleave(a, (a[:, 0] > 0).long() + 1, dim=0), lambda: (x(),)),
    "as many": (lambda a: torch.zeros(a[a > 0].shape[0]) + 1, lambda: (x(),)),
    "how many": (lambda a: a[a > 0].shape[0] * 2, lambda: (x(),)),
    "without repeats": (lambda a: torch.unique_consecutive((a[:, 0] > 0).long(), dim=0), lambda: (x(),)),
    "in turns": (lambda a: torch.unique((a[a > 0] * 3).round()) ** 2, lambda: (x(),)),
    "first rows": (first, lambda: (x(), small())),
    "one row": (row, lambda: (x(), small())),
    "from a place": (lambda a, n: a[n.item() :] * 2, lambda: (x(), small())),
    "up to a place": (lambda a, n: a[1 : n.item()] * 2, lambda: (x(), torch.tensor(-1))),
    "every other": (lambda a, n: a[n.item() : n.item() + 4 : 2] + 1, lambda: (x(), small())),
    "the last but one": (lambda a, n: a[n.item()] * 2, lambda: (x(), torch.tensor(-2))),
    "a number": (lambda a, n: (a * n.item(), n.item() - 9, a.sum() + n.item()), lambda: (x(), small())),
    "conditions": (lambda a, n: (a[a > 0].shape[0] > n.item(), n.item() < 1, a + 1), lambda: (x(), small())),
    "a condition on a fraction": (lambda a, n: (n.item() * 2 > 0.25, a + 1), lambda: (x(), torch.tensor(0.25))),
    "a fraction": (lambda a, n: a.clamp(min=n.item()), lambda: (x(), torch.tensor(-0.25))),
}  # fmt: skip


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    """Dynamo keeps what data decides in the graph."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


def agree(compiled: Callable[..., Any], function: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    """Numbers and sizes as PyTorch has them; floats against float64."""
    got, expected = compiled(*args), function(*args)
    truth = function(*(a.double() if a.is_floating_point() else a for a in args))
    for mine, theirs, exact in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, expected, truth)), strict=True):
        if not isinstance(theirs, Tensor):
            assert mine == theirs
            continue
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        assert not mine.numel() or numerical_error([mine], [exact]).relative < 1e-6


def nothing(args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same arguments where no mask holds and numbers are 0."""
    return tuple(-a.abs() if a.dim() else a * 0 for a in args)


@pytest.mark.parametrize("case", CASES)
def test_exported(case: str) -> None:
    function, arguments = CASES[case]
    args = arguments()
    compiled = compiler.compile(torch.export.export(FunctionModule(function), args))
    for given in (args, nothing(args), arguments()):
        agree(compiled, function, given)


@pytest.mark.parametrize("case", ["elements", "rows", "unique", "first rows"])
def test_exported_with_open_sizes(case: str) -> None:
    function, arguments = CASES[case]
    args = arguments()
    dims = tuple(dict.fromkeys(range(a.dim()), Dim.AUTO) for a in args)
    compiled = compiler.compile(torch.export.export(FunctionModule(function), args, dynamic_shapes=(dims,)))
    for given in (args, (torch.randn(9, 4), *args[1:])):
        agree(compiled, function, given)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("case", CASES)
def test_torch_compile(case: str, dynamic: bool | None) -> None:
    function, arguments = CASES[case]
    args = arguments()
    compiled = torch.compile(function, backend=tilewright, fullgraph=True, dynamic=dynamic)
    for given in (args, nothing(args), arguments()):
        agree(compiled, function, given)


TRAINED = [
    "elements",
    "rows",
    "two masks of one size",
    "masked_select",
    "assigned",
    "repeated",
    "first rows",
    "one row",
]


@pytest.mark.parametrize("case", TRAINED)
def test_gradients(case: str) -> None:
    function, arguments = CASES[case]
    compiled = torch.compile(function, backend=tilewright, fullgraph=True)

    def gradient(of: Callable[..., Any]) -> Callable[..., Tensor]:
        def run(a: Tensor, *others: Tensor) -> Tensor:
            leaf = a.detach().clone().requires_grad_()
            (found,) = torch.autograd.grad((of(leaf, *others) ** 2).sum(), leaf)
            return found

        return run

    for _ in range(2):
        agree(gradient(compiled), gradient(function), arguments())


def test_saved(tmp_path: Path) -> None:
    function, arguments = CASES["two masks of one size"]
    torch.export.save(torch.export.export(FunctionModule(function), arguments()), tmp_path / "m.pt2")
    agree(compiler.compile(tmp_path / "m.pt2"), function, arguments())


def test_one_compilation_serves_every_size_that_data_tells() -> None:
    function, _ = CASES["elements"]
    compiled = compiler.compile(FunctionModule(function), (torch.randn(300),))
    for count in (0, 1, 2, 17, 150, 300):
        agree(compiled, function, (torch.where(torch.arange(300) < count, 1.0, -1.0) * torch.rand(300),))
    assert isinstance(compiled.compiled_graph, PartitionedGraph)
    assert [len(c.specializations) for c in compiled.compiled_graph.compiled_subgraphs] == [1, 1]


def test_what_is_shown_of_several_parts() -> None:
    compiled = compiler.compile(FunctionModule(CASES["rows"][0]), (torch.randn(6, 7),))
    assert compiled.print_ir("imported").count("graph @") == 2
    report = compiled.report(repeats=2)
    assert {k.name for k in compiled.profile(repeats=2).kernels} == {k.name for k in report.kernels}
    assert compiled.workload.kernels == len(report.kernels) >= 2


def test_sizes_out_of_their_range_are_refused() -> None:
    compiled = compiler.compile(FunctionModule(first), (torch.randn(6, 7), torch.tensor(2)))
    for wrong in (-1, 7):
        with pytest.raises(ArgumentError):
            compiled(torch.randn(6, 7), torch.tensor(wrong))


def test_a_range_on_which_the_trace_relies_is_checked_as_in_every_backend() -> None:
    """PyTorch infers that `masked_select` of 10 elements has at most 10, although the mask may repeat them."""

    def chosen(a: Tensor, mask: Tensor) -> Tensor:
        found = torch.masked_select(a, mask)
        return found + 1 if found.shape[0] <= 10 else found - 1  # no branch is left in the trace

    def repeated(a: Tensor, mask: Tensor) -> Tensor:
        return torch.masked_select(a.expand(mask.shape), mask) + 1

    few, many = ((torch.randn(10), torch.arange(70).view(7, 10) < n) for n in (9, 11))
    program = torch.export.export(FunctionModule(chosen), few)
    entry_points: list[tuple[Any, Any]] = [
        (compiler.compile(program), program.module()),
        (torch.compile(chosen, backend=tilewright), torch.compile(chosen, backend="aot_eager")),
    ]
    for ours, theirs in entry_points:
        agree(ours, chosen, few)
        with pytest.raises(RuntimeError, match="u0 <= 10"):
            theirs(*many)
        with pytest.raises(ArgumentError, match=r"u0 <= 10 .*; data decides u0 at .*:\d+ \(u0 = 11\)"):
            ours(*many)
    agree(compiler.compile(FunctionModule(repeated), few), repeated, many)


def test_conditions_between_sizes_are_checked() -> None:
    dims = ({0: Dim("n", min=2, max=64)}, None)
    compiled = compiler.compile(FunctionModule(first), (torch.randn(6, 7), torch.tensor(2)), dynamic_shapes=(dims,))
    agree(compiled, first, (torch.randn(9, 7), torch.tensor(8)))
    with pytest.raises(ArgumentError, match=r"u\d+ = 8"):
        compiled(torch.randn(6, 7), torch.tensor(8))


def test_a_number_that_may_be_negative_is_no_size() -> None:
    with pytest.raises(
        UnsupportedOpError, match=r"shifts is a data-dependent value that may be negative; add torch._check"
    ):
        compiler.compile(FunctionModule(lambda a, n: a.roll(n.item())), (torch.randn(6), torch.tensor(2)))


def test_a_number_that_is_said_to_be_a_size_must_be_it() -> None:
    def same(a: Tensor, n: Tensor) -> Tensor:
        count = n.item()
        torch._check(count == a.shape[0])
        return a + torch.ones(count, 1)

    dims = ({0: Dim("n", min=2, max=64)}, None)
    compiled = compiler.compile(FunctionModule(same), (torch.randn(6, 7), torch.tensor(6)), dynamic_shapes=(dims,))
    agree(compiled, same, (torch.randn(9, 7), torch.tensor(9)))
    with pytest.raises(ArgumentError, match=r"value must equal s\d+ \(.*u\d+ = 8\)"):
        compiled(torch.randn(9, 7), torch.tensor(8))


def test_views_of_arguments_whose_size_data_decides() -> None:
    def parts(a: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        count = n.item()
        torch._check(count >= 0)
        torch._check(count <= a.shape[0])
        return a[:count], a[count:]

    compiled = torch.compile(parts, backend=tilewright, fullgraph=True, dynamic=True)
    for n in (2, 0, 6):
        agree(compiled, parts, (x(), torch.tensor(n)))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "view",
    [
        lambda a, n: a[n.item() :],
        lambda a, n: a.t()[1:, n.item() : n.item() + 3 : 2],
        lambda a, n: a[n.item()],
        lambda a, n: a[1:].select(1, n.item())[2:],
        lambda a, n: a.tensor_split(torch.tensor([2, 4])),
    ],
)
def test_views_of_arguments_at_a_place_that_data_decides(view: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = torch.compile(view, backend=tilewright, fullgraph=True, dynamic=dynamic)
    for n, a in ((2, x()), (0, x()), (5, x()), (-1, x()), (1, torch.complex(x(), x()))):
        agree(compiled, view, (a, torch.tensor(n)))
        results = compiled(a, torch.tensor(n))
        for mine in results if isinstance(results, (tuple, list)) else (results,):
            assert not mine.numel() or mine.untyped_storage().data_ptr() == a.untyped_storage().data_ptr()


def test_a_slice_from_the_place_in_a_tensor() -> None:
    """Its end is a number with a condition; `torch.export` fails at it."""

    def part(a: Tensor, n: Tensor) -> Tensor:
        return a.narrow(0, n, 2) * 2

    compiled = torch.compile(part, backend=tilewright, fullgraph=True)
    for n in (0, 4, -2, -6):
        agree(compiled, part, (x(), torch.tensor(n)))


def test_places_out_of_range_are_refused() -> None:
    function, _ = CASES["the last but one"]
    compiled = compiler.compile(FunctionModule(function), (torch.randn(6), torch.tensor(-2)))
    with pytest.raises(IndexError, match="out of range"):
        compiled(torch.randn(6), torch.tensor(-7))


def test_an_argument_that_only_pytorch_reads_is_checked_like_others() -> None:
    compiled = compiler.compile(FunctionModule(lambda a: torch.unique(a)), (torch.randn(6),))
    with pytest.raises(
        ArgumentError, match=r"input 0 \(%.*\) requires gradients, which compiled code does not compute"
    ):
        compiled(torch.randn(6, requires_grad=True))
    with torch.no_grad():
        assert not compiled(torch.randn(6, requires_grad=True)).requires_grad
    for wrong, what in (
        (torch.randn(6).double(), r"float64\[6\]"),
        (torch.randn(6).to_sparse(), "a sparse_coo tensor"),
    ):
        with pytest.raises(ArgumentError, match=rf"must be .*f32\[6\].* {what}"):
            compiled(wrong)


def test_gradients_of_the_operands_of_a_branch_are_refused() -> None:
    def chosen(a: Tensor, b: Tensor) -> Any:
        return torch.cond(b.sum() > 0, lambda a: a * 2, lambda a: a + 1, (a,))

    args = torch.randn(4), torch.ones(3)
    compiled = compiler.compile(FunctionModule(chosen), args)
    for k in range(2):
        with pytest.raises(ArgumentError, match="requires gradients"):
            compiled(*(a.clone().requires_grad_(k == j) for j, a in enumerate(args)))


def test_buffers_are_written_back() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, a: Tensor) -> Tensor:
            chosen = a[a > 0]
            self.seen.add_(chosen.sum())
            return chosen + self.seen

    ours, theirs = Counting(), Counting()
    compiled = compiler.compile(ours, (torch.randn(9),))
    for _ in range(3):
        a = torch.randn(9)
        torch.testing.assert_close(compiled(a), theirs(a))
    torch.testing.assert_close(ours.seen, theirs.seen)
