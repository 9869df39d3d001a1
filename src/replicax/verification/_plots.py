"""Pictures of a report: rows, time lines and losses, each an inline SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence

from ._facts import Coverage, Facts, ReplicaTime, Span

_WIDTH = 320.0
_LEFT = 60.0  # room for the names of replicas
_MOST_REPLICAS = 32
_MOST_STEPS = 12
_ROW = 24.0
_LEAST_PIXELS = 0.4


def pictures(facts: Facts) -> Iterator[tuple[str, str, str]]:
    """For each picture its title, what it shows in words, and the SVG."""
    if facts.coverage:
        yield "Rows", _WORDS_OF_ROWS, rows(facts.coverage)
    if facts.spans:
        yield "Time line", _WORDS_OF_TIME, time_line(facts.times, facts.spans)
    if len(facts.losses) > 1:
        yield "Loss", _WORDS_OF_LOSS, losses(facts.losses, facts.losses_of_one)


_WORDS_OF_ROWS = (
    "How many rows each replica holds at the first steps, and the place of its first row in the "
    "dataset where that is known."
)
_WORDS_OF_TIME = (
    "What the device of each replica did in one step: of the measured ones, that of median length."
)
_WORDS_OF_LOSS = "The loss of each step: of all replicas, and of one device on the same batches."


def rows(coverage: Sequence[Coverage]) -> str:
    """Replicas downwards, steps to the right; the fuller a cell, the more rows."""
    steps = coverage[:_MOST_STEPS]
    replicas = min(len(steps[0].counts), _MOST_REPLICAS)
    most = max((n for step in steps for n in step.counts), default=1) or 1
    width = min(72.0, (_WIDTH - _LEFT) / len(steps))
    parts = [_text(_LEFT, 12, "step", "axis")]
    for i, step in enumerate(steps):
        x = _LEFT + i * width
        parts.append(_text(x + width / 2, 28, str(step.step), "axis", anchor="middle"))
        for replica in range(replicas):
            parts += _cell(step, replica, x, 34 + replica * _ROW, width, most)
    parts += _names(replicas, 34)
    return _svg(34 + replicas * _ROW + 4, parts, "Rows of each replica at each step")


def _cell(
    step: Coverage, replica: int, x: float, y: float, width: float, most: int
) -> Iterator[str]:
    count = step.counts[replica] if replica < len(step.counts) else 0
    first = step.first[replica] if replica < len(step.first) else None
    where = "" if first is None else f", the first is row {first} of the dataset"
    title = f"step {step.step}, replica {replica}: {count} rows{where}"
    share = count / most
    style = f"fill-opacity:{0.12 + 0.68 * share:.2f}" if count else "fill-opacity:0"
    yield (
        f'<g><title>{html.escape(title)}</title><rect x="{x + 1:.1f}" y="{y + 1:.1f}" '
        f'width="{width - 2:.1f}" height="{_ROW - 2:.1f}" rx="3" '
        f'class="{"rows" if count else "none"}" style="{style}"/>'
        + _text(x + width / 2, y + 16, str(count), "cell", anchor="middle")
        + "</g>"
    )


def time_line(times: Sequence[ReplicaTime], spans: Sequence[Span]) -> str:
    """Replicas downwards, time to the right."""
    shown = times[:_MOST_REPLICAS]
    rank = {each.replica: i for i, each in enumerate(shown)}
    end = max(span.start + span.seconds for span in spans) or 1.0
    scale = (_WIDTH - _LEFT - 6) / end
    parts = []
    for each in shown:
        y = 8 + rank[each.replica] * _ROW
        parts.append(
            f'<rect x="{_LEFT}" y="{y + 2}" width="{_WIDTH - _LEFT - 6:.1f}" height="{_ROW - 6}" '
            'rx="2" class="idle"/>'
        )
    for span in _thinned(spans, scale):
        if span.replica in rank:
            y = 8 + rank[span.replica] * _ROW
            title = f"replica {span.replica}: {span.kind}, {span.seconds * 1e3:.3g} ms"
            parts.append(
                f'<rect x="{_LEFT + span.start * scale:.2f}" y="{y + 2}" '
                f'width="{max(span.seconds * scale, _LEAST_PIXELS):.2f}" height="{_ROW - 6}" '
                f'class="{span.kind}"><title>{html.escape(title)}</title></rect>'
            )
    parts += _names(len(shown), 8, [each.replica for each in shown])
    y = 8 + len(shown) * _ROW + 14
    parts.append(_text(_LEFT, y, "0", "axis"))
    parts.append(_text(_WIDTH - 6, y, f"{end * 1e3:.3g} ms", "axis", anchor="end"))
    return _svg(y + 8, parts, "Time line of each replica") + _legend(
        ("compute", "computes"), ("communication", "communicates or waits"), ("idle", "idle")
    )


def _thinned(spans: Sequence[Span], scale: float) -> Iterator[Span]:
    """Spans of one kind that no eye could tell apart are joined."""
    gap = _LEAST_PIXELS / scale
    last: Span | None = None
    for span in sorted(spans, key=lambda x: (x.replica, x.kind, x.start)):
        if last is not None and (last.replica, last.kind) == (span.replica, span.kind):
            end = last.start + last.seconds
            if span.start - end < gap:
                length = max(end, span.start + span.seconds) - last.start
                last = Span(last.replica, last.start, length, last.kind)
                continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def losses(here: Sequence[float], there: Sequence[float]) -> str:
    """Steps to the right, the loss upwards."""
    finite = [x for x in (*here, *there) if math.isfinite(x)] or [0.0]
    low, high = min(finite), max(finite)
    spread = high - low or abs(high) or 1.0
    top, bottom, left, right = 14.0, 150.0, _LEFT, _WIDTH - 14
    count = max(len(here), len(there)) - 1

    def points(values: Sequence[float]) -> list[tuple[float, float]]:
        return [
            (left + (right - left) * i / count, bottom - (bottom - top) * (x - low) / spread)
            for i, x in enumerate(values)
            if math.isfinite(x)
        ]

    parts = []
    for value in (low, low + spread / 2, low + spread):
        y = bottom - (bottom - top) * (value - low) / spread
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(_text(left - 6, y + 4, f"{value:.4g}", "axis", anchor="end"))
    for step in range(count + 1):
        x = left + (right - left) * step / count
        parts.append(_text(x, bottom + 16, str(step), "axis", anchor="middle"))
    for values, kind in ((there, "one"), (here, "all")):
        if values:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points(values))
            parts.append(f'<polyline points="{line}" class="line {kind}"/>')
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 if kind == "all" else 5.5}" '
                f'class="dot {kind}"/>'
                for x, y in points(values)
            ]
    legend = [("all", "all replicas")] + ([("one", "one device")] if there else [])
    return _svg(bottom + 24, parts, "Loss at each step") + _legend(*legend)


# -- parts -----------------------------------------------------------------------------------------


def _names(count: int, top: float, numbers: Sequence[int] | None = None) -> Iterator[str]:
    for i in range(count):
        number = i if numbers is None else numbers[i]
        yield _text(0, top + i * _ROW + 16, f"replica {number}", "axis")


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} class="{kind}">{html.escape(text)}</text>'


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{html.escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )


def _legend(*entries: tuple[str, str]) -> str:
    items = "".join(f'<li><i class="{kind}"></i>{html.escape(x)}</li>' for kind, x in entries)
    return f'<ul class="legend">{items}</ul>'
