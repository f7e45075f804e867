"""Products of one row with weights of 8 and 4 bits, which are bound by reading the weights.

Each case is a stack of layers with as many bytes as `read_rate` reads, because the weights of one layer would stay in a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.low_precision.case import Case, Variant
from benchmarks.peak import READ_BYTES
from benchmarks.peers import PeerCall

SIZE = 4096
"""Rows and columns of the weights of a layer."""

GROUP = 32
"""Weights of 4 bits with one scale."""

EXACT, EIGHT_BIT_ACTIVATIONS = 1, 4
"""Accuracy levels of ONNX Runtime's MatMulNBits: f32 arithmetic, or activations rounded to 8 bits."""


class ScaledLinear(nn.Module):
    """Linear layer without bias with weights of 8 bits, i8 or f8, and a scale for each row: f32[m, k] -> f32[m, n]."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        scale = weight.abs().amax(1) / info.max
        scaled = weight / scale[:, None]
        self.register_buffer("weight", (scaled if dtype.is_floating_point else scaled.round()).to(dtype))
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale


class PackedLinear(nn.Module):
    """Linear layer without bias with weights of 4 bits, two in a byte, the first in the lower half.

    Each GROUP weights of a row have one scale: f32[m, k] -> f32[m, n].
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        groups = weight.unflatten(1, (-1, GROUP))
        scale = groups.abs().amax(2) / 7
        codes = ((groups / scale[..., None]).round() + 8).to(torch.uint8).flatten(1)
        self.register_buffer("packed", codes[:, 0::2] | codes[:, 1::2] << 4)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        codes = torch.stack((self.packed & 15, self.packed >> 4), dim=2).flatten(1)
        groups = (codes.to(x.dtype) - 8).unflatten(1, (-1, GROUP)) * self.scale[..., None]
        return nn.functional.linear(x, groups.flatten(1))


def stack(make: Callable[[Tensor], nn.Module], size: int, target_bytes: int) -> nn.Sequential:
    """Return equal layers of `size` x `size` weights that hold `target_bytes` or more."""
    torch.manual_seed(0)
    layers = [make(torch.randn(size, size) / size**0.5)]
    while (count := weight_bytes(nn.Sequential(*layers))) < target_bytes:
        layers += [make(torch.randn(size, size) / size**0.5) for _ in range((target_bytes - 1) * len(layers) // count)]
    return nn.Sequential(*layers).eval()


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of all buffers: weights and scales."""
    return sum(b.numel() * b.element_size() for b in model.buffers())


def matmul_nbits(layers: nn.Sequential, x: Tensor, accuracy: int) -> PeerCall:
    """Return a call of ONNX Runtime's MatMulNBits, one node for each layer."""
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants, size = [], [], x.shape[1]
    for k, layer in enumerate(layers):
        bits, block, data, scales = nbits_operands(layer)
        constants += [numpy_helper.from_array(data, f"w{k}"), numpy_helper.from_array(scales, f"s{k}")]
        settings = {"K": size, "N": len(data), "bits": bits, "block_size": block, "accuracy_level": accuracy}
        operands = [f"x{k}", f"w{k}", f"s{k}"]
        nodes.append(helper.make_node("MatMulNBits", operands, [f"x{k + 1}"], domain="com.microsoft", **settings))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(x.shape)) for n in ("x0", f"x{len(nodes)}")]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {"x0": x.numpy()}
    return lambda: session.run(None, feed)


def nbits_operands(layer: nn.Module) -> tuple[int, int, np.ndarray, np.ndarray]:
    """Return bits, weights in a block, packed weights [n, blocks, bytes] and scales [n, blocks] of a layer.

    Codes are unsigned, with a zero point in the middle of their range.
    """
    if isinstance(layer, PackedLinear):
        return 4, GROUP, layer.packed.unflatten(1, (-1, GROUP // 2)).numpy(), layer.scale.numpy()
    block = min(256, layer.weight.shape[1])
    data = (layer.weight.to(torch.int16) + 128).to(torch.uint8).unflatten(1, (-1, block))
    return 8, block, data.numpy(), layer.scale[:, None].expand(data.shape[:2]).contiguous().numpy()


def vector_case(make: Callable[[Tensor], nn.Module], has_nbits: bool, size: int, target_bytes: int) -> Case:
    """Return a stack of layers and one row, with MatMulNBits if it takes such weights."""
    layers = stack(make, size, target_bytes)
    x = torch.randn(1, size)
    levels = {"MatMulNBits": EXACT, "MatMulNBits, x i8": EIGHT_BIT_ACTIVATIONS} if has_nbits else {}
    variants = (Variant(n, "ONNX Runtime", partial(matmul_nbits, layers, x, level)) for n, level in levels.items())
    return Case(layers, (x,), tuple(variants), weight_bytes(layers), "reads")


FORMATS: dict[str, tuple[Callable[[Tensor], nn.Module], bool]] = {
    "i8": (partial(ScaledLinear, dtype=torch.int8), True),
    f"4 bits, groups of {GROUP}": (PackedLinear, True),
    "f8e4m3fn": (partial(ScaledLinear, dtype=torch.float8_e4m3fn), False),
}
"""Layer of each format, and whether MatMulNBits takes its weights."""


def vectors(size: int = SIZE, target_bytes: int = READ_BYTES) -> dict[str, Callable[[], Case]]:
    """Return a case for each format."""
    return {name: partial(vector_case, *f, size, target_bytes) for name, f in FORMATS.items()}
