"""Steps of a loop whose items arrive in any order: a step is recorded, in order, when all its items are everywhere."""

from collections.abc import Mapping, Sequence

import numpy as np

from ringleader.train.generation.control_word import SliceReport, StepReport
from ringleader.train.generation.member import Member
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.step_checks import StepRecorder, check
from ringleader.train.modes.token_ring.gossip import Gossip
from ringleader.train.rows.order.batch_sizes import present_shards
from ringleader.train.rows.order.cursor import Epoch

FIXED = 4
"""Entries of a report before the metrics' values."""


def encode(report: SliceReport) -> np.ndarray:
    """(FIXED + metrics,) float64."""
    values = (float(value) for value in report.values)
    head = (report.weight, float(report.loss), report.checksum, report.names)
    return np.array([*head, *values], dtype=np.float64)


def step_report(reports: Mapping[int, np.ndarray]) -> StepReport:
    """The reports of one batch's slices, by shard, as one."""
    weights = np.array([report[0] for report in reports.values()])
    total = float(weights.sum())
    names = frozenset(int(report[3]) for report in reports.values())
    values: list[float] = []
    # Where names differ the rows may have different lengths; `check` refuses the step then.
    if len(names) == 1:
        table = np.stack([report[FIXED:] for report in reports.values()])
        values = (weights @ table / total).tolist()
    return StepReport(
        pending=False,
        stop=False,
        weight=total,
        loss=float(weights @ np.array([report[1] for report in reports.values()])) / total,
        values=values,
        checksums={shard: int(report[2]) for shard, report in reports.items()},
        names=names,
        used=[],
    )


def absent(epoch: Epoch) -> list[int]:
    """Items without rows: a short last batch may have fewer rows than shards."""
    last = epoch.steps - 1
    if last < 0:
        return []
    missing = set(range(epoch.shards)) - present_shards(epoch.batch_rows(last), epoch.shards)
    return [last * epoch.shards + shard for shard in sorted(missing)]


class SettledSteps:
    """Commits the steps of a loop at this member, and makes their records."""

    def __init__(self, member: Member, news: Gossip, recorder: StepRecorder) -> None:
        self._member = member
        self._news = news
        self._recorder = recorder

    def advance(self, epoch: Epoch, everywhere: ItemSet, names: Sequence[str]) -> int:
        """Commit the steps that are complete. Returns how many there are.

        Args:
            everywhere: items that nothing can take back.
            names: of the metrics.

        Raises:
            StepMisuse, CallMismatch, NonFiniteLoss: a report is not sound.
        """
        calls, first = self._member.progress.calls, self._member.progress.calls.offset
        reports = []
        while calls.offset < min(everywhere.floor // epoch.shards, epoch.steps):
            # In ascending order, so that the means have the same bits on every member.
            present = sorted(present_shards(epoch.batch_rows(calls.offset), epoch.shards))
            reports.append(self._commit(epoch, present))
        if reports:
            records = self._recorder.records(epoch, first, reports, names)
            self._member.reporter.open(records)
            self._news.drop(calls.offset * epoch.shards)
        return len(reports)

    def close(self, epoch: Epoch, items: ItemSet, names: Sequence[str]) -> None:
        """Commit as short steps those of which only some items are applied: the loop was ended early."""
        calls = self._member.progress.calls
        told = [item for item in sorted(self._news.reports) if item in items]
        for offset in sorted({item // epoch.shards for item in told if item >= calls.offset * epoch.shards}):
            # A batch of which no item is applied is no step: the offset passes over it.
            self._member.progress.skip_to(offset)
            shards = [item % epoch.shards for item in told if item // epoch.shards == offset]
            report = self._commit(epoch, shards)
            self._member.reporter.open(self._recorder.records(epoch, offset, [report], names, shards))

    def _commit(self, epoch: Epoch, shards: Sequence[int]) -> StepReport:
        member, offset = self._member, self._member.progress.calls.offset
        report = step_report({k: self._news.reports[offset * epoch.shards + k] for k in shards})
        check(report, epoch, offset, member.progress.step + 1, {k: (k,) for k in shards})
        rows = sum(len(epoch.rows(offset, k)) for k in shards)
        member.progress.commit_step(rows=rows, loss=report.loss)
        return report
