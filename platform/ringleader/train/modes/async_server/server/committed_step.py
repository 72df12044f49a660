"""The commit of a step on the server that completes it, where items are leased: the new position and a record."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from ringleader.errors import StepMisuse
from ringleader.train.generation.member import Member
from ringleader.train.generation.settled_records import StepRecord
from ringleader.train.modes.async_server.server.apply_updates import AppliedItem
from ringleader.train.modes.async_server.server.gradient_sums import ReportMeans
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.step_checks import StepRecorder, ledger_of
from ringleader.train.state.fingerprints import first_difference, kept_prints


class StepCommits:
    """One member's commits, over all loops.

    Args:
        progress: called with the phase, once a step is committed.
    """

    def __init__(self, member: Member, recorder: StepRecorder, progress: Callable[[str], None]) -> None:
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
        rows = sum(len(loop.epoch.rows(*divmod(one.push.item, loop.epoch.shards))) for one in counted)
        member.progress.commit_step(rows=rows, loss=means.loss)
        member.progress.commit_update()
        with self._guarded():
            member.held.after_update(member.spec.seed, member.progress.step)
        self._recorder.follow(1)
        member.reporter.open([self._record(loop, counted, means, names, rows)])
        self._progress("committed")

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
        self,
        loop: BatchLoop,
        counted: Sequence[AppliedItem],
        means: ReportMeans,
        names: Sequence[str],
        rows: int,
    ) -> StepRecord:
        member = self._member
        now = perf_counter()
        step_s, self._committed_at = max(now - self._committed_at, 1e-9), now
        # By item and not by arrival, so that records and ledger do not depend on who came first.
        counted = sorted(counted, key=lambda one: one.push.item)
        slices = [divmod(one.push.item, loop.epoch.shards) for one in counted]
        staleness = [one.staleness for one in counted]
        member.warnings.note_metrics(names, means.values)
        values = {
            **member.held.rates.told(member.progress.step),
            **dict(zip(names, means.values, strict=False)),
            "loss": means.loss,
            "samples_per_s": rows / step_s,
            "world_size": float(member.generation.plan.world),
            "staleness_mean": sum(staleness) / len(staleness),
            "staleness_max": float(max(staleness)),
            **_shares(counted),
            **member.laying.traffic(),
        }
        ledger = ledger_of(member, loop.epoch, slices)
        return StepRecord(member.progress.step, member.generation.number, values, *ledger)


def _shares(counted: Sequence[AppliedItem]) -> dict[str, float]:
    """The shares of the workers' time in which they waited for the exchange, and for batches."""
    since_s = max(sum(one.push.since_s for one in counted), 1e-9)
    return {
        "comm_exposed_fraction": min(1.0, sum(one.push.exposed_s for one in counted) / since_s),
        "loading_fraction": min(1.0, sum(one.push.loading_s for one in counted) / since_s),
    }
