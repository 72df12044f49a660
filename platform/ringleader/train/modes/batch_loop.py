"""One `session.batches` call, as every mode runs it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ringleader.train.generation.member import Member
from ringleader.train.ports import RecordSink
from ringleader.train.rows.cursor import Epoch
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.slices import Collate, Prefetched, Slice


@dataclass(frozen=True, slots=True)
class BatchLoop:
    """One `session.batches` call: its epoch, its data set and how that is loaded.

    Attributes:
        number: its session call number.
        epoch: its order of rows.
        index: how many batches calls came before it.
        total_steps: of the whole job, where the user said so.
    """

    number: int
    index: int
    epoch: Epoch
    dataset: Any
    collate: Collate | None
    loader_workers: int
    total_steps: int | None
    loaders: LoaderProcesses

    def over(self, member: Member) -> bool:
        """Wait for a plan where one is due. Returns whether the loop is finished."""
        member.enter()
        if (
            not member.progress.calls.is_finished(self.number)
            and member.progress.calls.offset >= self.epoch.steps
        ):
            member.finish_call(self.number)
        return member.progress.calls.is_finished(self.number)

    def batches(self, pieces: Iterator[Slice]) -> Prefetched:
        """The batches of these slices, loaded as the user said."""
        return Prefetched(
            self.loaders.load(self.number, self.dataset, pieces, self.collate, self.loader_workers)
        )

    def tell(self, sink: RecordSink, phase: str, *, step: int, lanes: int) -> None:
        """Report the training thread's phase: `step` steps are committed, and a batch has so many `lanes`."""
        sink.progress(
            step=step,
            total_steps=self.total_steps,
            epoch=self.index,
            phase=phase,
            rows=self.epoch.batch // max(1, lanes),
        )
