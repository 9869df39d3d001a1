"""Write the table of docs/keras.md: Keras on one device against 2, 3, 4 and 2 x 2 replicas.

Each configuration is trained by Keras alone, then by `rx.keras.fit` from the same weights on the
same rows; in the last column by two workers with two replicas each. The cells are the largest
difference of all losses, metrics, weights, statistics, optimizer states and predictions. `--check`
changes nothing and exits with 1 if one is above the tolerance.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras

import replicax as rx

PAGE = Path(__file__).resolve().parent.parent / "docs" / "keras.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
TOLERANCE = 1e-6
REPLICAS = (2, 3, 4)
BATCH = 6
Layers = keras.layers


@dataclass(frozen=True)
class Configuration:
    """One training.

    Attributes:
        label: How the table calls it.
        layers: Makes the layers between input and output.
        rows: Rows of the data: from one batch to two, most of them uneven.
        optimizer: Makes the optimizer.
        loss: The loss.
        metrics: Makes the metrics.
        shape: The shape of a row.
        fit: More arguments of `fit`; `"weights"` stands for a weight a row.
        compile: More arguments of `compile`.
    """

    label: str
    layers: Callable[[], Sequence[Any]]
    rows: int
    optimizer: Callable[[], Any] = lambda: keras.optimizers.SGD(0.1)
    loss: str = "mse"
    metrics: Callable[[], Sequence[Any]] = tuple
    shape: tuple[int, ...] = (3,)
    fit: dict[str, Any] = field(default_factory=dict)
    compile: dict[str, Any] = field(default_factory=dict)

    def model(self) -> Any:
        """The compiled model, with the same weights each time."""
        keras.utils.set_random_seed(1)
        outputs = {"sparse_categorical_crossentropy": 3}.get(self.loss, 1)
        activation = {
            "sparse_categorical_crossentropy": "softmax",
            "binary_crossentropy": "sigmoid",
            "poisson": "softplus",
        }.get(self.loss)
        last = Layers.Dense(outputs, activation=activation)
        model = keras.Sequential([keras.Input(self.shape), *self.layers(), last])
        model.compile(self.optimizer(), self.loss, metrics=list(self.metrics()), **self.compile)
        return model

    def data(self) -> tuple[Any, Any, dict[str, Any]]:
        """Inputs, targets and the other arguments of `fit`."""
        rng = np.random.default_rng(2)
        x = rng.normal(size=(self.rows, *self.shape)).astype(np.float32)
        y = rng.uniform(size=(self.rows, 1)).astype(np.float32)
        if self.loss == "sparse_categorical_crossentropy":
            y = rng.integers(0, 3, self.rows).astype(np.int32)
        elif self.loss == "binary_crossentropy":
            y = (y > 0.5).astype(np.float32)  # noqa: PLR2004 - the middle
        if "tokens" in self.label:
            x = np.abs(x * 3).astype(np.int32) % 5
        options = dict(self.fit)
        if options.pop("weights", False):
            options["sample_weight"] = rng.uniform(0.5, 2, self.rows).astype(np.float32)
        return x, y, options


def dense() -> list[Any]:
    """One small layer."""
    return [Layers.Dense(4, activation="tanh")]


def with_(*layers: Callable[[], Any]) -> Callable[[], list[Any]]:
    """Layers that are made anew for each model."""
    return lambda: [make() for make in layers]


Adam = keras.optimizers.Adam
CLASSES = "sparse_categorical_crossentropy"
CONFIGURATIONS = (
    # layers
    Configuration("Dense", dense, 6),
    Configuration(
        "Dense, L2 of weights and activations",
        with_(lambda: Layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l2")),
        7,
    ),
    Configuration(
        "BatchNormalization",
        with_(lambda: Layers.Dense(4, use_bias=False), Layers.BatchNormalization),
        8,
    ),
    Configuration("LayerNormalization", with_(Layers.LayerNormalization), 9),
    Configuration(
        "GroupNormalization",
        with_(lambda: Layers.Dense(4), lambda: Layers.GroupNormalization(2)),
        10,
    ),
    Configuration("UnitNormalization", with_(Layers.UnitNormalization), 11),
    Configuration("Dropout", with_(lambda: Layers.Dropout(0.5, seed=1)), 7),
    Configuration("GaussianNoise", with_(lambda: Layers.GaussianNoise(0.1, seed=1)), 8),
    Configuration(
        "Conv1D, GlobalAveragePooling1D",
        with_(lambda: Layers.Conv1D(2, 2), Layers.GlobalAveragePooling1D),
        9,
        shape=(4, 2),
    ),
    Configuration(
        "Conv2D, MaxPooling2D",
        with_(lambda: Layers.Conv2D(2, 2), Layers.MaxPooling2D, Layers.Flatten),
        10,
        shape=(4, 4, 1),
    ),
    Configuration(
        "SeparableConv2D",
        with_(lambda: Layers.SeparableConv2D(2, 2), Layers.Flatten),
        11,
        shape=(3, 3, 1),
    ),
    Configuration("LSTM", with_(lambda: Layers.LSTM(3)), 7, shape=(3, 2)),
    Configuration(
        "GRU, dropout", with_(lambda: Layers.GRU(3, dropout=0.2, seed=1)), 8, shape=(3, 2)
    ),
    Configuration(
        "Bidirectional SimpleRNN",
        with_(lambda: Layers.Bidirectional(Layers.SimpleRNN(2))),
        9,
        shape=(3, 2),
    ),
    Configuration(
        "Embedding of tokens, masked LSTM",
        with_(lambda: Layers.Embedding(5, 3, mask_zero=True), lambda: Layers.LSTM(2)),
        10,
        shape=(4,),
    ),
    Configuration(
        "PReLU, SpectralNormalization",
        with_(lambda: Layers.SpectralNormalization(Layers.Dense(3)), Layers.PReLU),
        11,
    ),
    # losses and metrics
    Configuration(
        "mean absolute error, RootMeanSquaredError",
        dense,
        7,
        loss="mae",
        metrics=lambda: [keras.metrics.RootMeanSquaredError()],
    ),
    Configuration(
        "Huber, cosine similarity",
        dense,
        8,
        loss="huber",
        metrics=lambda: [keras.metrics.CosineSimilarity()],
    ),
    Configuration(
        "log-cosh, MeanSquaredError",
        dense,
        9,
        loss="log_cosh",
        metrics=lambda: [keras.metrics.MeanSquaredError()],
    ),
    Configuration("Poisson", dense, 10, loss="poisson"),
    Configuration(
        "binary cross-entropy, AUC, confusion counts",
        dense,
        11,
        loss="binary_crossentropy",
        metrics=lambda: [
            keras.metrics.AUC(5),
            keras.metrics.TruePositives(),
            keras.metrics.FalseNegatives(),
            keras.metrics.F1Score(),
        ],
    ),
    Configuration(
        "classes, accuracy, top-2",
        dense,
        7,
        loss=CLASSES,
        metrics=lambda: ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
    ),
    # optimizers
    Configuration(
        "SGD with momentum, clipped by norm",
        dense,
        8,
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1),
    ),
    Configuration(
        "Adam, clipped by global norm", dense, 9, lambda: Adam(0.01, global_clipnorm=0.1)
    ),
    Configuration("AdamW", dense, 10, lambda: keras.optimizers.AdamW(0.01)),
    Configuration(
        "RMSprop, decaying rate",
        dense,
        11,
        lambda: keras.optimizers.RMSprop(keras.optimizers.schedules.ExponentialDecay(0.01, 1, 0.5)),
    ),
    Configuration("Adagrad", dense, 7, lambda: keras.optimizers.Adagrad(0.1)),
    Configuration("Nadam", dense, 8, lambda: keras.optimizers.Nadam(0.01)),
    Configuration(
        "Adam, gradients accumulated over 2 steps",
        dense,
        11,
        lambda: Adam(0.01, gradient_accumulation_steps=2),
    ),
    Configuration(
        "LossScaleOptimizer",
        dense,
        9,
        lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=8.0, dynamic_growth_steps=3
        ),
    ),
    # weights and forms of training
    Configuration(
        "a weight a row", dense, 10, fit={"weights": True}, compile={"weighted_metrics": ["mae"]}
    ),
    Configuration(
        "class weights", dense, 11, loss=CLASSES, fit={"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}
    ),
    Configuration("shuffled", dense, 7, fit={"shuffle": True}),
    Configuration("2 steps in one execution", dense, 11, compile={"steps_per_execution": 2}),
    Configuration("validation split", dense, 12, fit={"validation_split": 0.25}),
)


def trained(
    configuration: Configuration, strategy: Any = None, *, size: int = BATCH, predict: bool = True
) -> list[Any]:
    """All numbers of a training: on one device, or on the replicas of a strategy.

    Args:
        configuration: What to train.
        strategy: Where; None means on one device, by Keras alone.
        size: Rows of a global batch.
        predict: Whether to predict as well.
    """
    x, y, given = configuration.data()
    options = {"batch_size": size, "epochs": 2, "verbose": 0, "shuffle": False} | given
    if strategy is None:
        model = configuration.model()
        history = model.fit(x, y, **options)
    else:
        with strategy.scope():
            model = configuration.model()
        history = rx.keras.fit(model, x, y, **options)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    numbers = [np.asarray(v.value) for v in variables]
    found = [*(np.asarray(v) for v in history.history.values()), *numbers]
    if predict:
        call = model.predict if strategy is None else functools.partial(rx.keras.predict, model)
        found.append(call(x, batch_size=size, verbose=0))
    return found


def difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest difference of two trainings; of numbers above 1 the relative one."""
    worst = 0.0
    for a, b in zip(one, other, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)  # noqa: PLW2901 - the same
        worst = max(worst, float(np.max(np.abs(a - b) / np.maximum(1, np.abs(a)), initial=0)))
    return worst


def strategies() -> list[Any]:
    """The strategies of the columns."""
    return [rx.MirroredStrategy([f"cpu:{i}" for i in range(n)]) for n in REPLICAS]


def row(configuration: Configuration, columns: Sequence[Any]) -> list[float]:
    """The cells of one configuration."""
    one = trained(configuration)
    return [difference(one, trained(configuration, strategy)) for strategy in columns]


def work(file: str, numbers: Sequence[int]) -> None:
    """What each of two workers does: `{number: cell}` to `file`, for its half of the numbers."""
    strategy = rx.MultiWorkerMirroredStrategy()
    rank = 0 if strategy.is_chief else 1
    cells = {}
    for number in numbers:
        configuration = CONFIGURATIONS[number]
        together = trained(configuration, strategy)
        if number % 2 == rank:
            cells[number] = difference(trained(configuration), together)
    Path(f"{file}{rank}").write_text(json.dumps(cells))


def two_workers(numbers: Sequence[int]) -> dict[int, float]:
    """The last column: one job of two workers with two CPU devices each."""
    run = [sys.executable, "-m", "replicax", "run", "--standalone", "--nproc-per-node", "2"]
    environment = {
        n: v for n, v in os.environ.items() if not n.startswith(("JAX_", "PYTEST_", "XLA_"))
    }
    environment |= {"JAX_PLATFORMS": "cpu", "REPLICAX_CPU_DEVICES": "2", "KERAS_BACKEND": "jax"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/cells"
        command = [*run, __file__, "--worker", file, *map(str, numbers)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        found = [json.loads(Path(f"{file}{rank}").read_text()) for rank in (0, 1)]
    return {int(number): cell for cells in found for number, cell in cells.items()}


def table(rows: Sequence[tuple[Configuration, Sequence[float]]]) -> str:
    """The table as Markdown."""
    heads = " | ".join([*(f"{n} replicas" for n in REPLICAS), "2 x 2"])
    lines = [f"| configuration | rows | {heads} |", "|---|---|" + "---|" * (len(REPLICAS) + 1)]
    for configuration, cells in rows:
        shown = " | ".join("0" if cell == 0 else f"{cell:.0e}" for cell in cells)
        lines.append(f"| {configuration.label} | {configuration.rows} | {shown} |")
    return "\n".join(lines)


def main() -> int:
    """Train, write or check; 1 if something is too far apart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument(
        "--worker", nargs="+", metavar=("FILE", "NUMBER"), help="of the last column"
    )
    options = parser.parse_args()
    if options.worker:
        work(options.worker[0], [int(number) for number in options.worker[1:]])
        return 0
    jax.config.update("jax_num_cpu_devices", max(REPLICAS))
    columns = strategies()
    last = two_workers(range(len(CONFIGURATIONS)))
    rows = []
    for number, configuration in enumerate(CONFIGURATIONS):
        rows.append((configuration, [*row(configuration, columns), last[number]]))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    if not options.check:
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}", encoding="utf-8")
    return int(any(not cell <= TOLERANCE for _, cells in rows for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
