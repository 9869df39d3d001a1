"""Training steps: what a correct step leaves mirrored, and what a wrong one lets vary.

The pass reads a traced program, so only shapes and dtypes count: nothing here is computed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from replicax.step._proof import Source, prove

BATCH, WIDTH, CLASSES = 4, 8, 3
KEY = jax.random.key(0)


def ones(*shape):
    return np.ones(shape, np.float32)


X = ones(BATCH, WIDTH)
Y = np.array([0, 1, 2, 1], np.int32)
SEQUENCE = ones(BATCH, 5, WIDTH)
IMAGES = ones(BATCH, 8, 8, 3)


def pmean(tree):
    return lax.pmean(tree, "replica")


def keep(tree):
    return tree


def dense(rows, columns):
    return {"w": ones(rows, columns), "b": ones(columns)}


def apply_dense(layer, x):
    return x @ layer["w"] + layer["b"]


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


# --- models: (parameters, loss of parameters, inputs and labels) ---------------------------------


def mlp():
    params = [dense(WIDTH, WIDTH), dense(WIDTH, CLASSES)]

    def loss(params, x, y):
        return cross_entropy(apply_dense(params[1], jax.nn.relu(apply_dense(params[0], x))), y)

    return params, loss, X


def mlp_remat():
    params, loss, x = mlp()
    return params, jax.checkpoint(loss), x


def convolution():
    params = {"kernel": ones(3, 3, 3, 4), "head": dense(4, CLASSES)}

    def loss(params, x, y):
        numbers = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, params["kernel"], (1, 1), "SAME", dimension_numbers=numbers)
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return cross_entropy(apply_dense(params["head"], x.mean((1, 2))), y)

    return params, loss, IMAGES


def attention():
    params = {name: dense(WIDTH, WIDTH) for name in "qkv"}
    params["head"] = dense(WIDTH, CLASSES)

    def loss(params, x, y):
        q, k, v = (apply_dense(params[name], x)[:, :, None] for name in "qkv")
        x = jax.nn.dot_product_attention(q, k, v, is_causal=True)[:, -1, 0]
        return cross_entropy(apply_dense(params["head"], x), y)

    return params, loss, SEQUENCE


def lstm():
    params = {"cell": dense(2 * WIDTH, 4 * WIDTH), "head": dense(WIDTH, CLASSES)}

    def cell(params, state, x):
        h, c = state
        i, f, g, o = jnp.split(apply_dense(params, jnp.concatenate([x, h], -1)), 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def loss(params, x, y):
        start = (jnp.zeros((BATCH, WIDTH)), jnp.zeros((BATCH, WIDTH)))
        _, hs = lax.scan(lambda s, x: cell(params["cell"], s, x), start, x.swapaxes(0, 1))
        return cross_entropy(apply_dense(params["head"], hs[-1]), y)

    return params, loss, SEQUENCE


def layers_by_scan():
    params = {"w": ones(3, WIDTH, WIDTH), "b": ones(3, WIDTH)}

    def loss(params, x, y):
        body = jax.checkpoint(lambda x, layer: (jnp.tanh(apply_dense(layer, x)), None))
        return cross_entropy(lax.scan(body, x, params)[0][:, :CLASSES], y)

    return params, loss, X


def embedding():
    params = {"table": ones(16, WIDTH), "head": dense(WIDTH, CLASSES)}

    def loss(params, x, y):
        return cross_entropy(apply_dense(params["head"], params["table"][x].mean(1)), y)

    return params, loss, np.arange(BATCH * 2, dtype=np.int32).reshape(BATCH, 2)


MODELS = [mlp, mlp_remat, convolution, attention, lstm, layers_by_scan, embedding]
OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(1e-3),
    "adamw": optax.adamw(optax.cosine_decay_schedule(1e-3, 100)),
    "lamb": optax.lamb(1e-3),
    "lion": optax.lion(1e-3),
    "adafactor": optax.adafactor(1e-3),
    "clipped": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
    "multi steps": optax.MultiSteps(optax.adam(1e-3), 3),
    "if finite": optax.apply_if_finite(optax.adam(1e-3), 5),
    "noise": optax.chain(optax.add_noise(0.1, 0.5, KEY), optax.sgd(0.1)),
    "averaged": optax.chain(optax.ema(0.9), optax.sgd(0.1)),
    "plateau": optax.contrib.reduce_on_plateau(),
}


def update(optimizer, loss, reduce_gradients):
    def step(params, state, x, y):
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        gradients = reduce_gradients(gradients)
        mean = pmean(value)
        extra = (
            {"value": mean} if isinstance(optimizer, optax.GradientTransformationExtraArgs) else {}
        )
        updates, state = optimizer.update(gradients, state, params, **extra)
        return optax.apply_updates(params, updates), state, mean, value

    return step


def initial_state(optimizer, params):
    return jax.eval_shape(optimizer.init, params)


def paths_that_vary(step, *args, varies):
    """Paths of the outputs that vary, for arguments of which those at `varies` vary."""
    jaxpr, shapes = jax.make_jaxpr(step, axis_env=[("replica", 4)], return_shape=True)(*args)
    kinds = [
        Source(f"argument {i}", None) if i in varies else None
        for i, argument in enumerate(args)
        for _ in jax.tree.leaves(argument)
    ]
    proof = prove(jaxpr, kinds)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(shapes)]
    return {path for path, kind in zip(paths, proof.outputs, strict=True) if kind is not None}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_correct_step(model):
    params, loss, x = model()
    optimizer = optax.adam(1e-3)
    step = update(optimizer, loss, pmean)

    varying = paths_that_vary(step, params, initial_state(optimizer, params), x, Y, varies=[2, 3])

    assert varying == {"[3]"}  # The local loss alone.


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_step_without_a_reduction(model):
    params, loss, x = model()
    optimizer = optax.adam(1e-3)
    step = update(optimizer, loss, keep)

    varying = paths_that_vary(step, params, initial_state(optimizer, params), x, Y, varies=[2, 3])

    leaves = len(jax.tree.leaves(params))
    assert sum(path.startswith("[0]") for path in varying) == leaves
    assert sum(path.startswith("[1]") for path in varying) == 2 * leaves  # Both moments.
    assert "[1][0].count" not in varying


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_states(name):
    params, loss, x = mlp()
    optimizer = OPTIMIZERS[name]
    state = initial_state(optimizer, params)

    right = paths_that_vary(update(optimizer, loss, pmean), params, state, x, Y, varies=[2, 3])
    wrong = paths_that_vary(update(optimizer, loss, keep), params, state, x, Y, varies=[2, 3])

    assert right == {"[3]"}
    if name != "plateau":  # It scales by the mean loss; here, a gradient that varies.
        assert sum(path.startswith("[0]") for path in wrong) == len(jax.tree.leaves(params))


@pytest.mark.parametrize("forgotten", range(10))
def test_one_of_ten_leaves_forgotten(forgotten):
    params = [ones(WIDTH) for _ in range(10)]

    def loss(params, x, y):
        return jnp.mean((x @ sum(params) - y) ** 2)

    def reduce_most(gradients):
        return [g if i == forgotten else pmean(g) for i, g in enumerate(gradients)]

    optimizer = optax.sgd(0.1, momentum=0.9)
    step = update(optimizer, loss, reduce_most)
    varying = paths_that_vary(step, params, initial_state(optimizer, params), X, Y, varies=[2, 3])

    assert varying == {f"[0][{forgotten}]", f"[1][0].trace[{forgotten}]", "[3]"}


def test_one_forgotten_leaf_under_a_global_norm_taints_all():
    params = [ones(WIDTH), ones(WIDTH)]

    def loss(params, x, _y):
        return jnp.mean((x @ sum(params)) ** 2)

    step = update(OPTIMIZERS["clipped"], loss, lambda g: [g[0], pmean(g[1])])
    state = initial_state(OPTIMIZERS["clipped"], params)

    assert {"[0][0]", "[0][1]"} <= paths_that_vary(step, params, state, X, Y, varies=[2, 3])


def batch_norm(stats, x, reduce_stats):
    mean, square = reduce_stats((x.mean(0), (x**2).mean(0)))
    new = jax.tree.map(lambda old, now: 0.9 * old + 0.1 * now, stats, (mean, square - mean**2))
    return (x - mean) * lax.rsqrt(square - mean**2 + 1e-5), new


@pytest.mark.parametrize("synchronised", [True, False])
def test_batch_norm(synchronised):
    layer = dense(WIDTH, CLASSES)
    stats = (ones(WIDTH), ones(WIDTH))

    def step(layer, stats, x, y):
        def loss(layer):
            normal, new = batch_norm(stats, x, pmean if synchronised else keep)
            return cross_entropy(apply_dense(layer, normal), y), new

        gradients, new = jax.grad(loss, has_aux=True)(layer)
        return jax.tree.map(lambda p, g: p - 0.1 * g, layer, pmean(gradients)), new, pmean(new)

    varying = paths_that_vary(step, layer, stats, X, Y, varies=[2, 3])

    assert varying == (set() if synchronised else {"[1][0]", "[1][1]"})


def test_dropout_keys():
    def drop(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x / 0.5, 0.0)

    def fn(key, w):
        next_key, used = jax.random.split(key)
        own = jax.random.fold_in(used, lax.axis_index("replica"))
        return next_key, drop(used, w), drop(own, w), pmean(drop(own, w))

    assert paths_that_vary(fn, KEY, X, varies=[]) == {"[2]"}


def test_metrics():
    def fn(totals, x, y):
        hits = jnp.sum(x.argmax(-1) == y)
        local = totals["local"] + hits
        return {"local": local, "global": totals["global"] + lax.psum(hits, "replica")}

    totals = {"local": np.int32(0), "global": np.int32(0)}

    assert paths_that_vary(fn, totals, X, Y, varies=[1, 2]) == {"['local']"}


def test_gradient_accumulation_by_scan():
    params, loss, _ = mlp()
    batches = np.stack([X, X]), np.stack([Y, Y])

    def step(params, batches, *, reduce_at):
        def body(total, batch):
            gradients = jax.grad(loss)(params, *batch)
            if reduce_at == "each":
                gradients = pmean(gradients)
            return jax.tree.map(jnp.add, total, gradients), None

        total, _ = lax.scan(body, jax.tree.map(jnp.zeros_like, params), batches)
        total = pmean(total) if reduce_at == "end" else total
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, total)

    for reduce_at, varying in [("each", 0), ("end", 0), ("never", 4)]:
        run = lambda p, b, where=reduce_at: step(p, b, reduce_at=where)  # noqa: E731
        assert len(paths_that_vary(run, params, batches, varies=[1])) == varying


def test_loss_scaling():
    """An overflow on one replica must skip the step on all of them."""

    def step(w, scale, x, *, reduce_first):
        gradient = jax.grad(lambda w: jnp.sum(x @ w) * scale)(w)
        gradient = pmean(gradient) if reduce_first else gradient
        finite = jnp.all(jnp.isfinite(gradient))
        gradient = pmean(gradient)
        w, scale = lax.cond(
            finite, lambda: (w - gradient / scale, scale * 2), lambda: (w, scale / 2)
        )
        return w, scale

    w = ones(WIDTH)
    right = paths_that_vary(lambda *a: step(*a, reduce_first=True), w, np.float32(8), X, varies=[2])
    wrong = paths_that_vary(
        lambda *a: step(*a, reduce_first=False), w, np.float32(8), X, varies=[2]
    )

    assert right == set()
    assert wrong == {"[0]", "[1]"}
