"""The benchmark of low precision: references, packed weights, limits, and cases that ours refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

import compiler
from benchmarks import low_precision
from benchmarks.arguments import BenchmarkArguments
from benchmarks.low_precision import limit_table, rate_cells, section_table
from benchmarks.low_precision.case import OURS, Case, Outcome, Variant, as_tensors, measure
from benchmarks.low_precision.decoders import decoder_case, decoders
from benchmarks.low_precision.ggml import blocks, ggml_call
from benchmarks.low_precision.models import bf16_case, models, quantized_case
from benchmarks.low_precision.nbits import NBitsLinear, nbits_variants
from benchmarks.low_precision.products import QuantizedLinear, float_product, integer_product, products
from benchmarks.low_precision.vectors import FORMATS, GROUP, integer_weights, stack, vectors, weight_bytes
from benchmarks.networks import network
from benchmarks.networks.llama import Shape
from benchmarks.peak import MULTIPLY_ADDS
from benchmarks.peers import PEERS
from compiler.codegen.llvm.targets import CPU_TARGETS, host_target
from compiler.frontend.gguf_weights import Q4Weight, Q8Weight
from compiler.report.measure import float64_reference
from compiler.report.render import render_plain
from compiler.tools.microbenchmarks import aligned_data

quick = partial(measure, "case", peers=("eager",), rounds=1, burst=0.0)

LIMITS = {"f32": 1e9, "bf16": 2e9, "reads": 1e9}
"""Of a machine without an instruction for i8."""


@pytest.mark.parametrize(
    ("dtype", "element", "code", "step"),
    [
        ("f32", np.float32, 2, lambda a: a * 2 + 2),
        ("bf16", np.uint16, 0x4000, lambda a: a + 2 * 2.0 * 2.0),
        ("i8", np.uint8, 3, lambda a: a + 4 * 3 * 3),
    ],
)
def test_an_instruction_adds_all_its_products(
    dtype: str, element: type, code: int, step: Callable[[float], float]
) -> None:
    """Two steps from accumulators that hold the operands' codes; 0x4000 is 2.0 in bf16."""
    target, instruction = host_target(), MULTIPLY_ADDS[dtype]
    if not instruction.is_available(target):
        pytest.skip(f"this CPU has no {instruction.instruction}")
    loop = instruction.loop(target)
    data = aligned_data(loop.chains * target.vector_bits // 8)
    data.view(element)[:] = code
    accumulators = data.view(np.int32 if instruction.accumulator == "i32" else np.float32)
    want = step(step(accumulators[0].item()))
    loop.compile(target)(2, data.ctypes.data, 0)
    assert (accumulators[: loop.chains * target.lanes(32)] == want).all()


def test_a_missing_instruction_is_said() -> None:
    assert not MULTIPLY_ADDS["i8"].is_available(CPU_TARGETS["x86-64-v3"])
    text = render_plain(limit_table(LIMITS, threads=1))
    assert "no vpdpbusd: this CPU lacks avx512vnni" in text
    assert rate_cells(Outcome({OURS: 1.0}, {}, work=5e8, limit="i8"), LIMITS) == ["0.5 Gop/s", "50%"]
    assert rate_cells(Outcome({}, {}, work=5e8, limit="reads"), LIMITS) == ["-", "-"]


def test_rows_are_selected_by_section_and_name() -> None:
    rows = [f"{section} {row}" for section, cases in low_precision.SECTIONS.items() for row in cases()]
    assert len(rows) == len(set(rows)) == len(products()) + len(vectors()) + len(models()) + len(decoders())
    assert BenchmarkArguments(("vectors i8", "i8 ResNet")).select_rows(rows) == ["vectors i8", "models i8 ResNet-50"]


def test_a_quantized_layer_is_an_integer_product() -> None:
    """i64 arithmetic in NumPy, with the zero point taken out and the results quantized again."""
    case = integer_product(5, 32, 7)
    layer, (x,) = case.model, case.args
    assert isinstance(layer, QuantizedLinear)
    sums = (x.numpy().astype(np.int64) - layer.x_zero_point) @ layer.weight.numpy().astype(np.int64).T
    y = sums * layer.x_scale * layer.scale.double().numpy() + layer.bias.double().numpy()
    codes = np.clip(np.rint(np.maximum(y, 0) / layer.y_scale), 0, 255)
    assert np.array_equal(layer(x).numpy(), codes)
    assert codes.max() >= 254  # the range is used
    assert case.work == 2 * 5 * 32 * 7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_float_product_is_compared_with_float64(dtype: torch.dtype) -> None:
    outcome = quick(partial(float_product, dtype, "bf16", 4, 64, 8))
    assert set(outcome.seconds) == {OURS, "eager"}
    assert 0 < outcome.errors[OURS] < torch.finfo(dtype).eps


def dequantized(layer: nn.Module) -> np.ndarray:
    """Return the weights of a layer in float64, from what MatMulNBits is given; floats have a scale for each row."""
    if (weights := integer_weights(layer)) is None:
        return layer.weight.double().numpy() * layer.scale.double().numpy()[:, None]
    given = NBitsLinear(weights, accuracy=1)
    data, scale = given.data.numpy(), given.scale.double().numpy()[..., None]
    codes = data if given.bits == 8 else np.stack((data & 15, data >> 4), axis=-1).reshape(*data.shape[:2], -1)
    return ((codes.astype(np.float64) - (1 << given.bits - 1)) * scale).reshape(len(data), -1)


@pytest.mark.parametrize("name", FORMATS)
def test_vectors_are_multiplied_by_quantized_weights(name: str) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(96, 64), torch.randn(1, 64)
    layer = FORMATS[name](weight)
    w = dequantized(layer)
    assert np.abs(w - weight.double().numpy()).max() < 0.6 * np.abs(weight.numpy()).max() / (7 if "4" in name else 16)
    np.testing.assert_allclose(layer(x).numpy(), x.double().numpy() @ w.T, atol=1e-5)


def test_a_group_of_four_bit_weights_keeps_its_largest() -> None:
    layer = FORMATS[f"4 bits, groups of {GROUP}"](torch.linspace(-1, 1, 2 * GROUP).view(1, -1))
    w = dequantized(layer)
    assert w[0, [0, -1]] == pytest.approx([-1, 1])
    assert layer.packed.numel() == GROUP


def test_stacks_hold_more_than_a_cache() -> None:
    for make in FORMATS.values():
        layers = stack(make, 64, 20_000)
        assert weight_bytes(layers[:-1]) < 20_000 <= weight_bytes(layers)
        assert len({type(layer) for layer in layers}) == 1


def test_onnx_runtime_multiplies_the_same_weights() -> None:
    pytest.importorskip("onnxruntime", reason="the benchmark's peers are not installed")
    for name, make in FORMATS.items():
        layers, x = stack(make, 64, 10_000), torch.randn(1, 64)
        want = x.double().numpy()
        for layer in layers:
            want = want @ dequantized(layer).T
        variants = nbits_variants(layers, (x,), integer_weights)
        assert len(variants) == (0 if "f8" in name else 2)
        for variant in variants:
            (got,) = as_tensors(variant.make()())
            tolerance = 0.05 if "x i8" in variant.name else 1e-4
            np.testing.assert_allclose(
                got.numpy(), want, rtol=tolerance, atol=tolerance * np.abs(want).max(), err_msg=name
            )


@pytest.mark.skipif(find_spec("llama_cpp") is None, reason="needs llama-cpp-python")
@pytest.mark.parametrize("name", ["i8", f"4 bits, groups of {GROUP}"])
def test_llama_cpp_multiplies_the_same_weights(name: str) -> None:
    """It rounds activations to 8 bits and scales to f16."""
    layers, x = stack(FORMATS[name], 64, 10_000), torch.randn(1, 64)
    want = x.double().numpy()
    for layer in layers:
        want = want @ dequantized(layer).T
    got = ggml_call([w for layer in layers if (w := integer_weights(layer))], x)()
    assert 1e-5 < np.abs(got.numpy() - want).max() / np.abs(want).max() < 0.05


def test_blocks_of_llama_cpp_hold_the_same_weights() -> None:
    weight = torch.randn(3, 64)
    for name, kind in ((f"4 bits, groups of {GROUP}", Q4Weight), ("i8", Q8Weight)):
        layer = FORMATS[name](weight)
        weights = integer_weights(layer)
        assert weights is not None
        np.testing.assert_allclose(kind(torch.from_numpy(blocks(weights)))().numpy(), dequantized(layer), rtol=1e-3)


@pytest.mark.parametrize("name", ["i8", f"4 bits, groups of {GROUP}"])
def test_onnx_runtime_runs_the_same_decoder(name: str) -> None:
    pytest.importorskip("onnxruntime", reason="the benchmark's peers are not installed")
    pytest.importorskip("torchao", reason="torchao quantizes the decoder")
    case = decoder_case(name, Shape(layers=1, width=64, heads=4, shared_heads=2, hidden=96, words=32, cached=8))
    want = case.model(*case.args)
    exact, rounded = (as_tensors(v.make()())[0] for v in case.variants)
    torch.testing.assert_close(exact, want, rtol=1e-4, atol=1e-4 * want.abs().max().item())
    assert 1e-5 < (rounded - want).abs().max() / want.abs().max() < 0.1


def test_what_ours_refuses_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise compiler.TilewrightError("1 operation(s) are not supported:\n  odd.op: has no conversion\n    at a.py:3")

    monkeypatch.setattr(compiler, "compile", refuse)
    outcome = quick(lambda: Case(nn.ReLU(), (torch.randn(2, 3),)))
    assert set(outcome.seconds) == {"eager"}
    assert outcome.errors["eager"] == 0
    assert outcome.refusal == "refused: 1 operation(s) are not supported: odd.op: has no conversion"
    text = render_plain(section_table("products", 1, LIMITS, {"a row": outcome}, ("eager",)), width=200)
    assert "refused: 1 operation(s)" in text


def test_what_cannot_be_made_is_a_row() -> None:
    def make() -> Case:
        raise ImportError("torchao is not installed")

    assert quick(make) == Outcome({}, {}, "no reference: torchao is not installed")


def test_wrong_results_are_seen() -> None:
    x = torch.ones(3)
    wrong = Variant("wrong", "eager", lambda: lambda: [np.zeros(3)])
    unwanted = Variant("unwanted", "OpenVINO", lambda: lambda: x)
    outcome = quick(lambda: Case(nn.Identity(), (x,), (wrong, unwanted)))
    assert outcome.errors == {OURS: 0.0, "eager": 0.0, "wrong": 1.0}
    assert outcome.format_system("unwanted") == "-"
    assert outcome.format_system("wrong").endswith(" 1e+00")


def small_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def test_models_in_bf16_are_compared_with_ours_in_f32() -> None:
    case = bf16_case(network(small_model, (1, 2, 4, 4)))
    assert {t.dtype for t in (*case.args, *case.model.parameters())} == {torch.bfloat16}
    outcome = quick(lambda: case)
    assert set(outcome.seconds) == {OURS, "eager", "ours, f32"}
    assert 0 < outcome.errors[OURS] < 0.03


def test_models_are_quantized_to_8_bits() -> None:
    pytest.importorskip("torchao", reason="torchao quantizes the models of this benchmark")
    case = quantized_case(network(small_model, (1, 2, 4, 4)))
    program = torch.export.export(case.model, case.args)
    names = [str(n.target) for n in program.graph.nodes]
    assert names.count("quantized_decomposed.dequantize_per_channel.default") == 2
    truth = float64_reference(program, case.args)[0]
    assert truth.dtype == torch.float64
    assert (case.model(*case.args) - truth).abs().max() < 1e-5


def test_all_sections_are_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sections = {
        "products": lambda: {"i8 tiny": partial(integer_product, 2, 8, 4), "bf16 tiny": partial(float_product, torch.bfloat16, "bf16", 2, 8, 4)},
        "vectors": lambda: {"other": pytest.fail},
    }  # fmt: skip
    monkeypatch.setattr(low_precision, "SECTIONS", sections)
    monkeypatch.setattr(low_precision, "measure_limits", lambda threads: LIMITS)
    monkeypatch.setattr(low_precision, "measure", partial(measure, rounds=1, burst=0.0))
    low_precision.main(BenchmarkArguments(("tiny",), ("eager",), (torch.get_num_threads(),)))
    text = capsys.readouterr().out
    assert "i8 tiny" in text
    assert "bf16 tiny" in text
    assert "vectors" not in text


def test_a_peer_that_writes_its_argument_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "Inductor", lambda _, args: args[0].zero_)
    outcome = quick(lambda: Case(nn.Identity(), (torch.ones(3),)), peers=("Inductor", "eager"))
    assert outcome.errors == {OURS: 0.0, "Inductor": 1.0, "eager": 0.0}
