"""Decisions without deeds: who may start, and what each admitted job needs next. Nothing here does I/O."""

from ringleader_api.scheduling.admission import Admit, Claim, Hold, Snapshot, decide, fits, most
from ringleader_api.scheduling.lifecycle import Facts, next_act
from ringleader_api.scheduling.places import Need, Node

__all__ = [
    "Admit",
    "Claim",
    "Facts",
    "Hold",
    "Need",
    "Node",
    "Snapshot",
    "decide",
    "fits",
    "most",
    "next_act",
]
