"""Whole networks of batch size 1 in bf16, and quantized to 8 bits by PT2E, against ours in f32."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import compiler
from benchmarks.low_precision.case import OURS, Case, Variant, through_onnx
from benchmarks.networks import NETWORKS, Network
from benchmarks.peers import PeerCall, openvino

MODELS = ("MiniLM", "ResNet-50", "MobileNetV2", "ViT-S/16", "GPT-2 prefill")


def ours(model: nn.Module, args: tuple[Tensor, ...]) -> PeerCall:
    return partial(compiler.compile(model, args), *args)


def bf16_case(network: Network) -> Case:
    """Return a network whose parameters and images are rounded to bf16."""
    model, args = network()
    narrow = tuple(a.bfloat16() if a.is_floating_point() else a for a in args)
    variants = (
        Variant("ours, f32", OURS, partial(ours, model, args)),
        Variant("OpenVINO, bf16", "OpenVINO", partial(openvino, model, args, "bf16")),
    )
    return Case(copy.deepcopy(model).bfloat16(), narrow, variants)


def quantized_case(network: Network) -> Case:
    """Return a network whose convolutions and linear layers PT2E has quantized to u8 times i8."""
    model, args = network()
    quantized = quantize(model, args)
    variants = Variant("ours, f32", OURS, partial(ours, model, args)), through_onnx(quantized, args)
    return Case(quantized, args, variants)


def quantize(model: nn.Module, args: tuple[Tensor, ...]) -> nn.Module:
    """Quantize a model with torchao's PT2E for x86, calibrated on `args`."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    exported = torch.export.export(model, args).module()
    exported.graph.eliminate_dead_code()  # the quantizer fails on layers without users
    exported.recompile()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(exported, quantizer)
    with torch.no_grad():
        prepared(*args)
    return convert_pt2e(prepared)


def models() -> dict[str, Callable[[], Case]]:
    """Return a case for each network, in bf16 and quantized."""
    kinds = {"bf16": bf16_case, "i8": quantized_case}
    return {f"{kind} {name}": partial(make, NETWORKS[name]) for kind, make in kinds.items() for name in MODELS}
