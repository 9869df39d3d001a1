"""Collectives: how the values of the replicas are combined, in both runners.

`mapped` holds the collectives of a compiled program, `local` those on one list a replica.
"""

from __future__ import annotations

from . import _local as local
from . import _mapped as mapped
from ._hlo import CompiledCollective as CompiledCollective
from ._hlo import collectives_in as collectives_in
from ._keys import CollectiveKeys as CollectiveKeys
from ._keys import looking_ahead as looking_ahead
from ._ledger import KINDS as KINDS
from ._ledger import Entry as Entry
from ._ledger import Ledger as Ledger
from ._ledger import differences as differences
from ._options import EXACT as EXACT
from ._options import CommunicationImplementation as CommunicationImplementation
from ._options import CommunicationOptions as CommunicationOptions
from ._packing import plan_packs as plan_packs
from ._reduce_op import ReduceOp as ReduceOp
from ._rendezvous import Meet as Meet
from ._rendezvous import Request as Request
from ._rendezvous import run_replicas as run_replicas
from ._transport import LIMITS as LIMITS
from ._transport import PackLimits as PackLimits
from ._transport import Transport as Transport
from ._turns import IN_FLIGHT as IN_FLIGHT
from ._turns import TURNS as TURNS
from ._wire import WIRE_BYTES as WIRE_BYTES
from ._wire import is_narrow as is_narrow
from ._wire import rounded as rounded

__all__ = [
    "EXACT",
    "IN_FLIGHT",
    "KINDS",
    "LIMITS",
    "TURNS",
    "WIRE_BYTES",
    "CollectiveKeys",
    "CommunicationImplementation",
    "CommunicationOptions",
    "CompiledCollective",
    "Entry",
    "Ledger",
    "Meet",
    "PackLimits",
    "ReduceOp",
    "Request",
    "Transport",
    "collectives_in",
    "differences",
    "is_narrow",
    "local",
    "looking_ahead",
    "mapped",
    "plan_packs",
    "rounded",
    "run_replicas",
]
