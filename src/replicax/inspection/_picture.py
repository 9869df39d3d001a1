"""An explanation as a picture, in SVG."""

from __future__ import annotations

import html
from collections.abc import Sequence

from ._explanation import Explanation, Program, Value
from ._report import duration, size

_WIDTH, _ROW, _COLUMN = 960, 20, 300
_MOST = 14
_COLOURS = {"mirrored": "#2a7de1", "per replica": "#d9822b"}


def picture(shown: Explanation) -> str:
    """Each program as a band: what goes in, what runs and what is sent, what comes out."""
    parts: list[str] = []
    y = 70
    for program in shown.programs:
        y = _band(parts, program, shown.replicas, y)
    title = f"{shown.function}: {shown.replicas} replicas"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" '
        f'role="img" font-family="sans-serif" font-size="13">'
        f"<title>{html.escape(title)}</title>"
        f'<rect width="{_WIDTH}" height="{y}" fill="white"/>'
    )
    legend = _text(20, 30, title, size_px=18)
    for i, (name, colour) in enumerate(_COLOURS.items()):
        legend += f'<rect x="{20 + 140 * i}" y="42" width="12" height="12" fill="{colour}"/>'
        legend += _text(38 + 140 * i, 53, name)
    return head + legend + "".join(parts) + "</svg>\n"


def _band(parts: list[str], program: Program, replicas: int, top: int) -> int:
    """Draws one program, and returns where the next one begins."""
    middle = [
        f"#{i} {each.primitive}: {size(each.bytes)}, {duration(each.seconds)}"
        for i, each in enumerate(program.sent[:_MOST], 1)
    ]
    if len(program.sent) > _MOST:
        middle.append(f"... and {len(program.sent) - _MOST} more")
    most = max(len(middle) + 2, min(len(program.inputs), _MOST), min(len(program.outputs), _MOST))
    height = _ROW * (most + 2)
    batch = "Full batch" if program.batch == "full" else "Remainder, padded"
    parts.append(_text(20, top + 14, batch, size_px=15))
    y = top + 26
    x = _COLUMN + 30
    parts.append(
        f'<rect x="{x}" y="{y}" width="{_COLUMN}" height="{height - 10}" rx="8" fill="#f4f6f8" '
        'stroke="#8a9ba8"/>'
    )
    name = ", ".join(program.functions) or "nothing on the replicas"
    parts.append(_text(x + 12, y + 20, f"{replicas} x {name}", most=38))
    for i, line in enumerate(middle):
        parts.append(_text(x + 12, y + 44 + _ROW * i, line, most=40))
    _column(parts, program.inputs, 20, y)
    _column(parts, program.outputs, x + _COLUMN + 30, y)
    return y + height + 10


def _column(parts: list[str], values: Sequence[Value], x: int, y: int) -> None:
    for i, value in enumerate(values[:_MOST]):
        row = y + 12 + _ROW * i
        colour = _COLOURS["mirrored" if value.is_mirrored else "per replica"]
        parts.append(f'<rect x="{x}" y="{row - 10}" width="10" height="10" fill="{colour}"/>')
        shape = ", ".join(map(str, value.shape))
        label = f"{value.name}: {value.dtype}[{shape}]"
        parts.append(_text(x + 16, row, label, most=40, title=value.note))
    if len(values) > _MOST:
        parts.append(_text(x + 16, y + 12 + _ROW * _MOST, f"... and {len(values) - _MOST} more"))


def _text(x: int, y: int, text: str, *, size_px: int = 13, most: int = 120, title: str = "") -> str:
    shown = text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    tip = html.escape(title or text)
    return (
        f'<text x="{x}" y="{y}" font-size="{size_px}">{html.escape(shown)}'
        f"<title>{tip}</title></text>"
    )
