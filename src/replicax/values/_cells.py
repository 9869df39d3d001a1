"""Where variables keep their arrays.

A new variable has a cell of its own. A step that replaces many variables moves them into one cell:
it then hands over one list and gets one list back, whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replicax.values._variable import Variable


class Cell:
    """The arrays of some variables.

    Attributes:
        arrays: One array a variable, at the variable's slot; None once the variables have moved
            to another cell.
    """

    __slots__ = ("arrays",)

    def __init__(self, arrays: list[Any] | None) -> None:
        self.arrays = arrays


def shared_cell(variables: Sequence[Variable]) -> Cell:
    """One cell that holds the arrays of ``variables``, in their order, and of no others.

    They are moved into a new one if need be, but never away from variables that stay behind:
    another step may hand those over together with them.

    Returns:
        The cell; an empty one, whose `arrays` is None, if some variables share a cell with others,
        or have to be moved one by one.
    """
    if not variables:
        return Cell([])
    kinds = {variable._cell_kind for variable in variables}
    if kinds != {None}:  # The arrays belong to another library.
        kind = kinds.pop()
        made: Cell = Cell(None) if kinds or kind is None else kind(variables)
        return made
    if any(variable._lies_elsewhere for variable in variables):
        return Cell(None)
    cells = {id(variable._cell): variable._cell for variable in variables}
    first = variables[0]._cell
    slots = [variable._slot for variable in variables]
    if len(cells) == 1 and slots == list(range(_size(first))):
        return first
    if sum(_size(cell) for cell in cells.values()) != len(variables):
        return Cell(None)
    cell = Cell([variable._value for variable in variables])
    for slot, variable in enumerate(variables):
        variable._cell, variable._slot = cell, slot
    _leave(cells.values())
    return cell


def _size(cell: Cell) -> int:
    return len(cell.arrays) if cell.arrays is not None else 0


def _leave(cells: Iterable[Cell]) -> None:
    for cell in cells:
        cell.arrays = None
