"""Settled records on their way out: nothing leaves before its step is settled, nothing is forgotten until stored.

Every member keeps the same records; rank 0 sends them. When rank 0 is lost, the next one sends what is not stored yet.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ringleader.comm.timeline import TimelineStretch
from ringleader.train.ports import RecordSink


@dataclass(slots=True)
class StepRecord:
    """One committed step, as it will be reported.

    Attributes:
        step: committed steps including this one.
        values: metric values by name; scores of an evaluation at this step join them.
        shards: (n,) int32 logical shard of each row, empty without a ledger.
        rows: (n,) int64 rows of the dataset that entered the update.
    """

    step: int
    generation: int
    values: dict[str, float]
    shards: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


class SettledRecords:
    """The newest commit's records, still open, and the settled ones that are not known to be stored.

    Attributes:
        in_office: a generation is under way, in which it is known who speaks.
    """

    def __init__(self, outlet: RecordSink) -> None:
        self._outlet = outlet
        self._open: list[StepRecord] = []
        self._kept: deque[StepRecord] = deque()
        self._speaks = False
        self.in_office = False
        self._stored = 0

    def take_office(self, *, speaks: bool, recorded_step: int) -> None:
        """A generation begins: rank 0 sends what the one before it may not have."""
        self._speaks, self._stored, self.in_office = speaks, recorded_step, True
        for record in self._kept:
            if record.step >= recorded_step:
                self._send(record)

    def leave_office(self) -> None:
        """Between generations nobody speaks: what is settled there the next plan's `recorded_step` does not count, so
        `take_office` sends it."""
        self._speaks = self.in_office = False

    def tell(self, kind: str, generation: int, data: dict[str, Any]) -> bool:
        """An event that all members could tell; rank 0 does. Returns whether that is this one."""
        if self._speaks:
            self._outlet.event(kind, generation, data)
        return self._speaks

    def say(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        """An event that this member alone can tell."""
        self._outlet.event(kind, generation, data)

    def trace(self, stretch: TimelineStretch) -> None:
        """What this member did for the transaction that is about to be committed; every member tells its own."""
        self._outlet.trace(stretch)

    def open(self, records: list[StepRecord]) -> None:
        """A transaction of these steps is committed; the one before it is settled."""
        self.settle()
        self._open = records

    def add_scores(self, step: int, generation: int, scores: dict[str, float]) -> None:
        """An evaluation after `step` steps."""
        if not self._open:
            self._open = [StepRecord(step, generation, {})]
        self._open[-1].values |= scores

    def settle(self) -> None:
        """The open records can no longer be rolled back."""
        records, self._open = self._open, []
        for record in records:
            self._settle(record)

    def state(self) -> tuple[list[StepRecord], list[StepRecord]]:
        """The records a healed member has to know: kept ones and open ones."""
        return list(self._kept), list(self._open)

    def restore(self, state: tuple[list[StepRecord], list[StepRecord]]) -> None:
        """Take a peer's records."""
        kept, self._open = state
        self._kept = deque(kept)

    def catch_up(self, state: tuple[list[StepRecord], list[StepRecord]]) -> None:
        """Take the records of a member that has settled more steps, and send those that were not settled here."""
        known = self._kept[-1].step if self._kept else -1
        settled, self._open = state
        for record in settled:
            if record.step > known:
                self._settle(record)

    def _settle(self, record: StepRecord) -> None:
        stored = self._outlet.recorded_step()
        while self._kept and self._kept[0].step < stored:
            self._kept.popleft()
        self._kept.append(record)
        self._send(record)
        self._outlet.settled(record.step + 1)

    def _send(self, record: StepRecord) -> None:
        if not self._speaks or record.step < self._stored:
            return
        self._outlet.metrics(record.step, record.generation, record.values)
        if len(record.rows):
            self._outlet.ledger(record.step, record.shards, record.rows)
