"""One compilation for every admitted size, through both entry points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import compiler
from compiler import torch_backend as backend
from compiler.codegen.llvm.targets import host_target
from compiler.driver import compiled_graph as driver
from compiler.driver import partitioned_graph as partitioned
from compiler.driver.compiled_graph import CompiledGraph
from compiler.driver.specialization import SIZE_BUCKETS
from compiler.errors import ArgumentError, DynamicShapeError, PassError
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_atoms import DEFAULT_SIZE_HINT
from compiler.ir.symbolic.index_atoms import SMALL_SIZE_HINT as FEW_LIKELY
from compiler.ir.symbolic.index_expr import dynamic_sizes
from compiler.passes.graph import winograd
from compiler.report.measure import numerical_error

FEW = {"cache": ""}


class Gate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x * 2) + x.shape[0]


class Chunks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = x.chunk(3)
        return first.sum(0) + 2 * second.sum(0) - third.sum(0)


class Sum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(0)


class Join(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y]) * 2


class Diagonal(nn.Module):
    """Rows on the third diagonal above the middle one: zeros stand in front of them, as an open number of columns behind."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.diag_embed(x, offset=2)


class Attention(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(b, n, d))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        return torch.relu(self.second(x)).mean((2, 3))


class Steps(nn.Module):
    """The outputs of a recurrent layer for sequences of three entries."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(x)[0]
        return outputs


B = Dim("b", min=1, max=64)
N = Dim("n", min=2, max=512)
H = Dim("h", min=8, max=128)
M = Dim("m", min=2, max=64)

CASES: dict[str, tuple[Callable[[], nn.Module], Any, Callable[[int], tuple[torch.Tensor, ...]], tuple[int, ...]]] = {
    "elementwise rows": (Gate, ({0: N},), lambda n: (torch.randn(n, 20),), (37, 2, 3, 512)),
    "elementwise columns": (Gate, ({1: N},), lambda n: (torch.randn(5, n),), (37, 2, 3, 512)),
    "linear": (lambda: nn.Linear(24, 40), ({0: N},), lambda n: (torch.randn(n, 24),), (64, 2, 3, 17, 129)),
    "softmax of rows": (lambda: nn.Softmax(-1), ({0: N},), lambda n: (torch.randn(n, 50),), (16, 2, 33)),
    "softmax of columns": (lambda: nn.Softmax(-1), ({1: N},), lambda n: (torch.randn(5, n),), (100, 2, 15, 16, 65)),
    "layer_norm": (lambda: nn.LayerNorm(24), ({0: N},), lambda n: (torch.randn(n, 24),), (16, 2, 33)),
    "mean": (Sum, ({0: N},), lambda n: (torch.randn(n, 24),), (16, 2, 33)),
    "concatenation": (Join, ({0: N}, {0: M}), lambda n: (torch.randn(n, 6), torch.randn(n // 2 + 1, 6)), (9, 2, 30)),
    "chunks": (Chunks, ({0: Dim.AUTO},), lambda n: (torch.randn(n, 6),), (20, 6, 7, 31)),
    "diagonal": (Diagonal, ({0: M, 1: N},), lambda n: (torch.randn(n // 2 + 1, n),), (9, 2, 33)),
    "attention": (Attention, ({0: M, 1: N},), lambda n: (torch.randn(2 + n % 3, n, 32),), (48, 2, 17, 63)),
    "images": (Images, ({0: M},), lambda n: (torch.randn(n, 4, 16, 16),), (4, 2, 3, 9)),
    "larger images": (Images, ({2: H},), lambda n: (torch.randn(2, 4, n, 16),), (16, 8, 9, 31)),
    "repeated": (lambda: nn.Upsample(scale_factor=2), ({2: M, 3: N},), lambda n: (torch.randn(2, 4, n // 2 + 1, n),), (9, 2, 3, 33)),
    "between": (lambda: nn.Upsample(scale_factor=(2, 3), mode="bilinear"), ({2: M, 3: N},), lambda n: (torch.randn(2, 4, n // 2 + 1, n),), (9, 2, 3, 33)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_compilation_serves_every_size(case: str) -> None:
    make, dynamic, arguments, sizes = CASES[case]
    torch.manual_seed(0)
    model = make().eval()
    compiled = compiler.compile(model, arguments(sizes[0]), dynamic_shapes=dynamic, options=FEW)
    for n in sizes:
        given = arguments(n)
        with torch.no_grad():
            truth = model.double()(*(x.double() for x in given))
            model.float()
        assert numerical_error([compiled(*given)], [truth]).relative < 3e-6
    assert len(compiled.compiled_graph.specializations) == 1
    assert compiled.executable.size_names


@pytest.mark.parametrize(("kind", "states"), [(nn.LSTM, 96), (nn.LSTM, 256), (nn.GRU, 128), (nn.RNN, 80)])
def test_recurrent_layers_take_any_number_of_rows(kind: type[nn.RNNBase], states: int) -> None:
    """Fewer rows than a tile, some beside a tile, whole tiles; where there are many gates, apart from their sums."""
    torch.manual_seed(0)
    model = Steps(kind(12, states)).eval()
    compiled = compiler.compile(model, (torch.randn(3, 8, 12),), dynamic_shapes=({1: B},), options=FEW)
    for rows in range(1, 22):
        x = torch.randn(3, rows, 12)
        with torch.no_grad():
            truth = model.double()(x.double())
            model.float()
        assert numerical_error([compiled(x)], [truth]).relative < 1e-6
    assert len(compiled.compiled_graph.specializations) == 1


def test_torch_compile_compiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[CompiledGraph] = []

    def noted(*args: Any) -> CompiledGraph:
        made.append(partitioned.compile_graph(*args))
        return made[-1]

    monkeypatch.setattr(backend, "compile_graph", noted)
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Softmax(-1)).eval()
    fast = torch.compile(model, backend=backend.tilewright, dynamic=True, options=FEW)
    with torch.no_grad():
        for n in (16, 3, 33, 200):
            x = torch.randn(n, 24)
            torch.testing.assert_close(fast(x), model(x))
    assert [len(g.specializations) for g in made] == [1]


def test_large_sizes_have_code_of_their_own() -> None:
    compiled = compiler.compile(nn.Softmax(-1), (torch.randn(2, 50),), dynamic_shapes=({1: Dim.DYNAMIC},), options=FEW)
    for n in (50, 7, SIZE_BUCKETS[0] + 1, 9000):
        x = torch.randn(2, n)
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1))
    assert len(compiled.compiled_graph.specializations) == 2


def test_small_sizes_have_a_program_where_a_pass_would_decide_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are there after the first call, whatever it was, and both serve every size."""

    def tile(n: Node, *, size_hint: int = DEFAULT_SIZE_HINT, **_: Any) -> int:
        likely = [min(s.hint, size_hint) for d in n.shape for s in dynamic_sizes(d)]
        return 2 if winograd.is_supported(n) and likely and max(likely) <= FEW_LIKELY else 0

    monkeypatch.setattr(winograd, "best_tile", tile)
    model, wide = nn.Conv2d(4, 8, 3, padding=1), {2: Dim("h", min=2, max=512), 3: Dim("w", min=2, max=512)}
    compiled = compiler.compile(model, (torch.randn(1, 4, 300, 300),), dynamic_shapes=(wide,), options=FEW)
    (made,) = compiled.compiled_graph.specializations
    assert made.small_variant is not None
    assert [
        len(v.stages.context.remarks.select("winograd", "applied")) for v in (made.default_variant, made.small_variant)
    ] == [0, 1]
    for h, w, version in (
        (5, 7, made.small_variant),
        (64, 256, made.small_variant),
        (65, 256, made.default_variant),
        (300, 300, made.default_variant),
    ):
        x = torch.randn(1, 4, h, w)
        found = compiled.compiled_graph.input_sizes([x])
        assert made.select_variant(found) is version
        for each in (made.default_variant, made.small_variant):
            (ours,) = each.executable_for(found)([x])
            torch.testing.assert_close(ours, model(x), atol=1e-5, rtol=1e-5)

    small = {2: Dim("h", min=2, max=128), 3: Dim("w", min=2, max=128)}
    compiled = compiler.compile(model, (torch.randn(1, 4, 20, 20),), dynamic_shapes=(small,), options=FEW)
    (made,) = compiled.compiled_graph.specializations
    assert made.small_variant is None
    assert made.default_variant.stages.context.remarks.select("winograd", "applied")


@pytest.mark.skipif(
    host_target().vector_bits < 512, reason="this machine's vectors are so short that both variants choose one layout"
)
def test_small_images_have_a_program_where_their_layout_is_another() -> None:
    """Depthwise, rows of few pixels leave lanes empty, and channels do not."""
    model, wide = nn.Conv2d(32, 32, 3, padding=1, groups=32), {2: Dim("h", min=2, max=512), 3: Dim("w", min=2, max=512)}
    compiled = compiler.compile(model, (torch.randn(1, 32, 300, 300),), dynamic_shapes=(wide,))
    (made,) = compiled.compiled_graph.specializations
    assert made.small_variant is not None
    assert [
        len(v.stages.context.remarks.select("layout", "applied")) for v in (made.default_variant, made.small_variant)
    ] == [0, 1]
    for size in (2, 14, 33, 130):
        x = torch.randn(1, 32, size, size)
        for each in (made.default_variant, made.small_variant):
            (ours,) = each.executable_for(compiled.compiled_graph.input_sizes([x]))([x])
            torch.testing.assert_close(ours, model(x), atol=1e-5, rtol=1e-5)


def test_sizes_out_of_range_are_named() -> None:
    compiled = compiler.compile(Gate(), (torch.randn(8, 4),), dynamic_shapes=({0: N},), options=FEW)
    for n in (1, 513):
        with pytest.raises(ArgumentError, match=rf"must be in 2\.\.512, but is {n}"):
            compiled(torch.randn(n, 4))
    with pytest.raises(ArgumentError, match=r"must be f32\[8, 4\]"):
        compiled(torch.randn(8, 5))
    with pytest.raises(ArgumentError, match="must have 2 dimensions, but has 1"):
        compiled(torch.randn(8))


def test_images_below_a_window_are_refused() -> None:
    """Whether export has noticed that windows must fit or not."""
    model = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(2, 3, 5), nn.MaxPool2d(2)).eval()
    auto = Dim.AUTO
    compiled = compiler.compile(model, (torch.randn(1, 2, 9, 8),), dynamic_shapes=({2: auto, 3: auto},), options=FEW)
    assert compiled(torch.randn(1, 2, 3, 3)).shape == (1, 3, 1, 1)
    for shape in ((9, 2), (2, 9)):
        with pytest.raises(ArgumentError, match=r"these sizes do not fit .*: conv.* larger than the input's 4"):
            compiled(torch.randn(1, 2, *shape))


def test_sizes_that_contradict_each_other_are_refused() -> None:
    class Add(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    compiled = compiler.compile(Add(), (torch.randn(8), torch.randn(8)), dynamic_shapes=({0: N}, {0: N}), options=FEW)
    for n in (8, 9):
        with pytest.raises(ArgumentError):
            compiled(torch.randn(n), torch.randn(7))


def test_what_cannot_stay_open_is_compiled_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise DynamicShapeError("no code for open sizes")

    monkeypatch.setattr("compiler.passes.tile.peel.peel_dynamic_range", refuse)
    compiled = compiler.compile(nn.Softmax(-1), (torch.randn(2, 50),), dynamic_shapes=({1: N},), options=FEW)
    for n in (50, 7):
        x = torch.randn(2, n)
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1))
    assert len(compiled.compiled_graph.specializations) == 2
    assert "no code for open sizes" in str(compiled.remarks)


def test_a_fault_is_no_reason_to_compile_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.passes.tile.peel.peel_dynamic_range", lambda *_: 1 // 0)
    with pytest.raises(PassError, match="ZeroDivisionError"):
        compiler.compile(nn.Softmax(-1), (torch.randn(2, 50),), dynamic_shapes=({1: N},), options=FEW)


def test_of_many_sets_of_sizes_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MAX_CACHED_SIZES", 2)
    compiled = compiler.compile(Gate(), (torch.randn(8, 4),), dynamic_shapes=({0: N},), options=FEW)
    for n in (8, 9, 10, 8, 9):
        torch.testing.assert_close(compiled(torch.ones(n, 4)), Gate()(torch.ones(n, 4)))
        assert len(compiled.compiled_graph._executables) <= 2
    assert len(compiled.compiled_graph.specializations) == 1


@pytest.mark.parametrize("case", ["linear", "attention"])
def test_the_program_does_not_depend_on_the_first_call(case: str) -> None:
    """Attention is cut in parts, though the rows of both first calls are short."""
    make, _, inputs, _ = CASES[case]
    dims = ({inputs(9)[0].ndim - 2: Dim("rows", min=2, max=4096)},)
    model, texts = make().eval(), set()
    for first in (9, 63):
        compiled = compiler.compile(model, inputs(first), dynamic_shapes=dims, options=FEW)
        texts.add(compiled.print_ir("scheduled"))
    assert len(texts) == 1
    assert ("local %max:" in texts.pop()) == (case == "attention")


def test_passes_are_checked_at_a_small_size() -> None:
    options = {**FEW, "check": True, "verify": True}
    compiled = compiler.compile(Attention(8).eval(), (torch.randn(1, 5, 8),), dynamic_shapes=({1: N},), options=options)
    assert compiled.executable.size_names
    assert not compiled.remarks.select("driver")


def test_a_profile_counts_the_sizes_of_the_call() -> None:
    compiled = compiler.compile(Gate(), (torch.randn(8, 4),), dynamic_shapes=({0: N},), options=FEW)
    few, many = (compiled.profile(torch.randn(n, 4), repeats=1).kernels[0] for n in (4, 40))
    assert (many.flops, many.bytes) == (10 * few.flops, 10 * few.bytes)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_over_heads_of_open_size(dtype: torch.dtype, trained: bool) -> None:
    """The number that scores are multiplied by follows from the size."""
    torch._dynamo.reset()
    attention = nn.functional.scaled_dot_product_attention
    compiled = torch.compile(attention, backend="tilewright", dynamic=True, options=FEW)
    for n, d in ((7, 16), (12, 24)):
        q, k, v = (torch.randn(2, 3, n, d, dtype=dtype, requires_grad=trained) for _ in range(3))
        truth = attention(q.double(), k.double(), v.double())
        found = compiled(q, k, v)
        close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(found.double(), truth, **close)
        if trained:
            ours, theirs = (torch.autograd.grad(y.sum(), (q, k, v)) for y in (found, truth))
            torch.testing.assert_close(ours, theirs, **close)


def test_columns_of_open_length_that_are_kept() -> None:
    """Each column keeps its differences from the maximum: wide blocks of columns would take more than a stack has."""
    torch._dynamo.reset()

    def entropy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.log_softmax(x, 1) * y).sum(1)

    compiled = torch.compile(entropy, backend="tilewright", dynamic=True, options=FEW)
    for shape in ((4, 2, 3), (3, 20, 130)):
        x, y = torch.randn(shape), torch.randn(shape)
        torch.testing.assert_close(compiled(x, y).double(), entropy(x.double(), y.double()), rtol=1e-5, atol=1e-4)
