"""Sweeps: made once their first trial has been checked, read, paused, resumed and cancelled. What they do is the
reconciler's (`reconciling.sweeping`)."""

import re
from collections.abc import Collection
from importlib.util import find_spec
from typing import Any

from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ringleader.spec import JobSpec
from ringleader.spec.sweep import SweepSpec
from ringleader.wire.sweeps import SweepPage, SweepPreview, SweepState, SweepView, TrialPage
from ringleader.wire.views import Why
from ringleader_api.clock import Clock, new_id
from ringleader_api.log import Log
from ringleader_api.problems import Conflict, NotFound, Unprocessable
from ringleader_api.rights import Action, Caller, may
from ringleader_api.scheduling import Seen
from ringleader_api.scheduling.sweep_points import Point, points_of
from ringleader_api.services.jobs.submission import Preview, Submissions, digest_of, same_body
from ringleader_api.services.pages import ListCursors
from ringleader_api.services.sweeps.trials import known_trials
from ringleader_api.services.sweeps.views import sweep_view, trial_view
from ringleader_api.services.users.access import have_project, permit
from ringleader_api.store import Store, audit
from ringleader_api.store.people import Project
from ringleader_api.store.sweeps import Sweep, SweepTrial

_KEYS = ListCursors(re.compile(r"sweeps/(sweep_[0-9A-Z]{26})"))
SHOWN_POINTS = 10
MOST_OPEN = 20
"""The most sweeps of a project that are not closed: each round of the reconciler looks at all of them."""

log = Log("ringleader.sweeps")


class Sweeps:
    """Makes, reads and changes sweeps."""

    def __init__(self, store: Store, submissions: Submissions, now: Clock) -> None:
        self._store = store
        self._submissions = submissions
        self._now = now

    def create(self, who: Caller, body: Any, key: str | None, seen: Seen | None) -> tuple[SweepView, bool]:
        """Store a sweep; its trials are submitted by the reconciler.

        Returns:
            The sweep, and whether it is new: with the key of one before it is that one.

        Raises:
            SpecInvalid: the body is no sweep file, or a trial's job file would be wrong.
            Unprocessable: its method needs a library that is missing, or the first trial is refused.
            Conflict: the key was used for another body, or the project has as many sweeps as it may.
            NotFound, Forbidden: `who` may not submit such jobs.
        """
        digest = digest_of(body, key)
        if key is not None and (known := self._made_before(who.name, key, digest)):
            return self.view(who, known), False
        spec, points, _ = self._checked(who, body, seen)
        try:
            return self.view(who, self._store_new(who, spec, points, key, digest)), True
        except IntegrityError:
            # Another request with this key was stored at this moment.
            if key is None or not (known := self._made_before(who.name, key, digest)):
                raise
            return self.view(who, known), False

    def preview(self, who: Caller, body: Any, seen: Seen | None) -> SweepPreview:
        """Run the same checks; nothing is stored."""
        spec, points, first = self._checked(who, body, seen)
        return SweepPreview(
            trials=spec.size,
            rungs=list(spec.rungs),
            points=(points or [])[:SHOWN_POINTS],
            job=first.spec,
            starts_now=first.starts_now,
            pending_reason=first.pending_reason,
        )

    def page(self, limit: int, cursor: str | None, projects: Collection[str] | None) -> SweepPage:
        """The sweeps of these projects (None: all), newest first; `cursor` continues behind the last of the page
        before."""
        query = select(Sweep).order_by(Sweep.id.desc()).limit(limit + 1)
        if projects is not None:
            query = query.where(Sweep.project.in_(projects))
        if cursor is not None:
            query = query.where(Sweep.id < _KEYS.parts(cursor)[0])
        with self._store.read() as session:
            rows = session.scalars(query).all()
            items = [view for row in rows[:limit] if (view := _readable_view(session, row)) is not None]
        more = len(rows) > limit
        return SweepPage(
            items=items, next_cursor=_KEYS.cursor(f"sweeps/{rows[limit - 1].id}") if more else None
        )

    def view(self, who: Caller, sweep_id: str) -> SweepView:
        with self._store.read() as session:
            row = _load(session, who, sweep_id)
            return sweep_view(row, known_trials(session, row, points=False))

    def trials(self, who: Caller, sweep_id: str) -> TrialPage:
        """All trials of the sweep, by number."""
        with self._store.read() as session:
            row = _load(session, who, sweep_id)
            return TrialPage(items=[trial_view(one) for one in known_trials(session, row)])

    def cancel(self, who: Caller, sweep_id: str) -> SweepView:
        """End the sweep; the reconciler cancels its jobs. Cancelling twice is cancelling once.

        Raises:
            Conflict: it has ended by itself.
        """
        why = Why(code="cancelled", message=f"cancelled by {who.name}")
        return self._change(who, sweep_id, SweepState.CANCELLED, why)

    def pause(self, who: Caller, sweep_id: str) -> SweepView:
        """Pause the jobs of the sweep that are at work; none is submitted meanwhile.

        Raises:
            Conflict: it has ended.
        """
        why = Why(
            code="paused", message=f"paused by {who.name}", hint="`ringleader sweeps resume` continues it."
        )
        return self._change(who, sweep_id, SweepState.PAUSED, why)

    def resume(self, who: Caller, sweep_id: str) -> SweepView:
        """Go on with a paused sweep, and with the jobs that it had paused.

        Raises:
            Conflict: it has ended.
        """
        return self._change(who, sweep_id, SweepState.RUNNING, None)

    def _change(self, who: Caller, sweep_id: str, to: SweepState, why: Why | None) -> SweepView:
        with self._store.read() as session:
            row = _load(session, who, sweep_id)
        permit(who, Action.STEER_OWN if row.owner == who.name else Action.STEER, row.project)
        with self._store.write() as session:
            row = _load(session, who, sweep_id, lock=True)
            if row.state.ended and row.state is not to:
                raise Conflict(f"sweep {sweep_id} has already ended: it is {row.state}.", code="sweep_ended")
            if row.state is not to:
                row.state = to
                row.reason = why.model_dump() if why is not None else None
                row.finished_at = self._now() if to.ended else None
            return sweep_view(row, known_trials(session, row))

    def _checked(
        self, who: Caller, body: Any, seen: Seen | None
    ) -> tuple[SweepSpec, list[Point] | None, Preview]:
        """The sweep, the points of its trials, and the decision on the first one now."""
        spec = SweepSpec.parse(body)
        permit(who, Action.SUBMIT, spec.project)
        # Looked for without importing it, which takes a while: no point is drawn by it here.
        if spec.method == "optuna" and find_spec("optuna") is None:
            raise Unprocessable(
                "the method optuna needs the library optuna, which the control plane does not have.",
                hint="Install ringleader[optuna] where the control plane runs, or choose grid, random or sobol.",
                code="optuna_missing",
            )
        points = points_of(spec)
        first = points[0] if points is not None else any_point(spec)
        preview = self._submissions.preview(who, spec.job_file(0, first), seen)
        # All of them now: a trial that is refused only when its turn comes would leave its point untried.
        for number, point in enumerate(points or ()):
            JobSpec.parse(spec.job_file(number, point))
        return spec, points, preview

    def _store_new(
        self, who: Caller, spec: SweepSpec, points: list[Point] | None, key: str | None, digest: str
    ) -> str:
        """Store the sweep with all its trials; returns its id."""
        sweep_id, at = new_id("sweep"), self._now()
        audit.about(project=spec.project, target=sweep_id)
        with self._store.write() as session:
            have_project(session, who, spec.project, Project(name=spec.project, created_at=at))
            _have_room(session, spec.project)
            row = Sweep(
                id=sweep_id,
                name=spec.name,
                project=spec.project,
                owner=who.name,
                scope={project: role.value for project, role in who.scope.items()},
                spec=spec.model_dump(mode="json", exclude_none=True),
                state=SweepState.RUNNING,
                closed=False,
                created_at=at,
                key=key,
                body_sha256=digest,
            )
            session.add(row)
            session.flush()
            for number in range(spec.size):
                point = points[number] if points is not None else None
                session.add(
                    SweepTrial(sweep_id=sweep_id, number=number, point=point, scores=[], scored_at=[])
                )
        return sweep_id

    def _made_before(self, owner: str, key: str, digest: str) -> str | None:
        query = select(Sweep.id, Sweep.body_sha256).where(Sweep.owner == owner, Sweep.key == key)
        with self._store.read() as session:
            found = session.execute(query).one_or_none()
        if found is None:
            return None
        same_body(key, found.body_sha256, digest, "sweep")
        return str(found.id)


def any_point(spec: SweepSpec) -> Point:
    """A point of the space, for a check of the job file where the points depend on scores."""
    drawn = points_of(spec.model_copy(update={"method": "random", "trials": 1}))
    assert drawn is not None
    return drawn[0]


def _have_room(session: Session, project: str) -> None:
    still_open = select(func.count()).where(Sweep.project == project, Sweep.closed.is_(False))
    if (there := session.scalar(still_open) or 0) >= MOST_OPEN:
        raise Conflict(
            f"project {project} has {there} sweeps that have not ended; at most {MOST_OPEN} may be open at once.",
            code="too_many_sweeps",
        )


def _readable_view(session: Session, row: Sweep) -> SweepView | None:
    """The sweep as the API shows it; None where the stored sweep file is none to this version."""
    try:
        return sweep_view(row, known_trials(session, row, points=False))
    except ValidationError as error:
        # It must not keep the others from being shown.
        log.warning("sweep.unreadable", sweep=row.id, wrong_keys=error.error_count())
        return None


def _load(session: Session, who: Caller, sweep_id: str, *, lock: bool = False) -> Sweep:
    """The sweep's row. Raises NotFound: there is none, or `who` may not know of it."""
    row = session.get(Sweep, sweep_id, with_for_update=lock)
    if row is None or not may(who, Action.READ, row.project):
        raise NotFound(
            f"there is no sweep {sweep_id!r}.", hint="GET /api/v1/sweeps lists the sweeps that you can read."
        )
    audit.about(project=row.project, target=sweep_id)
    return row
