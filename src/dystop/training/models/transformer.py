"""Small transformers for token ids: one score per token of the vocabulary, or one per class.

They are written in plain tensor operations, without buffers and without dropout, so that stacks of
them train under `vmap`.
"""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Self-attention and a two-layer perceptron, each behind a layer norm and with a shortcut."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features [b, T, width] after attention and perceptron."""
        x = x + self.out(self._attention(self.norm1(x)))
        out: Tensor = x + self.fc2(torch.relu(self.fc1(self.norm2(x))))
        return out

    def _attention(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        split = self.qkv(x).view(samples, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        score = query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5
        if self.causal:
            at = torch.arange(length, device=x.device)
            score = score.masked_fill(at > at[:, None], float("-inf"))
        mixed = score.softmax(-1) @ value
        out: Tensor = mixed.transpose(1, 2).reshape(samples, length, width)
        return out


class Transformer(nn.Module):
    """Embeddings of tokens and positions, blocks, and a linear layer.

    With a score at every token, a token sees only those before it. Otherwise the features of all
    tokens are averaged.
    """

    def __init__(
        self, tokens: int, length: int, classes: int, per_token: bool, sizes: tuple[int, int, int]
    ) -> None:
        """Make a transformer.

        Args:
            tokens: Size of the vocabulary.
            length: Largest number of tokens in a sample.
            classes: Scores that it returns.
            per_token: Whether it returns them for every token.
            sizes: Number of blocks, width, and heads of a block.
        """
        super().__init__()
        blocks, width, heads = sizes
        self.per_token = per_token
        self.token, self.position = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, per_token) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.1)  # plain SGD hardly shrinks larger ones

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [b, T, classes] of token ids [b, T], or [b, classes]."""
        features = self.token(x) + self.position(torch.arange(x.shape[1], device=x.device))
        features = self.norm(self.blocks(features))
        out: Tensor = self.head(features if self.per_token else features.mean(1))
        return out


def transformer(tokens: int, length: int, classes: int, per_token: bool) -> nn.Module:
    """Return two blocks of width 64: about 100,000 parameters."""
    return Transformer(tokens, length, classes, per_token, (2, 64, 4))


def transformer_large(tokens: int, length: int, classes: int, per_token: bool) -> nn.Module:
    """Four blocks of width 192: about 1.8 million parameters."""
    return Transformer(tokens, length, classes, per_token, (4, 192, 6))
