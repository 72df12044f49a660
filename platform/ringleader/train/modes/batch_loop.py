"""One `session.batches` call, as every mode runs it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.nn import Parameter

from ringleader.train.body.phases import WHOLE_STEP, PhaseUpdate
from ringleader.train.generation.control_word import BATCHES
from ringleader.train.generation.member import Member
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.order.cursor import Epoch
from ringleader.train.rows.slices import Collate, Prefetched, Slice


@dataclass(frozen=True, slots=True)
class BatchLoop:
    """One `session.batches` call: its epoch, its data set and how that is loaded.

    Attributes:
        number: its session call number.
        line: its place in the program, as "file:line".
        leaves: its body leaves behind its step.
        phases: the numbers of the optimizers that step in each phase of a step; empty where a step has no phases.
        reads_ahead: the rows of a step may be read before the one before it is committed.
        epoch: its order of rows.
        index: how many batches calls came before it.
        total_steps: of the whole job, where the user said so.
    """

    number: int
    index: int
    line: str
    epoch: Epoch
    dataset: Any
    collate: Collate | None
    loader_workers: int
    total_steps: int | None
    loaders: LoaderProcesses
    leaves: bool = False
    phases: tuple[tuple[int, ...], ...] = ()
    reads_ahead: bool = True

    def update_of(self, phase: int) -> PhaseUpdate:
        """The update behind the slices of a phase, numbered from 0."""
        if not self.phases:
            return WHOLE_STEP
        return PhaseUpdate(self.phases[phase], ends=phase + 1 == len(self.phases))

    def stepped(self, member: Member) -> list[Parameter] | None:
        """The parameters that the running transaction updates; None: all."""
        return self.update_of(member.progress.phases).stepped(member.held)

    @property
    def kind(self) -> int:
        """The kind of this call, for the control word."""
        return BATCHES + self.index

    def meet(self, member: Member) -> None:
        """Check that all members are at this loop, at whatever step of it, and hold the same state before its first
        step; the error names two that are at different calls. Raises ExchangeBroken."""
        comparison = member.comparison
        while True:
            comparison.begin(self.number)
            word = member.layout.write(
                rank=member.generation.rank,
                call=self.number,
                kind=self.kind,
                step=member.progress.calls.base,
                pending=False,
                said=comparison.said,
            )
            reduced = member.generation.exchange.meet(word)
            member.check(reduced)
            if not comparison.differs(reduced):
                comparison.agreed(self.number)
                return
            comparison.correct(reduced)

    def slice(self, member: Member, offset: int, term: int, shards: Sequence[int] = ()) -> Slice:
        """The rows of a shard in a batch, or of several that run as one term, with the stream of its draws."""
        step = member.progress.calls.base + offset
        shards = shards or (term,)
        rows, windows = self.epoch.rows_of(offset, shards), self.epoch.windows_of(offset, shards)
        return Slice(("step", step, term), term, rows, windows)

    def batches(self, pieces: Iterator[Slice]) -> Prefetched:
        """The batches of these slices, loaded as the user said."""
        loaded = self.loaders.load(
            self.number,
            self.dataset,
            pieces,
            self.collate,
            self.loader_workers,
            may_differ=not self.reads_ahead,
        )
        return Prefetched(loaded)
