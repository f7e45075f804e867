"""Models as programs for a GPU, against float64: `TRITON_INTERPRET=1 python -m tests.gpu_models [NAME ...] [--full] [--target T]`.

Each model is compiled twice, for one set of sizes and once for five of them.  Networks of the benchmarks are reduced, unless
`--full` takes them as they are: hours in Triton's interpreter, seconds on a GPU.  Without TRITON_INTERPRET a GPU is needed.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves, tree_map

import compiler
from benchmarks.networks import NETWORKS
from benchmarks.networks.dense import DenseNet
from benchmarks.networks.gpt import Block
from benchmarks.networks.layers import ready
from benchmarks.networks.mobile import MobileNet
from benchmarks.networks.resnet import ResNet, basic, bottleneck
from benchmarks.networks.squeeze import SqueezeNet
from benchmarks.networks.swin import SwinTransformer
from benchmarks.networks.unet import UNet
from benchmarks.networks.vit import VisionTransformer
from compiler.codegen.backend import target_by_name
from compiler.report.measure import numerical_error
from compiler.report.render import table
from compiler.tools.demo import minilm
from tests.tiny_models import MODELS, build_model, in_float64

Arguments: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A model, its arguments for a size, `dynamic_shapes` that leave this size open (None: it is fixed), and five sizes."""

    build: Callable[[], nn.Module]
    arguments: Callable[[int], Arguments]
    dynamic_shapes: Any = None
    sizes: tuple[int, ...] = (3, 2, 4, 5, 7)


@dataclass(frozen=True)
class Outcome:
    """Largest errors against float64, ours and eager's, relative to the largest element; kernels, and programs that were compiled."""

    error: float
    eager_error: float
    kernels: int
    programs: int

    @property
    def is_right(self) -> bool:
        """True if the error is near eager's."""
        return self.error < max(8 * self.eager_error, 1e-5)


def images(size: int = 16) -> Callable[[int], Arguments]:
    """Return images of `size` x `size`, in batches of n."""
    return lambda n: (torch.randn(n, 3, size, size),)


def cached_tokens(n: int) -> Arguments:
    """Return a token, and the keys and values of n others."""
    return torch.randn(1, 1, 32), torch.randn(1, 4, n, 8), torch.randn(1, 4, n, 8)


def sentences(n: int) -> Arguments:
    """Return two sentences of n tokens, the second shorter."""
    mask = torch.ones(2, n, dtype=torch.long)
    mask[1, n // 2 + 1 :] = 0
    return torch.randint(0, 30000, (2, n)), mask


BATCH = ({0: Dim.AUTO},)
STAGES = ((1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 1, 2))
"""The first stages of MobileNetV2 and EfficientNet."""

REDUCED: Mapping[str, Case] = {
    "ResNet-18": Case(lambda: ready(ResNet(basic, (2, 1), 16)), images(), BATCH),
    "ResNet-50": Case(lambda: ready(ResNet(bottleneck, (1, 1), 32)), images(), BATCH),
    "MobileNetV2": Case(lambda: ready(MobileNet(STAGES, nn.ReLU6, squeeze=False)), images(), BATCH),
    "EfficientNet-B0": Case(lambda: ready(MobileNet(STAGES, nn.SiLU, squeeze=True)), images(), BATCH),
    "SqueezeNet 1.1": Case(lambda: ready(SqueezeNet()), images(32), BATCH, (2, 3)),
    "DenseNet-121": Case(lambda: ready(DenseNet((2, 2))), images(), BATCH),
    "U-Net": Case(lambda: ready(UNet((4, 8))), images(8), BATCH),
    "ViT-S/16": Case(lambda: ready(VisionTransformer(16, 8, 32, 4, 1)), images()),
    "Swin-T": Case(lambda: ready(SwinTransformer(56, 8, 2, (2, 1))), images(56)),
    "GPT-2 prefill": Case(lambda: ready(Block(32, 4)), lambda n: (torch.randn(2, n, 32),), ({1: Dim.AUTO},)),
    "GPT-2 decode": Case(lambda: ready(Block(32, 4)), cached_tokens, (None, {2: Dim.AUTO}, {2: Dim.AUTO})),
    "LSTM": Case(lambda: nn.LSTM(4, 5, batch_first=True), lambda n: (torch.randn(2, n, 4),), ({1: Dim.AUTO},)),
    "GRU": Case(lambda: nn.GRU(4, 5, bidirectional=True), lambda n: (torch.randn(n, 2, 4),), ({0: Dim.AUTO},)),
    "MiniLM": Case(lambda: minilm()[0], sentences, None),
}  # fmt: skip


class Positional(nn.Module):
    """A model of `transformers` whose tensor arguments go by position."""

    def __init__(self, model: nn.Module, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.names = [k for k, v in arguments.items() if isinstance(v, Tensor)]
        self.others = {k: v for k, v in arguments.items() if not isinstance(v, Tensor)}

    def forward(self, *tensors: Tensor) -> Any:
        results = self.model(**dict(zip(self.names, tensors, strict=True)), **self.others)
        return [x for x in tree_leaves(results) if isinstance(x, Tensor)]


def transformer(name: str) -> Case:
    """Return a small model of `transformers`, of one size."""
    model, given = build_model(name)
    tensors = tuple(v for v in given.values() if isinstance(v, Tensor))
    return Case(lambda: Positional(model, given), lambda n: tensors, None, (1,))


def full(name: str) -> Case:
    """Return a network of the benchmarks as it is there."""
    model, arguments = NETWORKS[name]()
    return Case(lambda: model, lambda n: arguments, None, (1,))


def doubled(x: Any) -> Any:
    """Return a floating-point tensor in float64."""
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def in_double(model: nn.Module) -> nn.Module:
    """Return a copy in float64; experts are visited one by one, as their grouped products want smaller types."""
    if isinstance(model, Positional):
        return Positional(
            in_float64(model.model, {})[0], {**dict.fromkeys(model.names, torch.empty(0)), **model.others}
        )
    return copy.deepcopy(model).double()


def measure(case: Case, target: str, is_dynamic: bool = False) -> Outcome:
    """Compile a model once, and compare it with float64 for one of its sizes, or for all."""
    torch.manual_seed(0)
    device = target_by_name(target).device_type
    model = case.build().eval().to(device)
    calls = [case.arguments(n) for n in case.sizes[: None if is_dynamic else 1]]
    calls = tree_map(lambda x: x.to(device), calls)
    errors, own_errors = [0.0], [0.0]
    with torch.no_grad():
        options = {"target": target, "fallback": "eager"}
        shapes = case.dynamic_shapes if is_dynamic else None
        compiled = compiler.compile(model, calls[0], dynamic_shapes=shapes, options=options)
        truth = in_double(model)
        for args in calls:
            wanted = tree_leaves(truth(*tree_map(doubled, args)))
            for found, results in ((errors, compiled(*args)), (own_errors, model(*args))):
                found.append(numerical_error(tree_leaves(results), wanted).relative)
    graph: Any = compiled.compiled_graph
    programs = sum(len(g.specializations) for g in getattr(graph, "compiled_subgraphs", (graph,)))
    return Outcome(max(errors), max(own_errors), compiled.workload.kernels, programs)


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.gpu_models", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("names", nargs="*", help=f"models: {', '.join((*REDUCED, *MODELS))} (all)")
    parser.add_argument("--full", action="store_true", help="networks of the benchmarks as they are")
    parser.add_argument("--target", default="sm90", help="a GPU (sm90)")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    console, wrong = Console(), 0
    rows = table(f"models on {args.target}", ["model", "sizes"], last=["kernels", "programs", "error", "of eager", ""])
    for name in args.names or (NETWORKS if args.full else (*REDUCED, *MODELS)):
        case = full(name) if args.full else REDUCED[name] if name in REDUCED else transformer(name)
        for is_dynamic in (False, True) if case.dynamic_shapes else (False,):
            sizes = len(case.sizes) if is_dynamic else 1
            try:
                o = measure(case, args.target, is_dynamic)
            except Exception as error:
                console.print(f"{name}: {type(error).__name__}: {error}", markup=False, highlight=False)
                wrong += 1
                continue
            wrong += not o.is_right
            errors = f"{o.error:.1e}", f"{o.eager_error:.1e}", "" if o.is_right else "wrong"
            rows.add_row(name, f"{sizes}", f"{o.kernels}", f"{o.programs}", *errors)
            console.print(name, sizes, *errors, highlight=False)
    console.print(rows)
    if wrong:
        raise SystemExit(f"{wrong} wrong")


if __name__ == "__main__":
    main()
