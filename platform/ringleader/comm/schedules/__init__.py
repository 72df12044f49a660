"""The registry of schedules: ways of summing a bucket over all ranks. To add one, write its file and name it here."""

from ringleader.comm.schedules.binary_blocks import BINARY_BLOCKS
from ringleader.comm.schedules.direct import DIRECT
from ringleader.comm.schedules.double_tree import DOUBLE_TREE
from ringleader.comm.schedules.doubling import DOUBLING
from ringleader.comm.schedules.gather import GATHER
from ringleader.comm.schedules.halving_doubling import HALVING_DOUBLING
from ringleader.comm.schedules.ring import RING
from ringleader.comm.schedules.schedule import Add, RankPart, Receive, Schedule, Send, Span, Step, Zero
from ringleader.comm.schedules.tree import TREE
from ringleader.comm.schedules.two_level import TWO_LEVEL

SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        BINARY_BLOCKS,
        DIRECT,
        DOUBLE_TREE,
        DOUBLING,
        GATHER,
        HALVING_DOUBLING,
        RING,
        TREE,
        TWO_LEVEL,
    )
}

__all__ = ["SCHEDULES", "Add", "RankPart", "Receive", "Schedule", "Send", "Span", "Step", "Zero"]
