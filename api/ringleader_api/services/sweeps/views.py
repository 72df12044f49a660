"""Sweeps and trials as the API shows them."""

from collections.abc import Sequence
from datetime import UTC, datetime

from ringleader.spec.sweep import SweepSpec
from ringleader.wire.sweeps import BestPoint, SweepView, TrialState, TrialView
from ringleader.wire.views import Why
from ringleader_api.scheduling.sweeps import leader_of
from ringleader_api.services.sweeps.trials import KnownTrial, snapshot_of_sweep
from ringleader_api.store.sweeps import Sweep


def sweep_view(row: Sweep, known: Sequence[KnownTrial]) -> SweepView:
    spec = SweepSpec.model_validate(row.spec)
    best = row.best if row.state.ended else leader_of(snapshot_of_sweep(row, spec, known))
    scores = next((one.row.scores for one in known if one.row.number == best), [])
    return SweepView(
        id=row.id,
        name=row.name,
        project=row.project,
        owner=row.owner,
        spec=row.spec,
        state=row.state,
        reason=Why(**row.reason) if row.reason else None,
        created_at=row.created_at,
        finished_at=row.finished_at,
        rungs=list(spec.rungs),
        trials=len(known),
        submitted=sum(one.row.job_id is not None for one in known),
        ended=sum(one.state.ended for one in known),
        best=best,
        best_score=scores[-1] if scores else None,
        improvements=_improvements(spec, known),
    )


def trial_view(one: KnownTrial) -> TrialView:
    row = one.row
    last = row.scores[-1] if row.scores else None
    return TrialView(
        number=row.number,
        state=one.state,
        point=row.point,
        job=row.job_id,
        job_state=one.job,
        rung=row.rung,
        scores=row.scores,
        score=last if one.state is TrialState.SUCCEEDED or one.value is None else one.value,
        step=one.step,
        reason=Why(**one.why) if one.why else None,
    )


def _improvements(spec: SweepSpec, known: Sequence[KnownTrial]) -> list[BestPoint]:
    sign = -1 if spec.metric.goal == "maximize" else 1
    told = sorted(
        (at, one.row.number, score)
        for one in known
        for score, at in zip(one.row.scores, one.row.scored_at, strict=True)
    )
    found: list[BestPoint] = []
    for at, number, score in told:
        if not found or sign * score < sign * found[-1].score:
            found.append(BestPoint(at=datetime.fromtimestamp(at, UTC), trial=number, score=score))
    return found
