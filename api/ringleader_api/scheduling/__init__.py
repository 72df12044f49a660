"""Decisions without deeds: who may start, and what each admitted job needs next. Nothing here does I/O."""

from ringleader_api.scheduling.admission import decide, fits, most
from ringleader_api.scheduling.lifecycle import Facts, next_act
from ringleader_api.scheduling.places import Need, Node
from ringleader_api.scheduling.snapshot import (
    Admit,
    Claim,
    Decision,
    Evict,
    Grant,
    Hold,
    Project,
    Rules,
    Snapshot,
)

__all__ = [
    "Admit",
    "Claim",
    "Decision",
    "Evict",
    "Facts",
    "Grant",
    "Hold",
    "Need",
    "Node",
    "Project",
    "Rules",
    "Snapshot",
    "decide",
    "fits",
    "most",
    "next_act",
]
