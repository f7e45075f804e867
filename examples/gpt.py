"""A small decoder like GPT-2 (Radford et al., 2019) with random weights."""

import torch
from torch import Tensor, nn

from compiler.tools.comparison import Comparison
from compiler.tools.demo import compare_and_print


class Block(nn.Module):
    """Pre-norm block of causal attention and an MLP, with residuals: [n, t, d] -> [n, t, d]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def attend(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.project(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        return self.merge((weights @ v).transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class Decoder(nn.Module):
    """Token ids i64[n, t] -> logits of the next token f32[n, t, vocabulary]; input and output embeddings are tied."""

    def __init__(
        self, vocabulary: int = 4096, context: int = 256, width: int = 384, heads: int = 6, depth: int = 6
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.norm(self.blocks(x)) @ self.token.weight.T


def main(tokens: int = 128, depth: int = 6, width: int = 384, seconds: float = 1.0) -> Comparison:
    torch.manual_seed(0)
    model = Decoder(depth=depth, width=width).eval()
    return compare_and_print(model, (torch.randint(0, 4096, (1, tokens)),), seconds)


if __name__ == "__main__":
    main()
