"""A decoder with a static cache, token after token, in each format of the benchmark; the cache is updated in place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import compiler
from benchmarks.low_precision.decoders import FORMATS, decoder
from benchmarks.networks.llama import Llama, Shape
from tests.frontend.frontend_kit import require

SMALL = Shape(layers=2, width=64, heads=4, shared_heads=2, hidden=96, words=120, cached=8)

TOLERANCES = {"bf16": 3e-2}
"""Largest errors relative to the largest score, 1e-5 for formats that are computed in f32."""


def in_float64(model: Llama) -> Llama:
    """Return the same model with the same weights, dequantized."""
    twin = Llama(SMALL).double()
    twin.score.weight = nn.Parameter(torch.empty_like(twin.score.weight))  # the words' vectors are not quantized
    twin.load_state_dict({name: t.dequantize().double() for name, t in model.state_dict().items()})
    return twin


@pytest.mark.parametrize("name", FORMATS)
def test_a_decoder_reads_tokens(name: str) -> None:
    if name not in ("f32", "bf16"):
        require("torchao")
    model = decoder(FORMATS[name][0], SMALL)
    exact, tokens = in_float64(model), [(7, 2), (9, 3), (1, 4), (7, 0)]
    compiled = compiler.compile(model, (torch.tensor([[0]]), torch.tensor([0])))
    program = compiled.stages.scheduled
    caches = {n for n in program.inputs if n.endswith(("keys", "values"))}
    assert {*program.inputs} & {*program.outputs} == caches
    assert len(caches) == 2 * SMALL.layers
    for token, position in tokens:
        args = torch.tensor([[token]]), torch.tensor([position])
        with torch.no_grad():
            want, got = exact(*args), compiled(*args).double()
        pairs = zip((want, *exact.buffers()), (got, *model.buffers()), strict=True)
        for expected, found in pairs:
            assert (found - expected).abs().max() < TOLERANCES.get(name, 1e-5) * expected.abs().max()
