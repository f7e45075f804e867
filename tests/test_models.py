"""Transformers, convolutional and state-space networks as users load them, through both ways into the compiler."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from tiny_models import MODELS, build_model, in_float64, random_token_ids
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from compiler.testing.checks import check, check_accuracy
from compiler.torch_backend import tilewright

STRICT = {"cache": "", "fallback": "error"}
"""Nothing runs in PyTorch but what is declared to."""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(program: Any, **choices: Any) -> Any:
    """One graph, without breaks."""
    return torch.compile(program, backend=tilewright, fullgraph=True, options=STRICT, **choices)


def tensors(result: Any) -> list[Tensor]:
    return [t.detach() for t in tree_leaves(result) if isinstance(t, Tensor)]


@pytest.mark.parametrize("name", MODELS)
def test_exported(name: str) -> None:
    model, given = build_model(name)
    check(model, (), given, options=STRICT)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_captured(name: str) -> None:
    model, given = build_model(name)
    twin, wide = in_float64(model, given)
    check_accuracy(*(tensors(m(**g)) for m, g in ((compiled(model), given), (model, given), (twin, wide))))


# caches of keys and values


def decode(model: nn.Module, step: Any, cache: hf.Cache, prompt: Tensor, more: Sequence[Tensor]) -> list[Tensor]:
    """The logits of a prompt and of the tokens after it, one at a time, which read what came before from `cache`."""
    found, start = [], 0
    for tokens in (prompt, *more):
        place = torch.arange(start, start + tokens.shape[1])
        given = {"input_ids": tokens, "past_key_values": cache, "position_ids": place[None], "use_cache": True}
        found.append(step(**given).logits)
        start += tokens.shape[1]
    return found


CACHES = {
    "growing": lambda model: hf.DynamicCache(config=model.config),
    "static": lambda model: hf.StaticCache(config=model.config, max_cache_len=12),
}


@pytest.mark.parametrize("kind", CACHES)
@torch.no_grad()
def test_a_decoder_with_a_cache(kind: str) -> None:
    """Prompt and continuation, against the whole text at once in float64."""
    model, _ = build_model("llama")
    text = random_token_ids(2, 7)
    prompt, more = text[:, :4], text[:, 4:].split(1, dim=1)
    ours, theirs = (decode(model, step, CACHES[kind](model), prompt, more) for step in (compiled(model), model))
    twin, _ = in_float64(model, {})
    truth = twin(input_ids=text).logits.split([4, 1, 1, 1], dim=1)
    check_accuracy(ours, theirs, truth)


# training


def loss(model: nn.Module, given: dict[str, Any]) -> Tensor:
    """How badly the model tells its own input."""
    return F.cross_entropy(model(**given).logits.flatten(0, 1), given["input_ids"].flatten())


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "mixtral"])
def test_gradients(name: str, training: bool) -> None:
    """Loss and gradients; words in and words out share their weights, and dropout draws the same for every type."""
    model, given = build_model(name)
    model.train(training)
    found = []
    for run, net, arguments in (
        (compiled(loss), model, given),
        (loss, model, given),
        (loss, *in_float64(model, given)),
    ):
        torch.manual_seed(1)
        net.zero_grad()
        value = run(net, arguments)
        value.backward()
        found.append([value.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)])
    check_accuracy(*found)


def test_dropout_in_training_follows_the_generator() -> None:
    """The same seed gives the same loss and gradients, another seed others."""
    model, given = build_model("gpt2")
    fast, found = compiled(loss), []
    model.train()
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        model.zero_grad()
        value = fast(model, given)
        value.backward()
        found.append(torch.cat([value.detach().view(1), model.transformer.wte.weight.grad.flatten()]))
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


# smaller types


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("name", ["bert", "llama"])
@torch.no_grad()
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    model, given = build_model(name)
    model = model.to(dtype)
    twin, wide = in_float64(copy.deepcopy(model), given)
    ours, theirs, truth = (tensors(m(**g)) for m, g in ((compiled(model), given), (model, given), (twin, wide)))
    assert all(t.dtype == dtype for t in ours)
    check_accuracy(ours, theirs, truth)
