"""The registry of schedules: ways of summing a bucket over all ranks. To add one, write its file and name it here."""

from ringleader.comm.schedules.direct import DIRECT
from ringleader.comm.schedules.gather import GATHER
from ringleader.comm.schedules.ring import RING
from ringleader.comm.schedules.schedule import Add, Part, Receive, Schedule, Send, Span, Step, Zero

SCHEDULES: dict[str, Schedule] = {schedule.name: schedule for schedule in (DIRECT, GATHER, RING)}

__all__ = ["SCHEDULES", "Add", "Part", "Receive", "Schedule", "Send", "Span", "Step", "Zero"]
