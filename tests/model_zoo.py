"""Small random models of `transformers`, through both entry points: `python -m tests.model_zoo [NAME ...]`.

Errors are against float64; eager's own stands beside them.  A result is wrong if its error is more than 8 times eager's (and
1e-5), or if its strides are not eager's; the stride of a dimension of one element is nobody's.  Where eager has a number in f32
and none in float64, the former is the reference: Canine multiplies zeros in f32 by the least float64, which makes NaN.
Takes a quarter of an hour for all, so it is a command and no test.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from rich.console import Console
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

import compiler
from compiler import UnsupportedOpError
from compiler.report.render import table

TEXT: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
GROUPED: dict[str, Any] = TEXT | {"num_key_value_heads": 2, "pad_token_id": 0}
EXPERTS: dict[str, Any] = GROUPED | {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT: dict[str, Any] = EXPERTS | {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "num_key_value_heads": 4,
}  # fmt: skip
PATCHES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": 32,
    "patch_size": 8,
}
TWO_STACKS: dict[str, Any] = {
    "vocab_size": 120, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "pad_token_id": 0,
}  # fmt: skip
STAGES: dict[str, Any] = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
SPEECH: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3), "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0,
}  # fmt: skip

WORDS: dict[str, Any] = {"input_ids": torch.arange(16)[None]}
DECODED = WORDS | {"use_cache": False}
BOTH = DECODED | {"decoder_input_ids": torch.arange(8)[None]}
WAVE: dict[str, Any] = {"input_values": torch.linspace(-1, 1, 800).sin()[None]}


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def image(size: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(size))}


@dataclass(frozen=True)
class Case:
    """Options of the configuration `hf.<name>Config`, and arguments of a call of `hf.<name>Model`.

    `breaks` is the number of graph breaks that the model's own code forces.
    """

    options: Mapping[str, Any]
    arguments: Mapping[str, Any]
    breaks: int = 0


ZOO: dict[str, Case] = {
    **{name: Case(TEXT, WORDS) for name in ("Bert", "Roberta", "Ernie", "RoFormer", "MPNet", "IBert", "MegatronBert", "Canine")},
    **{name: Case(TEXT | {"embedding_size": 32}, WORDS) for name in ("Electra", "Albert", "ConvBert")},
    **{name: Case(TEXT, DECODED) for name in ("Llama", "Phi", "GPTNeoX", "Olmo", "Persimmon")},
    **{name: Case(GROUPED, DECODED) for name in ("Mistral", "Qwen2", "Phi3", "StableLm", "Cohere", "Starcoder2", "Granite", "Olmo2", "Nemotron")},
    **{name: Case(GROUPED | {"head_dim": 16}, DECODED) for name in ("Gemma", "Gemma2", "Qwen3", "Glm")},
    **{name: Case(PATCHES, image(32)) for name in ("ViT", "DeiT", "Beit", "Dinov2", "SiglipVision", "CLIPVision", "ViTMSN", "IJepa", "Data2VecVision", "Dinov2WithRegisters")},
    **{name: Case(TWO_STACKS, BOTH) for name in ("Bart", "MBart", "Marian", "Pegasus", "M2M100", "Blenderbot")},
    **{name: Case(STAGES | {"embedding_size": 16}, image(64)) for name in ("ResNet", "RegNet")},
    **{name: Case(STAGES, image(64)) for name in ("ConvNext", "ConvNextV2", "PoolFormer")},
    **{name: Case(SPEECH, WAVE) for name in ("Wav2Vec2", "Hubert", "WavLM", "UniSpeech")},
    "SEW": Case(SPEECH | {"squeeze_factor": 2}, WAVE),
    "CLIPText": Case(TEXT | {"eos_token_id": 15}, WORDS),
    "DistilBert": Case({"vocab_size": 120, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96}, WORDS),
    "DebertaV2": Case(TEXT | {"relative_attention": True}, WORDS),
    "FNet": Case({"vocab_size": 120, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96}, WORDS),
    "MobileBert": Case(TEXT | {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32}, WORDS),
    "SqueezeBert": Case(
        TEXT | {"embedding_size": 64, "q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 1, "intermediate_groups": 2, "output_groups": 2},
        WORDS,
    ),
    "Funnel": Case({"vocab_size": 120, "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 96, "block_sizes": [1, 1]}, WORDS),
    "Esm": Case(TEXT | {"pad_token_id": 1, "position_embedding_type": "rotary", "mask_token_id": 3}, WORDS),
    "GPT2": Case({"vocab_size": 120, "n_embd": 64, "n_layer": 2, "n_head": 4}, DECODED),
    "GPTBigCode": Case({"vocab_size": 120, "n_embd": 64, "n_layer": 2, "n_head": 4}, DECODED),
    "GPTNeo": Case(
        {"vocab_size": 120, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8}, DECODED
    ),
    "GPTJ": Case({"vocab_size": 120, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}, DECODED),
    "CodeGen": Case({"vocab_size": 120, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}, DECODED),
    "OPT": Case({"vocab_size": 120, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 96, "word_embed_proj_dim": 64}, DECODED),
    "Bloom": Case({"vocab_size": 120, "hidden_size": 64, "n_layer": 2, "n_head": 4}, DECODED),
    "Falcon": Case({"vocab_size": 120, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}, DECODED),
    "Mpt": Case({"vocab_size": 120, "d_model": 64, "n_layers": 2, "n_heads": 4}, DECODED),
    "Mamba": Case({"vocab_size": 120, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}, DECODED),
    "Mamba2": Case(
        {"vocab_size": 120, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 8}, DECODED
    ),
    "RecurrentGemma": Case(GROUPED | {"head_dim": 16, "lru_width": 64, "attention_window_size": 8}, DECODED),
    "XLNet": Case({"vocab_size": 120, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 96}, WORDS),
    "T5": Case({"vocab_size": 120, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}, BOTH),
    "LongT5": Case(
        {"vocab_size": 120, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "local_radius": 4},
        BOTH | {"attention_mask": torch.ones(1, 16, dtype=torch.long)},  # which transformers does not make while a model is traced
    ),
    "ProphetNet": Case(
        {"vocab_size": 120, "hidden_size": 64, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
         "num_decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "ngram": 2},
        BOTH,
    ),
    "Whisper": Case(
        TWO_STACKS | {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32},
        {"input_features": torch.linspace(-1, 1, 256).reshape(1, 8, 32), "decoder_input_ids": torch.arange(8)[None], "use_cache": False},
    ),
    "PatchTST": Case(
        {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8, "d_model": 32, "num_hidden_layers": 2,
         "num_attention_heads": 4, "ffn_dim": 48},
        {"past_values": torch.linspace(-3, 3, 64).sin().reshape(1, 32, 2)},
    ),
    "Pvt": Case({"image_size": 64, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 4]}, image(64)),
    "Bit": Case({"embedding_size": 16, "hidden_sizes": [32, 48, 64, 96], "depths": [1, 1, 1, 1], "num_groups": 8}, image(64)),
    "FocalNet": Case({"embed_dim": 16, "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3], "image_size": 32}, image(32)),
    "Levit": Case({"image_size": 64, "hidden_sizes": [16, 32, 48], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8]}, image(64)),
    "Hiera": Case({"embed_dim": 16, "image_size": [64, 64], "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8]}, image(64)),
    "MobileViT": Case({"image_size": 64, "hidden_sizes": [32, 48, 64], "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 64]}, image(64)),
    "MobileNetV1": Case({"depth_multiplier": 0.25}, image(64)),
    "Segformer": Case(STAGES | {"num_attention_heads": [1, 2, 4, 4]}, image(64)),
    "Swin": Case({"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "image_size": 32, "window_size": 4}, image(32)),
    "Swinv2": Case({"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "image_size": 32, "window_size": 4}, image(32)),
    **{name: Case(TEXT, WORDS) for name in ("Deberta", "Nystromformer")},
    **{name: Case(GROUPED | {"head_dim": 16}, DECODED) for name in ("DiffLlama", "NanoChat", "Gemma3Text", "Lfm2", "Doge")},
    **{name: Case(EXPERTS | {"head_dim": 16}, DECODED) for name in ("GptOss", "Mixtral", "Qwen3Moe", "MiniMax")},
    **{name: Case(LATENT, DECODED) for name in ("DeepseekV2", "Glm4MoeLite")},
    **{name: Case(PATCHES, image(32)) for name in ("VitDet", "Aimv2Vision", "PixtralVision", "DPT")},
    "Tapas": Case(TEXT, WORDS | {"token_type_ids": torch.zeros(1, 16, 7, dtype=torch.long)}),
    "XLM": Case({"vocab_size": 120, "n_words": 120, "emb_dim": 64, "n_layers": 2, "n_heads": 4}, WORDS, breaks=4),
    "CTRL": Case({"vocab_size": 120, "n_embd": 64, "n_layer": 2, "n_head": 4, "dff": 96}, DECODED),
    "Perceiver": Case(
        {"d_model": 32, "num_latents": 8, "d_latents": 32, "num_blocks": 1, "num_self_attends_per_block": 2, "num_self_attention_heads": 2,
         "num_cross_attention_heads": 2},
        {"inputs": noise(1, 10, 32)},
    ),
    "Yolos": Case(PATCHES | {"image_size": [32, 32], "num_detection_tokens": 5}, image(32)),
    "DINOv3ConvNext": Case(STAGES, image(64)),
    "GroupViTVision": Case(
        {"hidden_size": 64, "image_size": 32, "patch_size": 8, "depths": [1, 1, 1], "num_group_tokens": [8, 4, 0], "num_output_groups": [8, 4, 4],
         "num_attention_heads": 4, "intermediate_size": 96},
        image(32),
    ),
    "MobileNetV2": Case({"depth_multiplier": 0.25}, image(64)),
    "MobileViTV2": Case({"image_size": 64, "width_multiplier": 0.25}, image(64)),
    "PvtV2": Case(STAGES | {"image_size": 64, "num_attention_heads": [1, 2, 4, 4]}, image(64)),
    "GLPN": Case(STAGES | {"num_attention_heads": [1, 2, 4, 4]}, image(64)),
    "SwiftFormer": Case({"image_size": 64, "embed_dims": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}, image(64)),
    "Swin2SR": Case(
        {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "image_size": 32, "window_size": 4},
        {"pixel_values": noise(2, 3, 32, 32)},  # for one image, PyTorch traces other strides than eager has
    ),
    "JetMoe": Case(EXPERTS | {"head_dim": 16}, DECODED, breaks=11),
    "PatchTSMixer": Case(
        {"context_length": 32, "patch_length": 8, "num_input_channels": 2, "patch_stride": 8, "d_model": 16, "num_layers": 2},
        {"past_values": torch.linspace(-3, 3, 64).sin().reshape(1, 32, 2)},
    ),
    "DecisionTransformer": Case(
        {"state_dim": 5, "act_dim": 3, "hidden_size": 64, "n_layer": 2, "n_head": 4},
        {"states": noise(1, 6, 5), "actions": torch.zeros(1, 6, 3), "rewards": torch.zeros(1, 6, 1), "returns_to_go": torch.ones(1, 6, 1),
         "timesteps": torch.arange(6)[None], "attention_mask": torch.ones(1, 6)},
    ),
    "Lxmert": Case(
        {"vocab_size": 120, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "l_layers": 1, "x_layers": 1, "r_layers": 1,
         "visual_feat_dim": 16},
        WORDS | {"visual_feats": noise(1, 5, 16), "visual_pos": noise(1, 5, 4).sigmoid()},
    ),
    "TimesFm": Case(
        {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16, "patch_length": 8,
         "context_length": 32, "horizon_length": 8},
        {"past_values": torch.linspace(-3, 3, 32).sin()[None], "past_values_padding": torch.zeros(1, 32), "freq": torch.zeros(1, 1, dtype=torch.long)},
    ),
    **{name: Case({"vocab_size": 120, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}, BOTH) for name in ("MT5",)},
}  # fmt: skip


class FirstResult(nn.Module):
    """The first result of a model, as a function of its tensor arguments alone."""

    def __init__(self, model: nn.Module, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.names = [k for k, v in arguments.items() if isinstance(v, Tensor)]
        self.flags = {k: v for k, v in arguments.items() if not isinstance(v, Tensor)}

    def forward(self, *tensors: Tensor) -> Tensor:
        result: Tensor = self.model(**dict(zip(self.names, tensors, strict=True)), **self.flags)[0]
        return result


ENTRY_POINTS: dict[str, Callable[[nn.Module, tuple[Tensor, ...], dict[str, Any]], Callable[..., Tensor]]] = {
    "compile": lambda model, args, options: compiler.compile(model, args, options=options),
    "torch.compile": lambda model, args, options: torch.compile(model, backend="tilewright", options=options),
}


def opaque_operators(run: Callable[[dict[str, Any]], object]) -> int:
    """Return how many operators `run` is refused for when none may run in PyTorch; in the first graph alone, if there are several."""
    try:
        run({"fallback": "strict"})
    except (UnsupportedOpError, BackendCompilerFailed) as error:
        refused = getattr(error, "inner_exception", error)
        if not isinstance(refused, UnsupportedOpError):
            raise
        return len(refused.unsupported_ops)
    return 0


def addressing_strides(x: Tensor) -> list[int]:
    """Return the strides of dimensions of several elements, on which addresses depend."""
    return [stride for n, stride in zip(x.shape, x.stride(), strict=True) if n > 1]


def check(case: Case, name: str) -> list[str]:
    """Return what each entry point made of a model: "ok" or what is wrong, graph breaks, operators that run in PyTorch, and seconds."""
    torch.manual_seed(0)
    network = getattr(hf, f"{name}Model")(getattr(hf, f"{name}Config")(**case.options))
    model, experts = FirstResult(network, case.arguments).eval(), network.get_experts_implementation()
    args = tuple(v for v in case.arguments.values() if isinstance(v, Tensor))
    eager = model(*args)
    model.double()
    network.set_experts_implementation("eager")  # grouped products take no float64
    exact = model(*(a.double() if a.is_floating_point() else a for a in args))
    exact = torch.where(exact.isnan(), eager, exact)
    model.float()
    network.set_experts_implementation(experts)
    allowed = max(8 * (eager.double() - exact).abs().max().item(), 1e-5)
    texts = list[str]()
    for compile_model in ENTRY_POINTS.values():
        torch._dynamo.reset()
        opaque = opaque_operators(lambda options, build=compile_model: build(model, args, options)(*args))
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        start = time.perf_counter()
        result = compile_model(model, args, {})(*args)
        seconds, error = time.perf_counter() - start, (result.double() - exact).abs().max().item()
        has_eagers_strides = addressing_strides(result) == addressing_strides(eager)
        breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
        wrong = f"WRONG by {error:.1e} " * (not error <= allowed) + "STRIDES " * (not has_eagers_strides)
        wrong += "BREAKS " * (breaks > case.breaks)
        counts = f"{breaks} breaks " * (breaks > 0) + f"{opaque} in PyTorch " * (opaque > 0)
        texts.append(f"{wrong or 'ok '}{counts}{seconds:.1f} s")
    return texts


def main(names: list[str]) -> int:
    """Print a row for each model; return the number of models of which something is not ok."""
    made, failures = table("models of transformers", ["model"], [*ENTRY_POINTS]), 0
    for name in names or ZOO:
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                texts = check(ZOO[name], name)
        except Exception as error:
            texts = [f"{type(error).__name__}: {str(error)[:80]}", ""]
        failures += not all(t.startswith("ok ") for t in texts)
        made.add_row(name, *texts)
        print(name, *texts, sep=" | ", file=sys.stderr, flush=True)
    Console().print(made)
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
