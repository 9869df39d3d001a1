"""Write docs/performance.md from the figures of `make bench`.

    python tools/performance.py            # or: make bench, which ends with it

The figures are in benchmarks/figures/steps.json. Nothing in the page is written by hand twice: the
words stand here, the numbers there.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "benchmarks" / "figures" / "steps.json"
PAGE = ROOT / "docs" / "performance.md"

HEAD = """# Performance

What a step costs beside the best that we know by hand in jax. This page is written by
`tools/performance.py` from the figures of `make bench`.

Two replicas share {cores} CPU cores: in one process on two logical devices, or in two processes
with one core each, which talk over Gloo. All contenders of a table run in one job and do the same
arithmetic: float32, gradient descent, the loss is the mean over the global batch, and their losses
after 20 steps agree to 0.001, which the benchmark checks. They take turns, and a ratio is taken
within each round, so that a busy machine slows both sides of it. A figure is the median of the
rounds; the lowest and the highest stand in brackets. Compare ratios, not milliseconds.
"""

HANDS = """
By hand means `jit` over `shard_map` with donated state, and gradients, statistics and loss combined
in one of these ways:

- *an all-reduce a leaf*: what `jax.tree.map` of `psum` gives;
- *one buffer*: all leaves joined, behind an `optimization_barrier`, which makes it faster;
- *buckets of 4 MB*: the same in pieces;
- *automatic sharding*: arrays with shardings, and XLA finds the collectives.

Below 1, replicax is faster. The best by hand is another one for each workload; replicax is compared
with whichever it is.
"""

TAIL = """
## What is packed

Each collective has a fixed price, and each pack is copied in and out, a price by the byte. So small
leaves travel together and large ones alone, never copied:

| between | a leaf is packed up to | a pack grows to |
|---|---|---|
{limits}
Both limits stand in `replicax/collectives/_transport.py`. Those in memory and over Gloo are
measured, by `python benchmarks/packing.py` (`--processes 2` for Gloo): a step of dense layers whose
weights travel in one pack, beside the same with each weight alone. Those of NCCL are **not
measured**: they are those in memory, because XLA joins what is left itself there. Measure yours
with `python benchmarks/packing.py --platform cuda`, and set `bytes_per_pack` of
`rx.CommunicationOptions`, which overrides both limits.

Leaves are packed by dtype, in the order in which the backward pass produces them, so that the
gradients of the last layers can travel while those of the first are computed. A barrier stands
between the gradients and the pack: without it XLA computes gradients inside of the concatenation,
slowly or twice. A leaf has the same bits in a pack as alone, wherever the replicas are added in one
order: always between two replicas, and inside a process. A ring over more processes adds each part
of a buffer in another order, so there the last bit may depend on the place in the pack.

`rx.explain` lists the packs, see [What a step is](explain.md).

The loss of `ctx.global_mean` starts its derivative from the constant 1, and the gradient of a
collective is the same collective: a sum of ones, which every step would wait for before its
backward pass. Sums of constants are computed while tracing instead, for full batches.

## The guard

Time is not tested, because tests run on busy machines. What XLA makes of small versions of the five
workloads is: the number of all-reduces, the arrays and bytes they move, and the copies, as golden
values in `benchmarks/golden.json`. `python benchmarks/golden.py --update` writes them anew.

## What is missing

- Other libraries (TensorFlow's strategies, PyTorch's DistributedDataParallel, Keras'
  DataParallel) are not part of this benchmark yet, nor are the Keras and NNX loops.
- Gradients of embeddings are dense here; those of sparse rows are not measured.
- Between processes the loss of `ctx.global_mean` is a message of its own, beside the packs of the
  gradients. One buffer by hand has it inside, and is ahead by that on many small layers.
- The state is not kept in packs between steps.
- Accelerators are not measured.
"""


def page(facts: dict[str, Any], limits: Iterable[tuple[str, str, str]]) -> str:
    """The page's text.

    Args:
        facts: What is in the file of figures.
        limits: A row of the table of limits each.
    """
    parts = [HEAD.format(cores=facts["cores"]), HANDS]
    for where, workloads in facts["found"].items():
        parts.append(_section(facts, where, workloads))
    rows = "".join(f"| {' | '.join(row)} |\n" for row in limits)
    parts.append(TAIL.format(limits=rows))
    return "".join(parts)


def _section(facts: dict[str, Any], where: str, workloads: dict[str, Any]) -> str:
    ours, hands = facts["ours"], facts["by_hand"]
    lines = [f"\n## {where}\n", "\nReplicax beside the best by hand, ratio of the step times:\n\n"]
    lines.append(_row(["workload", *ours, "best by hand", "its median"]))
    lines.append(_row(["---"] * (len(ours) + 3)))
    for name, figures in workloads.items():
        seconds = figures["seconds"]
        known = [hand for hand in hands if hand in seconds]
        if not known:
            continue
        best = min(known, key=lambda hand: statistics.median(seconds[hand]))
        ratios = [_ratio(seconds[each], seconds[best]) if each in seconds else "" for each in ours]
        median = f"{1e3 * statistics.median(seconds[best]):.3g} ms"
        title = facts["titles"][name]
        lines.append(_row([title, *ratios, best.removeprefix("by hand, "), median]))
    lines.append("\nEverything beside one all-reduce a leaf:\n\n")
    lines.append(_row(["workload", *ours, *(hand.removeprefix("by hand, ") for hand in hands[1:])]))
    lines.append(_row(["---"] * (len(ours) + len(hands))))
    for name, figures in workloads.items():
        seconds = figures["seconds"]
        if hands[0] not in seconds:
            continue
        cells = [
            _ratio(seconds[each], seconds[hands[0]]) if each in seconds else ""
            for each in [*ours, *hands[1:]]
        ]
        lines.append(_row([name, *cells]))
    said = sorted({f"jax {each['jax']}, {each['rounds']} rounds" for each in workloads.values()})
    load = max(each["load"] for each in workloads.values())
    lines.append(f"\nMeasured with {'; '.join(said)}.")
    if load > facts["cores"] + 1:
        lines.append(
            f" Other programs ran at the same time (up to {load:.0f} threads for {facts['cores']} "
            "cores), so these ratios are rough."
        )
    lines.append("\n")
    return "".join(lines)


def _ratio(mine: Sequence[float], theirs: Sequence[float]) -> str:
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def limits() -> list[tuple[str, str, str]]:
    """The rows of the table of limits, as they are in the code."""
    from replicax.collectives import LIMITS, Transport  # noqa: PLC0415 - it imports jax

    names = {
        Transport.MEMORY: "CPU devices of one process",
        Transport.GLOO: "CPU processes (Gloo)",
        Transport.NCCL: "accelerators (NCCL)",
    }
    return [
        (names[each], _size(one.leaf_bytes), _size(one.pack_bytes)) for each, one in LIMITS.items()
    ]


def _size(number: int) -> str:
    kib = number // 1024
    return f"{kib // 1024} MiB" if kib % 1024 == 0 else f"{kib} KiB"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(json.loads(FIGURES.read_text()), limits()))
    print(f"{PAGE.relative_to(ROOT)} is written.")


if __name__ == "__main__":
    main()
