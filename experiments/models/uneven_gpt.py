"""A small GPT whose blocks differ by design, so that equal cuts are bad cuts.

`build()` is what `autoplan profile experiments/models/uneven_gpt.py:build` calls: 16 layers of
plain Paddle operators (7 M parameters, 128 tokens per sample), each taking one tensor and
returning one, so that an executor can cut the model between any two of them.
"""

from __future__ import annotations

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional

VOCABULARY = 2000
WIDTH = 192
HEADS = 4
TOKENS = 128
BATCH = 8
FFN_MULTIPLIERS = (1, 8, 2, 4, 1, 6, 1, 3, 8, 2, 12, 1, 4, 2)
"""The hidden width of each block's feed-forward part, in units of WIDTH."""


class Embedding(nn.Layer):
    """Token and position embeddings: ids (batch, tokens) to states (batch, tokens, width)."""

    def __init__(self) -> None:
        """Makes both tables."""
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)

    def forward(self, ids: paddle.Tensor) -> paddle.Tensor:
        """Looks both up and adds them."""
        return self.tokens(ids) + self.positions(paddle.arange(ids.shape[1]))


class Block(nn.Layer):
    """A transformer block: causal attention, then a feed-forward part of any width."""

    def __init__(self, ffn_multiplier: int) -> None:
        """Makes the block with a feed-forward part of `ffn_multiplier * WIDTH`."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.ffn_norm = nn.LayerNorm(WIDTH)
        self.widen = nn.Linear(WIDTH, ffn_multiplier * WIDTH)
        self.narrow = nn.Linear(ffn_multiplier * WIDTH, WIDTH)
        mask = paddle.triu(paddle.full([TOKENS, TOKENS], -1e9), diagonal=1)
        self.register_buffer("causal_mask", mask, persistable=False)

    def forward(self, states: paddle.Tensor) -> paddle.Tensor:
        """States (batch, tokens, width) to states of the same shape."""
        states = states + self._attention(self.attention_norm(states))
        hidden = functional.gelu(self.widen(self.ffn_norm(states)))
        return states + self.narrow(hidden)

    def _attention(self, states: paddle.Tensor) -> paddle.Tensor:
        samples, tokens, _ = states.shape
        per_head = [samples, tokens, 3 * HEADS, WIDTH // HEADS]
        mixed = self.query_key_value(states).reshape(per_head).transpose([0, 2, 1, 3])
        query, key, value = paddle.split(mixed, 3, axis=1)
        scores = paddle.matmul(query, key, transpose_y=True) * (WIDTH // HEADS) ** -0.5
        weights = functional.softmax(scores + self.causal_mask[:tokens, :tokens])
        joined = paddle.matmul(weights, value).transpose([0, 2, 1, 3])
        return self.projection(joined.reshape([samples, tokens, WIDTH]))


class Head(nn.Layer):
    """The last norm and the logits."""

    def __init__(self) -> None:
        """Makes a head of its own weights, not tied to the embedding."""
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, states: paddle.Tensor) -> paddle.Tensor:
        """States to logits (batch, tokens, vocabulary)."""
        return self.logits(self.norm(states))


def loss(logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
    """Mean cross-entropy over all tokens."""
    return functional.cross_entropy(logits.reshape([-1, VOCABULARY]), labels.reshape([-1]))


def build() -> tuple[list[nn.Layer], tuple[paddle.Tensor, paddle.Tensor], object]:
    """(layers, (token ids, next token ids), loss), the same at every call."""
    paddle.seed(20240501)
    layers = [Embedding(), *(Block(multiplier) for multiplier in FFN_MULTIPLIERS), Head()]
    text = np.random.default_rng(20240501).integers(0, VOCABULARY, (BATCH, TOKENS + 1))
    return layers, (paddle.to_tensor(text[:, :-1]), paddle.to_tensor(text[:, 1:])), loss
