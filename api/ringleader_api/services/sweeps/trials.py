"""The trials of a sweep as they are known: their rows, their jobs' states and the newest value of their metric."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, select
from sqlalchemy.orm import Session, defer

from ringleader.spec.sweep import SweepSpec
from ringleader.wire.states import State
from ringleader.wire.sweeps import TrialState
from ringleader_api.scheduling.sweeps import SweepSnapshot, Trial
from ringleader_api.store.sweeps import Sweep, SweepTrial
from ringleader_api.store.tables import Job, Metric, MetricSummary


@dataclass(frozen=True, slots=True)
class KnownTrial:
    """A trial's row, and what its job has come to.

    Attributes:
        job: the state of its job; None where it has none, or where that was deleted.
        step: the newest step of its job.
        value, value_step: the newest value of the metric, and its step.
        why: why its job could not be submitted or has failed.
        rungs: how many the sweep has.
    """

    row: SweepTrial
    job: State | None
    step: int
    value: float | None
    value_step: int | None
    result: dict[str, Any] | None
    why: dict[str, Any] | None
    rungs: int

    @property
    def state(self) -> TrialState:
        if self.job is not None:
            return TrialState.of_job(self.job)
        if self.row.job_id is None:
            return TrialState.FAILED if self.row.reason is not None else TrialState.WAITING
        # Only jobs that have ended are deleted. One that had come to its end has all its scores.
        return TrialState.SUCCEEDED if len(self.row.scores) > self.rungs else TrialState.CANCELLED

    @property
    def trial(self) -> Trial:
        row = self.row
        begun = self.step > 0 or bool(row.scores)
        return Trial(row.number, self.state, row.rung, tuple(row.scores), row.held, begun)


def known_trials(session: Session, sweep: Sweep, *, points: bool = True) -> list[KnownTrial]:
    """All trials of the sweep, by number. `points`: with their points, which may be megabytes."""
    metric = sweep.spec["metric"]["name"]
    newest = and_(MetricSummary.job_id == SweepTrial.job_id, MetricSummary.name == metric)
    query = (
        select(
            SweepTrial,
            Job.state,
            Job.step,
            MetricSummary.last,
            MetricSummary.last_step,
            Job.result,
            Job.reason,
        )
        .outerjoin(Job, and_(Job.id == SweepTrial.job_id, Job.deleted_at.is_(None)))
        .outerjoin(MetricSummary, newest)
        .where(SweepTrial.sweep_id == sweep.id)
        .order_by(SweepTrial.number)
        .options(*([] if points else [defer(SweepTrial.point, raiseload=True)]))
    )
    rungs = len(SweepSpec.model_validate(sweep.spec).rungs)
    return [
        KnownTrial(row, state, step or 0, value, value_step, result, _why(row, state, reason), rungs)
        for row, state, step, value, value_step, result, reason in session.execute(query)
    ]


def _why(row: SweepTrial, state: State | None, reason: dict[str, Any] | None) -> dict[str, Any] | None:
    return reason if state is State.FAILED else row.reason


def snapshot_of_sweep(sweep: Sweep, spec: SweepSpec, known: Sequence[KnownTrial]) -> SweepSnapshot:
    """The input of a decision on the sweep."""
    asha = spec.promotion.asha if spec.promotion is not None else None
    return SweepSnapshot(
        state=sweep.state,
        trials=[one.trial for one in known],
        rungs=len(spec.rungs),
        reduction=asha.reduction if asha is not None else 2,
        parallel=spec.parallel,
        maximize=spec.metric.goal == "maximize",
    )


def new_scores(session: Session, spec: SweepSpec, one: KnownTrial) -> list[float]:
    """The scores that a trial has come to since its last ones were stored: at its rung the first value there or behind
    it, whatever step the job has reached meanwhile; of a job that has succeeded also the last value, at its end."""
    rungs, scores = spec.rungs, one.row.scores
    if one.state is TrialState.SUCCEEDED and len(scores) <= len(rungs):
        value = _final(spec, one)
        if value is None:
            return []
        reached = [_value_behind(session, spec, one, rungs[rung]) for rung in range(len(scores), len(rungs))]
        return [*(value if score is None else score for score in reached), value]
    rung = one.row.rung
    if one.state.ended or len(scores) > rung or rung >= len(rungs) or (one.value_step or -1) < rungs[rung]:
        return []
    value = _value_behind(session, spec, one, rungs[rung])
    return [] if value is None else [value]


def _final(spec: SweepSpec, one: KnownTrial) -> float | None:
    if one.value is not None:
        return one.value
    scores = (one.result or {}).get("scores", {})
    value = scores.get(spec.metric.name)
    return float(value) if isinstance(value, (int, float)) else None


def _value_behind(session: Session, spec: SweepSpec, one: KnownTrial, step: int) -> float | None:
    query = select(Metric.value).where(
        Metric.job_id == one.row.job_id, Metric.name == spec.metric.name, Metric.step >= step
    )
    return session.scalar(query.order_by(Metric.step).limit(1))
