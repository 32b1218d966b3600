"""Static training programs of four models, small enough for one CPU core.

Each function returns (main program, startup program): the forward pass, the backward pass and one
Adam or momentum update. `autoplan workload from-program` takes them as they are, for instance
`experiments/models/training_programs.py:gpt`. The batch is left open (-1) unless it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle import nn
from paddle.nn import functional
from paddle.vision.models import resnet18

VOCABULARY = 1000
TOKENS = 64
CLASSES = 10

Programs = tuple[Any, Any]


def mlp(batch: int = -1) -> Programs:
    """Three wide linear layers on flat inputs."""

    def forward() -> Any:
        pixels = paddle.static.data("pixels", [batch, 784], "float32")
        label = paddle.static.data("label", [batch, 1], "int64")
        network = nn.Sequential(
            nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)
        )
        return functional.cross_entropy(network(pixels), label)

    return _trained(forward, paddle.optimizer.Adam(1e-3))


def resnet(batch: int = -1, pixels: int = 64) -> Programs:
    """ResNet-18 with momentum."""

    def forward() -> Any:
        image = paddle.static.data("image", [batch, 3, pixels, pixels], "float32")
        label = paddle.static.data("label", [batch, 1], "int64")
        return functional.cross_entropy(resnet18(num_classes=CLASSES)(image), label)

    return _trained(forward, paddle.optimizer.Momentum(0.1, 0.9))


class _Block(nn.Layer):
    """A transformer block: attention, then a feed-forward part of four times the width."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.ffn_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.causal = causal

    def forward(self, states: Any) -> Any:
        """States (batch, tokens, width) to states of the same shape."""
        states = states + self._attention(self.attention_norm(states))
        return states + self.narrow(functional.gelu(self.widen(self.ffn_norm(states))))

    def _attention(self, states: Any) -> Any:
        width = states.shape[-1]
        mixed = self.query_key_value(states).reshape([0, 0, 3 * self.heads, width // self.heads])
        query, key, value = paddle.split(mixed.transpose([0, 2, 1, 3]), 3, axis=1)
        scores = paddle.matmul(query, key, transpose_y=True) * (width // self.heads) ** -0.5
        if self.causal:
            scores = scores + paddle.triu(paddle.full([TOKENS, TOKENS], -1e9), diagonal=1)
        weights = functional.dropout(functional.softmax(scores), 0.1)
        joined = paddle.matmul(weights, value).transpose([0, 2, 1, 3])
        return self.projection(joined.reshape([0, 0, width]))


def gpt(batch: int = -1, blocks: int = 4, width: int = 128, heads: int = 4) -> Programs:
    """A decoder-only language model."""

    def forward() -> Any:
        ids = paddle.static.data("ids", [batch, TOKENS], "int64")
        label = paddle.static.data("label", [batch, TOKENS], "int64")
        states = nn.Embedding(VOCABULARY, width)(ids)
        states = states + nn.Embedding(TOKENS, width)(paddle.arange(TOKENS))
        for _ in range(blocks):
            states = _Block(width, heads, causal=True)(states)
        logits = nn.Linear(width, VOCABULARY)(nn.LayerNorm(width)(states))
        return functional.cross_entropy(logits.reshape([-1, VOCABULARY]), label.reshape([-1, 1]))

    return _trained(forward, paddle.optimizer.AdamW(1e-3))


def bert(batch: int = -1, blocks: int = 2, width: int = 128, heads: int = 4) -> Programs:
    """An encoder with token types and a pooled classification head."""

    def forward() -> Any:
        ids = paddle.static.data("ids", [batch, TOKENS], "int64")
        types = paddle.static.data("types", [batch, TOKENS], "int64")
        label = paddle.static.data("label", [batch, 1], "int64")
        states = nn.Embedding(VOCABULARY, width)(ids) + nn.Embedding(2, width)(types)
        states = functional.dropout(nn.LayerNorm(width)(states), 0.1)
        for _ in range(blocks):
            states = _Block(width, heads, causal=False)(states)
        pooled = paddle.tanh(nn.Linear(width, width)(states[:, 0]))
        return functional.cross_entropy(nn.Linear(width, 2)(pooled), label)

    clip = nn.ClipGradByGlobalNorm(1.0)
    return _trained(forward, paddle.optimizer.AdamW(1e-3, grad_clip=clip))


def lstm(batch: int = -1, width: int = 256, layers: int = 2) -> Programs:
    """A two-layer LSTM over embedded tokens that classifies the last state."""

    def forward() -> Any:
        ids = paddle.static.data("ids", [batch, TOKENS], "int64")
        label = paddle.static.data("label", [batch, 1], "int64")
        states, _ = nn.LSTM(width, width, num_layers=layers)(nn.Embedding(VOCABULARY, width)(ids))
        return functional.cross_entropy(nn.Linear(width, CLASSES)(states[:, -1]), label)

    return _trained(forward, paddle.optimizer.Adam(1e-3))


def _trained(forward: Callable[[], Any], optimizer: Any) -> Programs:
    """The programs of one training step on the loss that `forward` builds."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        optimizer.minimize(forward())
    return main, startup
