"""The row pass: where padding goes in a replica function whose batch is a padded remainder.

The proof pass (`_proof`) tells values that are equal on all replicas; this one tells values that
padding got into. It reads the same jaxpr, for padded batches only.

    _states.py        what is known of a value, and how two such states join
    _constants.py     the numbers that stand at padded rows
    _scope.py         one pass over the equations of a jaxpr, cached for nested ones
    _elementwise.py   arithmetic, and masks
    _shapes.py        broadcasts, transpositions, reshapes
    _cuts.py          slices and joins
    _reductions.py    sums, sorts, windows
    _products.py      contractions: how gradients meet rows
    _indexing.py      gather and scatter
    _collectives.py   collectives; keys and matrices row by row
    _control.py       calls, loops, branches
    _read.py          the entrance
    _refusals.py      which outputs are errors

A value is refused only if padding was mixed into it for certain. What no rule knows is `Unknown`,
and never an error.
"""

from __future__ import annotations

from ._read import Input as Input
from ._read import read_rows as read_rows
from ._refusals import Output as Output
from ._refusals import check_rows as check_rows
from ._states import Dirty as Dirty
from ._states import Filled as Filled
from ._states import Known as Known
from ._states import Mark as Mark
from ._states import Parts as Parts
from ._states import State as State
from ._states import Unknown as Unknown
from ._states import collapsed as collapsed

__all__ = [
    "Dirty",
    "Filled",
    "Input",
    "Known",
    "Mark",
    "Output",
    "Parts",
    "State",
    "Unknown",
    "check_rows",
    "collapsed",
    "read_rows",
]
