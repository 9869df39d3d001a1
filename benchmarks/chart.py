"""A picture of the figures of `steps.py`: bars, each contender beside one of them."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any


def draw(file: Path, facts: dict[str, Any], beside: str) -> None:
    """One field for each place; the height is the ratio of the medians.

    Args:
        file: Where to.
        facts: What is in the file of figures.
        beside: The contender that is 1.
    """
    import matplotlib as mpl  # noqa: PLC0415 - only where it is installed

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of the back end

    found = facts["found"]
    figure, axes = plt.subplots(len(found), 1, figsize=(12, 5 * len(found)), squeeze=False)
    for (where, workloads), (axis,) in zip(found.items(), axes, strict=True):
        contenders = list(
            dict.fromkeys(name for each in workloads.values() for name in each["seconds"])
        )
        width = 0.85 / len(contenders)
        for number, contender in enumerate(contenders):
            heights = [_ratio(each["seconds"], contender, beside) for each in workloads.values()]
            places = [place + number * width for place in range(len(workloads))]
            color = mpl.colormaps["tab20"](number % 20)
            axis.bar(places, heights, width, label=contender, color=color)
        axis.set_xticks([place + 0.4 for place in range(len(workloads))], list(workloads))
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_title(f"{where}: time of a step beside {beside}")
        axis.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    plt.close(figure)


def _ratio(seconds: dict[str, list[float]], contender: str, beside: str) -> float:
    if contender not in seconds or beside not in seconds:
        return float("nan")
    return statistics.median(seconds[contender]) / statistics.median(seconds[beside])
