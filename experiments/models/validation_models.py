"""Three small models for real runs on two cores: a transformer, an MLP and a convolutional net.

Each function is a model's MODULE:FUNCTION for `autoplan profile` and `autoplan verify`. Layers
differ in cost by design, so that equal cuts are bad cuts, and a step of sixteen samples takes a
fraction of a second of one core.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import paddle
import uneven_gpt
from paddle import nn
from paddle.nn import functional

BATCH = 8
TOKENS = 32
GPT_MULTIPLIERS = (1, 8, 2, 4, 1, 6, 1, 3)
WORDS, WORD_WIDTH, TEXT, ROWS = 24_000, 64, 24, 16
MLP_WIDTHS = (512, 1536, 384, 1024, 768, 256)
PIXELS = 32
CHANNELS = (32, 48, 64, 96, 64, 128)
CLASSES = 100

Built = tuple[list[nn.Layer], tuple[paddle.Tensor, paddle.Tensor], object]


def gpt() -> Built:
    """The uneven transformer with eight blocks, on shorter texts."""
    paddle.seed(20240501)
    blocks = (uneven_gpt.Block(multiplier) for multiplier in GPT_MULTIPLIERS)
    layers = [uneven_gpt.Embedding(), *blocks, uneven_gpt.Head()]
    rng = np.random.default_rng(20240501)
    text = rng.integers(0, uneven_gpt.VOCABULARY, (BATCH, TOKENS + 1))
    return layers, (paddle.to_tensor(text[:, :-1]), paddle.to_tensor(text[:, 1:])), uneven_gpt.loss


class FatEmbedding(nn.Layer):
    """A table that holds a third of the parameters and does next to no arithmetic."""

    def __init__(self) -> None:
        """Makes the table."""
        super().__init__()
        self.table = nn.Embedding(WORDS, WORD_WIDTH)

    def forward(self, ids: paddle.Tensor) -> paddle.Tensor:
        """Ids (batch, rows, text) to states (batch, rows, text * width)."""
        return self.table(ids).flatten(2)


class Dense(nn.Layer):
    """A linear layer and its activation."""

    def __init__(self, width_in: int, width_out: int) -> None:
        """Makes the layer."""
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, states: paddle.Tensor) -> paddle.Tensor:
        """States (batch, rows, width_in) to (batch, rows, width_out)."""
        return functional.gelu(self.linear(states))


def mlp() -> Built:
    """A fat embedding and linear layers of different widths."""
    paddle.seed(20240502)
    widths = (WORD_WIDTH * TEXT, *MLP_WIDTHS)
    dense = (Dense(a, b) for a, b in pairwise(widths))
    layers = [FatEmbedding(), *dense, nn.Linear(widths[-1], CLASSES)]
    rng = np.random.default_rng(20240502)
    ids = paddle.to_tensor(rng.integers(0, WORDS, (BATCH, ROWS, TEXT)))
    return layers, (ids, paddle.to_tensor(rng.integers(0, CLASSES, (BATCH, ROWS)))), class_loss


class Convolution(nn.Layer):
    """A 3 x 3 convolution, its activation, and a halving of the picture where asked for."""

    def __init__(self, channels_in: int, channels_out: int, halves: bool) -> None:
        """Makes the layer."""
        super().__init__()
        self.convolution = nn.Conv2D(channels_in, channels_out, 3, padding=1)
        self.halves = halves

    def forward(self, picture: paddle.Tensor) -> paddle.Tensor:
        """Picture (batch, channels, height, width)."""
        picture = functional.relu(self.convolution(picture))
        return functional.max_pool2d(picture, 2) if self.halves else picture


class Classifier(nn.Layer):
    """The mean over the picture, and a linear layer."""

    def __init__(self) -> None:
        """Makes the layer."""
        super().__init__()
        self.linear = nn.Linear(CHANNELS[-1], CLASSES)

    def forward(self, picture: paddle.Tensor) -> paddle.Tensor:
        """Picture to logits (batch, classes)."""
        return self.linear(picture.mean([2, 3]))


def conv() -> Built:
    """Six convolutions over pictures that are halved twice."""
    paddle.seed(20240503)
    channels = (3, *CHANNELS)
    pairs = pairwise(channels)
    layers = [Convolution(a, b, i in {1, 3}) for i, (a, b) in enumerate(pairs)]
    rng = np.random.default_rng(20240503)
    pictures = rng.standard_normal((BATCH, 3, PIXELS, PIXELS)).astype(np.float32)
    labels = paddle.to_tensor(rng.integers(0, CLASSES, BATCH))
    return [*layers, Classifier()], (paddle.to_tensor(pictures), labels), class_loss


def class_loss(logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
    """Mean cross-entropy over all rows and samples."""
    return functional.cross_entropy(logits.reshape([-1, CLASSES]), labels.reshape([-1]))
