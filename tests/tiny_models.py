"""Models of `transformers` from small configurations, with random weights, and arguments to call them on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

ModelCase = tuple[nn.Module, dict[str, Any]]
"""A model in evaluation mode and keyword arguments for it."""

TEXT_CONFIG: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
DECODER_CONFIG: dict[str, Any] = TEXT_CONFIG | {"num_key_value_heads": 1, "max_position_embeddings": 32}
IMAGE_CONFIG: dict[str, Any] = {"image_size": 16, "patch_size": 8}


def random_token_ids(rows: int = 2, columns: int = 6) -> Tensor:
    return torch.randint(0, 61, (rows, columns))


def random_images(size: int = 16) -> Tensor:
    return torch.randn(2, 3, size, size)


def padding_mask() -> Tensor:
    """The mask of two rows of six tokens, the second of which is shorter."""
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    return mask


def bert() -> ModelCase:
    model = hf.BertForMaskedLM(hf.BertConfig(**TEXT_CONFIG, max_position_embeddings=32))
    return model, {"input_ids": random_token_ids(), "attention_mask": padding_mask()}


def gpt2() -> ModelCase:
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=61, n_positions=32, n_embd=16, n_layer=1, n_head=2))
    return model, {"input_ids": random_token_ids(), "use_cache": False}


def llama() -> ModelCase:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER_CONFIG)), {"input_ids": random_token_ids(), "use_cache": False}


def mixtral() -> ModelCase:
    config = hf.MixtralConfig(**DECODER_CONFIG, num_local_experts=4, num_experts_per_tok=2)
    return hf.MixtralForCausalLM(config), {"input_ids": random_token_ids(), "use_cache": False}


def t5() -> ModelCase:
    config = hf.T5Config(
        vocab_size=61, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    given = {
        "input_ids": random_token_ids(),
        "attention_mask": padding_mask(),
        "decoder_input_ids": random_token_ids(2, 5),
        "use_cache": False,
    }
    return hf.T5ForConditionalGeneration(config), given


def vit() -> ModelCase:
    sizes = {k: v for k, v in TEXT_CONFIG.items() if k != "vocab_size"}
    return hf.ViTForImageClassification(hf.ViTConfig(**sizes, **IMAGE_CONFIG)), {"pixel_values": random_images()}


def convnext() -> ModelCase:
    config = hf.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    return hf.ConvNextForImageClassification(config), {"pixel_values": random_images()}


def clip() -> ModelCase:
    sizes = {k: v for k, v in TEXT_CONFIG.items() if k != "vocab_size"}
    config = hf.CLIPConfig(
        text_config=TEXT_CONFIG | {"max_position_embeddings": 16, "eos_token_id": 60},
        vision_config=sizes | IMAGE_CONFIG,
        projection_dim=8,
    )
    return hf.CLIPModel(config), {
        "input_ids": random_token_ids(),
        "attention_mask": padding_mask(),
        "pixel_values": random_images(),
    }


def whisper() -> ModelCase:
    config = hf.WhisperConfig(
        vocab_size=61, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=10, max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    given = {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": random_token_ids(2, 5), "use_cache": False}
    return hf.WhisperForConditionalGeneration(config), given


def mamba() -> ModelCase:
    config = hf.MambaConfig(vocab_size=61, hidden_size=16, num_hidden_layers=1, state_size=4)
    return hf.MambaForCausalLM(config), {"input_ids": random_token_ids(2, 3), "use_cache": False}


MODELS: dict[str, Callable[[], ModelCase]] = {
    f.__name__: f for f in (bert, gpt2, llama, mixtral, t5, vit, convnext, clip, whisper, mamba)
}


def build_model(name: str) -> ModelCase:
    """The model of that name, always the same."""
    torch.manual_seed(0)
    model, given = MODELS[name]()
    return model.eval(), given


def in_float64(model: nn.Module, given: dict[str, Any]) -> ModelCase:
    """A copy of model and arguments; experts are visited one by one, as their grouped products want smaller types."""
    twin = copy.deepcopy(model).double()
    if hasattr(twin, "config"):
        twin.config._experts_implementation = "eager"
    return twin, {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in given.items()}
