"""Which collectives a compiled program holds, read from its optimised HLO text.

The text is what `jax.jit(f).lower(...).compile().as_text()` returns.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator

_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
    "all-to-all",
)

# `%all-reduce.1 = f32[4]{0} all-reduce(%x), channel_id=1, ...`
_INSTRUCTION = re.compile(
    rf"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<type>.+?) (?P<kind>{'|'.join(_KINDS)})"
    r"(?P<start>-start)?\(",
    re.MULTILINE,
)
_ARRAY = re.compile(r"\b(?P<dtype>[a-z]+\d*\w*)\[(?P<shape>[\d,<=]*)\]")
_COMMENT = re.compile(r"/\*.*?\*/")

_DTYPES = {
    "pred": "bool",
    **{f"s{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "bf16": "bfloat16",
    "c64": "complex64",
    "c128": "complex128",
}
_BITS = re.compile(r"\d+")
_BITS_PER_BYTE = 8


@dataclasses.dataclass(frozen=True)
class CompiledCollective:
    """One collective of a compiled program.

    Attributes:
        kind: `all-reduce`, `all-gather`, `reduce-scatter`, `collective-permute`,
            `collective-broadcast`, `all-to-all` or `ragged-all-to-all`.
        dtypes: Dtype of each result, as numpy names it.
        shapes: Shape of each result on one device.
        bytes: Size of all results on one device.
        name: Name of the instruction.
    """

    kind: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    bytes: int
    name: str


def collectives_in(hlo_text: str) -> tuple[CompiledCollective, ...]:
    """Returns the collectives of an optimised HLO module, in text order. Context: any.

    One that is split into a start and a done is counted once. One in the body of a loop is
    counted once, however often the loop runs.

    Args:
        hlo_text: Text of the module after optimisation.

    Examples:
        >>> text = "  %ar = (f32[2]{0}, s32[]) all-reduce(%a, %b), channel_id=1"
        >>> collectives_in(text)[0].shapes
        ((2,), ())
    """
    return tuple(_collective(match) for match in _INSTRUCTION.finditer(_COMMENT.sub("", hlo_text)))


def _collective(match: re.Match[str]) -> CompiledCollective:
    result = match["type"]
    # A start of these gives (operands, results, ...); that of an all-reduce its results.
    if match["start"] and match["kind"] != "all-reduce":
        result = _tuple_parts(result)[1]
    arrays = list(_arrays(result))
    return CompiledCollective(
        kind=match["kind"],
        dtypes=tuple(_DTYPES.get(dtype, _small_float(dtype)) for dtype, _ in arrays),
        shapes=tuple(shape for _, shape in arrays),
        bytes=sum(_bytes(dtype, shape) for dtype, shape in arrays),
        name=match["name"],
    )


def _arrays(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    for match in _ARRAY.finditer(text):
        # A bounded dynamic length `<=8` counts as its bound.
        lengths = match["shape"].replace("<=", "")
        yield match["dtype"], tuple(int(length) for length in lengths.split(",") if length)


def _tuple_parts(text: str) -> list[str]:
    """Splits `(a, (b, c), d{1,0})` into its outer parts."""
    parts, depth = [""], 0
    for character in text.strip()[1:-1]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _small_float(dtype: str) -> str:
    """The 8-bit and smaller floats: `f8e4m3fn` is `float8_e4m3fn`."""
    return re.sub(r"^f(\d+)(e\w+)$", r"float\1_\2", dtype)


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    bits = _BITS.search(dtype)
    per_element = int(bits.group()) if bits is not None else _BITS_PER_BYTE  # `pred`.
    return -(-math.prod(shape) * per_element // _BITS_PER_BYTE)
