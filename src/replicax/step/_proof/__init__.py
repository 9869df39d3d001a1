"""The proof pass: which values of a replica function are equal on all replicas.

The pass reads the jaxpr of what one replica runs and marks every value *mirrored* (proved equal
on all replicas) or *varying* (it may differ), by the rules below. It never guesses: what it
cannot prove is an error that says so.

    _kinds.py        the marks, and what a proof holds
    _primitives.py   what is known of each primitive, by name
    _scope.py        one pass over the equations of a jaxpr, cached for nested ones
    _rules.py        collectives, callbacks, references
    _calls.py        equations that run a jaxpr once: jit, remat, custom derivatives, shard_map
    _control.py      scan, while, cond
    _refusals.py     the errors
    _prove.py        the entrance

"Mirrored" means: the same function of equal inputs. A device whose own arithmetic is not
repeatable (atomic scatter-adds on a GPU, say) can still differ in its last bits.
"""

from __future__ import annotations

from ._kinds import Proof as Proof
from ._kinds import ProvedCollective as ProvedCollective
from ._kinds import Source as Source
from ._primitives import COLLECTIVES as COLLECTIVES
from ._primitives import MIRRORED_ONLY as MIRRORED_ONLY
from ._primitives import register_primitive as register_primitive
from ._prove import prove as prove

__all__ = [
    "COLLECTIVES",
    "MIRRORED_ONLY",
    "Proof",
    "ProvedCollective",
    "Source",
    "prove",
    "register_primitive",
]
