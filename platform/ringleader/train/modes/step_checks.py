"""The checks that a reduced word has to pass before a step commits, and the record that the step leaves."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from statistics import fmean
from time import perf_counter

import numpy as np
from torch import Tensor

from ringleader.errors import CallMismatch, NonFiniteLoss, StepMisuse
from ringleader.train.generation.control_word import UNPACED, StepPace, StepReport
from ringleader.train.generation.member import Member
from ringleader.train.generation.settled_records import StepRecord
from ringleader.train.rows.order.cursor import Epoch, checksum


def check(
    report: StepReport, epoch: Epoch, offset: int, step: int, slices: Mapping[int, Sequence[int]]
) -> None:
    """Check a step's word. Each slice's checksum came with its gradient: it must be that of the planned rows.

    Args:
        step: the step's number, for messages.
        slices: the logical shards of every slice that the word speaks of.

    Raises:
        StepMisuse: slices gave different metrics.
        CallMismatch: a slice was made of other rows than planned.
        NonFiniteLoss: the loss over all rows is no number.
    """
    if len(report.names) > 1:
        raise StepMisuse(
            f"step {step}: slices gave different metrics to session.step.",
            hint="Give the same metrics in every turn of every loop, on every worker.",
        )
    for number, sent in report.checksums.items():
        if checksum(epoch.rows_of(offset, slices[number])) != sent:
            raise CallMismatch(
                f"step {step}: slice {number} was computed from other rows than planned.",
                hint="Give session.batches the same dataset, of the same length, on every worker.",
            )
    check_finite(report.loss, step)


def check_finite(loss: float, step: int) -> None:
    """Check the loss of a step over all rows. Raises NonFiniteLoss: it is no number."""
    if not isfinite(loss):
        raise NonFiniteLoss(
            f"the loss of step {step} is {loss}.",
            hint="Lower the learning rate, clip the gradients, or look for a division by zero.",
        )


def waits_of(paces: Sequence[StepPace]) -> dict[str, float]:
    """What the workers' waits for an exchange were: that of the one which waited least is the exchange, and what others
    waited longer they waited for that one. Nothing where fewer than two can tell."""
    shares = [min(1.0, pace.exposed_s / pace.elapsed_s) for pace in paces if pace.elapsed_s > 0]
    if len(shares) < 2:
        return {}
    return {"exchange_fraction": min(shares), "idle_fraction": fmean(shares) - min(shares)}


class StepRecorder:
    """Makes the records of committed steps, with the pace since the commit before.

    Attributes:
        pace: that of the newest of them.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._committed_at = perf_counter()
        self._exposed_s = self._loading_s = 0.0
        self.pace = UNPACED
        self._untold: int | None = None

    def tell_waits(self, word: Tensor) -> None:
        """Add how long members waited in the step before to its record: only this reduced word tells it."""
        member = self._member
        paces = member.layout.paces(word, workers=member.generation.plan.world)
        member.reporter.amend(waits_of(paces))

    def records(
        self,
        epoch: Epoch,
        offset: int,
        reports: Sequence[StepReport],
        names: Sequence[str],
        shards: Sequence[int] | None = None,
    ) -> list[StepRecord]:
        """One record for each step that is committed now, from the one at `offset` to the newest.

        Args:
            names: of the metrics, in the order of the reports' values.
            shards: those whose rows are in the steps; None: all.
        """
        member = self._member
        first, since = member.progress.step - len(reports) + 1, self._committed_at
        step_s, exposed, loading = self._pace(len(reports))
        self._trace(first, since)
        records = []
        for k, report in enumerate(reports):
            member.warnings.note_metrics(names, report.values)
            # Not strict: a report has room for as many values as a step may have, and the rest is zero.
            values = {
                **member.held.rates.told(first + k),
                **dict(zip(names, report.values, strict=False)),
                "loss": report.loss,
                "samples_per_s": epoch.batch_rows(offset + k) / step_s,
                "world_size": float(member.generation.plan.world),
                "comm_exposed_fraction": exposed,
                "loading_fraction": loading,
                **member.laying.traffic(),
                **(member.scaling.told() if member.scaling else {}),
            }
            present = range(epoch.shards) if shards is None else shards
            ledger = ledger_of(member, epoch, ((offset + k, shard) for shard in present))
            records.append(StepRecord(first + k, member.generation.number, values, *ledger))
        return records

    def follow(self, steps: int) -> None:
        """Record that so many steps were committed, whose records are made elsewhere.

        Inside of another activity, a heal for example, they join the window of the next ones.
        """
        if not steps:
            return
        timeline, first = self._member.timeline, self._member.progress.step - steps + 1
        first = min(first, first if self._untold is None else self._untold)
        self._untold = first if timeline.inside else None
        if not timeline.inside:
            since, self._committed_at = self._committed_at, perf_counter()
            self._trace(first, since)

    def close(self) -> None:
        """Report the timeline after the last step, which belongs to no step."""
        if self._untold is not None:
            self.follow(self._member.progress.step - self._untold + 1)
        since, self._committed_at = self._committed_at, perf_counter()
        self._trace(self._member.progress.step + 1, since)

    def _trace(self, first: int, since: float) -> None:
        member = self._member
        if not member.timeline.on:
            return
        stretch = member.timeline.cut(
            first=first,
            last=member.progress.step,
            generation=member.generation.number,
            rank=member.generation.rank,
            since=since,
            until=self._committed_at,
        )
        member.reporter.trace(stretch)

    def _pace(self, steps: int) -> tuple[float, float, float]:
        """Seconds a step took since the commit before, and the shares of exposed communication and of loading."""
        member, loading_s = self._member, self._member.split.loading_s
        now, exposed_s = perf_counter(), member.split.exposed_s + member.generation.exchange.exposed_s
        # A clock may not have moved since, and the pace divides by this.
        elapsed_s = max(now - self._committed_at, 1e-9)
        self.pace = StepPace(elapsed_s, exposed_s - self._exposed_s)
        exposed = min(1.0, self.pace.exposed_s / elapsed_s)
        loading = min(1.0, (loading_s - self._loading_s) / elapsed_s)
        self._committed_at, self._exposed_s, self._loading_s = now, exposed_s, loading_s
        return elapsed_s / steps, exposed, loading


def ledger_of(member: Member, epoch: Epoch, slices: Iterable[tuple[int, int]]) -> tuple[np.ndarray, ...]:
    """(n,) int32 shard and (n,) int64 row of every row of these slices, by offset and shard; empty where the job has no
    ledger."""
    if not member.spec.debug.ledger:
        return ()
    rows = [(shard, epoch.rows(offset, shard)) for offset, shard in slices]
    shards = [np.full(len(those), shard, dtype=np.int32) for shard, those in rows]
    return np.concatenate(shards), np.concatenate([those for _, those in rows])
