"""Semantic search: the sentences closest to a question, with all-MiniLM-L6-v2 compiled to native code.

python examples/minilm.py "Why is my mortgage dearer now?"
"""

import sys

import compiler
from compiler.tools.demo import SENTENCES, compare_and_print, minilm


def main(question: str = "Why is my mortgage dearer now?", seconds: float = 1.0) -> str:
    """Print the three sentences closest to `question` and a comparison with PyTorch; return the closest one."""
    model, tokenize = minilm()
    arguments = tokenize([question, *SENTENCES])
    embed = compiler.compile(model, arguments)
    query, *embeddings = embed(*arguments)
    ranked = sorted(zip([float(query @ e) for e in embeddings], SENTENCES, strict=True), reverse=True)
    print(question)
    for cosine, sentence in ranked[:3]:
        print(f"  {cosine:.3f}  {sentence}")
    compare_and_print(model, arguments, seconds)
    return ranked[0][1]


if __name__ == "__main__":
    main(*sys.argv[1:2])
