"""Decisions without deeds: who may start, and what each admitted job needs next. Nothing here does I/O."""

from ringleader_api.scheduling.admission import decide, fits, most, plan
from ringleader_api.scheduling.growth import reaches
from ringleader_api.scheduling.lifecycle import Facts, Limits, Silence, next_act
from ringleader_api.scheduling.places import Need, Node
from ringleader_api.scheduling.snapshot import (
    Admit,
    Claim,
    Decision,
    Demand,
    Evict,
    Grant,
    Hold,
    Project,
    Reach,
    Rules,
    Seen,
    Snapshot,
)

__all__ = [
    "Admit",
    "Claim",
    "Decision",
    "Demand",
    "Evict",
    "Facts",
    "Grant",
    "Hold",
    "Limits",
    "Need",
    "Node",
    "Project",
    "Reach",
    "Rules",
    "Seen",
    "Silence",
    "Snapshot",
    "decide",
    "fits",
    "most",
    "next_act",
    "plan",
    "reaches",
]
