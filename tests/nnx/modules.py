"""Small modules of many kinds, from f32[B, 6] to f32[B]."""

from __future__ import annotations

import jax.numpy as jnp
import optax
import pytest

nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed: pip install 'replicax[flax]'")


class Dense(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(6, 4, rngs=rngs)
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.second = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.tanh(self.norm(self.first(x))))[:, 0]


class Line(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        return self.layer(x)[:, 0]


class Normalised(nnx.Module):
    def __init__(self, rngs, axis_name=None):
        self.first = nnx.Linear(6, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs, axis_name=axis_name, momentum=0.5)
        self.second = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.tanh(self.norm(self.first(x))))[:, 0]


class Tied(nnx.Module):
    """One layer in two places."""

    def __init__(self, rngs):
        self.down = nnx.Linear(6, 6, rngs=rngs)
        self.again = self.down
        self.out = nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.tanh(self.again(nnx.tanh(self.down(x)))))[:, 0]


class Convolution(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 2, (3,), rngs=rngs)
        self.group = nnx.GroupNorm(2, num_groups=2, rngs=rngs)
        self.out = nnx.Linear(12, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.group(self.conv(x[:, :, None])).reshape(len(x), -1))[:, 0]


class Recurrent(nnx.Module):
    def __init__(self, rngs):
        self.rnn = nnx.RNN(nnx.LSTMCell(2, 3, rngs=rngs))
        self.out = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.rnn(x.reshape(-1, 3, 2))[:, -1])[:, 0]


class Attention(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(8, 4, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
        self.out = nnx.LoRALinear(4, 1, lora_rank=2, rngs=rngs)

    def __call__(self, x):
        tokens = jnp.clip(jnp.abs(x * 4).astype(jnp.int32), 0, 7)
        return self.out(self.attention(self.embed(tokens)).mean(axis=1))[:, 0]


class Repeated(nnx.Module):
    """Layers that a scan goes through."""

    def __init__(self, rngs):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def stacked(rngs):
            return nnx.Linear(6, 6, rngs=rngs)

        self.layers = stacked(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        def through(layer, x):
            return nnx.tanh(layer(x))

        return through(self.layers, x).sum(axis=-1)


# Without Adam where the gradient of a bias is zero but for rounding: it would divide by it.
TABLE = {
    "dense": (
        Dense,
        lambda: optax.chain(
            optax.clip_by_global_norm(0.5), optax.adam(optax.linear_schedule(0.05, 0.0, 10))
        ),
    ),
    "tied": (Tied, lambda: optax.sgd(0.1, momentum=0.9)),
    "convolution": (Convolution, lambda: optax.sgd(0.05)),
    "lstm": (Recurrent, lambda: optax.rmsprop(0.02)),
    "attention": (Attention, lambda: optax.sgd(0.05)),
    "scanned": (Repeated, lambda: optax.sgd(0.1)),
}


def squares(module, x, y):
    """f32[B], one loss a row."""
    return (module(x) - y) ** 2
