"""Settled records on their way out: nothing leaves before its step is settled, nothing is forgotten until stored.

Every member keeps the same records; rank 0 sends them. When rank 0 is lost, the next one sends what is not stored yet.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ringleader.comm.timeline import TimelineStretch
from ringleader.train.generation.settled_artifacts import SettledArtifacts
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

    def add(self, values: Mapping[str, float]) -> None:
        """Add metrics, in place of those of the same names."""
        self.values.update(values)


class SettledRecords:
    """The newest commit's records, still open, and the settled ones that are not known to be stored.

    Attributes:
        artifacts: those of the same steps.
        in_generation: a generation is under way, so that it is known which member reports.
    """

    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink
        self.artifacts = SettledArtifacts(sink)
        self._open: list[StepRecord] = []
        self._kept: deque[StepRecord] = deque()
        self._speaks = False
        self.in_generation = False
        self._stored = 0

    def begin_generation(self, *, speaks: bool, recorded_step: int) -> None:
        """Begin a generation: the member that reports in it sends what the one before may not have sent.

        Args:
            speaks: this member is that one.
            recorded_step: steps below it are stored.
        """
        self._speaks, self._stored, self.in_generation = speaks, recorded_step, True
        self.artifacts.begin_generation(speaks=speaks)
        for record in self._kept:
            if record.step >= recorded_step:
                self._send(record)

    def end_generation(self) -> None:
        """End a generation. Nobody reports between two: the next plan's `recorded_step` does not count what is settled
        there, so `begin_generation` sends it."""
        self._speaks = self.in_generation = False
        self.artifacts.end_generation()

    def tell(self, kind: str, generation: int, data: dict[str, Any]) -> bool:
        """Report an event that all members know of; one of them sends it. Returns whether that is this one."""
        if self._speaks:
            self._sink.event(kind, generation, data)
        return self._speaks

    def say(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        """Report an event that only this member knows of."""
        self._sink.event(kind, generation, data)

    def trace(self, stretch: TimelineStretch) -> None:
        """Send this member's timeline of the transaction that is about to be committed; every member sends its own."""
        self._sink.trace(stretch)

    def open(self, records: list[StepRecord]) -> None:
        """Take the records of a transaction just committed; the one before it is settled."""
        # This commit needed every member's contribution, so all have applied the one before.
        self.settle()
        self._open = records

    def add_scores(self, step: int, generation: int, scores: dict[str, float]) -> None:
        """Add the scores of an evaluation after `step` steps to the open record."""
        if not self._open:
            self._open = [StepRecord(step, generation, {})]
        self._open[-1].add(scores)

    def amend(self, values: Mapping[str, float]) -> None:
        """Add metrics of the newest commit that are known only now to its open records."""
        for record in self._open:
            record.add(values)

    def settle(self) -> None:
        """Settle the open records: they can no longer be rolled back."""
        self.artifacts.settle()
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
        stored = self._sink.recorded_step()
        # Kept on every member until the supervisor has stored them: the next rank 0 may have to send them.
        while self._kept and self._kept[0].step < stored:
            self._kept.popleft()
        self._kept.append(record)
        self._send(record)
        self._sink.settled(record.step + 1)

    def _send(self, record: StepRecord) -> None:
        # What is below was sent by the member that spoke before.
        if not self._speaks or record.step < self._stored:
            return
        # Rows first: a step counts as recorded once its metrics are, and then nobody sends its rows again.
        if len(record.rows):
            self._sink.ledger(record.step, record.shards, record.rows)
        self._sink.metrics(record.step, record.generation, record.values)
