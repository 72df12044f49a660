"""The commit of a step on the server that completes it, where items are leased: the new position and a record."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from ringleader.errors import StepMisuse
from ringleader.train.generation.member import Member
from ringleader.train.generation.settled_records import StepRecord
from ringleader.train.modes.async_server.server.apply_updates import AppliedItem
from ringleader.train.modes.async_server.server.gradient_sums import ReportMeans
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.step_checks import StepRecorder
from ringleader.train.state.fingerprints import first_difference, kept_prints


class StepCommits:
    """One member's commits, over all loops.

    Args:
        progress: called with the loop and the phase, once a step of it is committed.
    """

    def __init__(
        self, member: Member, recorder: StepRecorder, progress: Callable[[BatchLoop, str], None]
    ) -> None:
        self._member = member
        self._recorder = recorder
        self._progress = progress
        self._committed_at = perf_counter()

    def commit(self, loop: BatchLoop, counted: Sequence[AppliedItem], names: Sequence[str]) -> None:
        """Commit a step that is complete on this server.

        Args:
            counted: the items that it is made of.
            names: of the metrics.
        """
        member = self._member
        means = ReportMeans.of([one.push for one in counted])
        rows = sum(len(_rows(loop, one.push.item)) for one in counted)
        member.progress.commit_step(rows=rows, loss=means.loss)
        member.progress.commit_update()
        with self._guarded():
            member.held.after_update(member.spec.seed, member.progress.step)
        self._recorder.follow(1)
        member.reporter.open([self._record(loop, counted, means, names)])
        self._progress(loop, "committed")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Refuse callbacks that change a kept object where this server has newest weights of its own part only: what it
        keeps lies in checkpoints, and goes to joiners. Raises StepMisuse."""
        held, sync = self._member.held, self._member.spec.sync
        if not (held.callbacks and held.kept) or self._member.generation.exchange.part is None:
            yield
            return
        before = kept_prints(held.kept)
        yield
        changed = first_difference(before, kept_prints(held.kept))
        if changed:
            raise StepMisuse(
                f"an on_commit callback changed the {changed}. With consistency: {sync.consistency} each of "
                f"{sync.server_count} servers has the weights of a new step for its own part only.",
                hint="Use servers: 1 or consistency: sync, or change it between loops.",
            )

    def _record(
        self, loop: BatchLoop, counted: Sequence[AppliedItem], means: ReportMeans, names: Sequence[str]
    ) -> StepRecord:
        member = self._member
        now = perf_counter()
        step_s, self._committed_at = max(now - self._committed_at, 1e-9), now
        # By item and not by arrival, so that records and ledger do not depend on who came first.
        counted = sorted(counted, key=lambda one: one.push.item)
        rows = [_rows(loop, one.push.item) for one in counted]
        staleness = [one.staleness for one in counted]
        values = dict(zip(names, means.values, strict=False)) | {
            "loss": means.loss,
            "samples_per_s": sum(map(len, rows)) / step_s,
            "world_size": float(member.generation.plan.world),
            "staleness_mean": sum(staleness) / len(staleness),
            "staleness_max": float(max(staleness)),
            "comm_exposed_fraction": _exposed(counted),
            **member.laying.traffic(),
        }
        record = StepRecord(member.progress.step, member.generation.number, values)
        if member.spec.debug.ledger:
            shards = [one.push.item % loop.epoch.shards for one in counted]
            record.shards = np.repeat(np.array(shards, dtype=np.int32), [len(r) for r in rows])
            record.rows = np.concatenate(rows)
        return record


def _exposed(counted: Sequence[AppliedItem]) -> float:
    """The share of the workers' time in which they waited for the exchange."""
    since_s = sum(one.push.since_s for one in counted)
    return min(1.0, sum(one.push.exposed_s for one in counted) / max(since_s, 1e-9))


def _rows(loop: BatchLoop, item: int) -> np.ndarray:
    return loop.epoch.rows(*divmod(item, loop.epoch.shards))
