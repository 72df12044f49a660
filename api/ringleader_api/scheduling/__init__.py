"""Decisions without side effects: which jobs start, and what each admitted job needs next. Nothing here does I/O."""

from ringleader_api.scheduling.admission import Outlook, decide, outlook, plan
from ringleader_api.scheduling.empty_cluster import fits, most
from ringleader_api.scheduling.growth import reaches
from ringleader_api.scheduling.lifecycle import Facts, Limits, Silence, next_act
from ringleader_api.scheduling.needs import NodeShape, WorkerNeed, count_of
from ringleader_api.scheduling.snapshot import (
    Admit,
    Claim,
    ClusterSnapshot,
    Decision,
    Demand,
    EvictJob,
    Grant,
    Hold,
    ProjectShare,
    Reach,
    SchedulerRules,
    Seen,
)

__all__ = [
    "Admit",
    "Claim",
    "ClusterSnapshot",
    "Decision",
    "Demand",
    "EvictJob",
    "Facts",
    "Grant",
    "Hold",
    "Limits",
    "NodeShape",
    "Outlook",
    "ProjectShare",
    "Reach",
    "SchedulerRules",
    "Seen",
    "Silence",
    "WorkerNeed",
    "count_of",
    "decide",
    "fits",
    "most",
    "next_act",
    "outlook",
    "plan",
    "reaches",
]
