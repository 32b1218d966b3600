"""Small models for runs with real processes; each of the functions is a model's MODULE:FUNCTION."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional

WIDTH, WORDS, SAMPLES = 16, 40, 16


class Block(nn.Layer):
    def __init__(self, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.widen = nn.Linear(WIDTH, hidden)
        self.narrow = nn.Linear(hidden, WIDTH)

    def forward(self, states, *skipped):
        output = states + self.narrow(functional.gelu(self.widen(self.norm(states))))
        return (output, *skipped) if skipped else output


class Fork(nn.Layer):
    """Hands its input past the next layers, so that two tensors and integers cross the cuts."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)

    def forward(self, ids):
        states = self.table(ids)
        return states, states * 2, ids


class Join(nn.Layer):
    def __init__(self):
        super().__init__()
        self.logits = nn.Linear(WIDTH, WORDS)

    def forward(self, states, skipped, ids):
        return self.logits(states + skipped + (ids % 2).astype("float32").unsqueeze(-1))


class Trap(nn.Layer):
    """Ends, hangs or fails by the number of samples that it gets; it trains nothing."""

    def forward(self, states):
        samples = states.shape[0]
        if samples == 1:
            sys.stderr.write("the ground gave way\n")
            sys.stderr.flush()
            os._exit(3)
        if samples == 2:
            subprocess.Popen(["sleep", "600"])
            time.sleep(600)
        if samples == 4:
            raise MemoryError("out of memory: no room for 4 samples")
        return states


def loss(logits, labels):
    return functional.cross_entropy(logits.reshape([-1, WORDS]), labels.reshape([-1]))


def batch():
    text = np.random.default_rng(5).integers(0, WORDS, (SAMPLES, 9))
    return paddle.to_tensor(text[:, :-1]), paddle.to_tensor(text[:, 1:])


def build():
    paddle.seed(7)
    layers = [Fork(), *(Block(hidden) for hidden in (16, 64, 8, 32)), Join()]
    return layers, batch(), loss


def build_trap():
    paddle.seed(7)
    layers = [nn.Embedding(WORDS, WIDTH), Block(16), Trap(), Block(8), nn.Linear(WIDTH, WORDS)]
    return layers, batch(), loss


def build_tied():
    paddle.seed(7)
    table = nn.Embedding(WORDS, WIDTH)

    class Head(nn.Layer):
        def __init__(self):
            super().__init__()
            self.table = table

        def forward(self, states):
            return paddle.matmul(states, self.table.weight, transpose_y=True)

    return [table, Block(16), Block(8), Head()], batch(), loss
