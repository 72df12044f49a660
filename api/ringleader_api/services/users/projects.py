"""Projects, which jobs, roles and secrets belong to."""

import re

from sqlalchemy import select

from ringleader.wire.access import Held, ProjectPage, ProjectView, Quota, Role
from ringleader_api.clock import Clock
from ringleader_api.problems import Conflict, NotFound
from ringleader_api.rights import Caller, role_in, visible
from ringleader_api.services.jobs.claims import Register, held_by
from ringleader_api.services.pages import ListCursors
from ringleader_api.store import Store, audit
from ringleader_api.store.people import Project

_KEYS = ListCursors(re.compile(r"projects/([^\0]+)"))


class Projects:
    def __init__(self, store: Store, now: Clock) -> None:
        self._store = store
        self._now = now

    def page(self, who: Caller, limit: int, cursor: str | None) -> ProjectPage:
        """The projects in which the caller has a role, by name; `cursor` continues behind the last of the page
        before."""
        query = select(Project).order_by(Project.name).limit(limit + 1)
        if (theirs := visible(who)) is not None:
            query = query.where(Project.name.in_(theirs))
        if cursor is not None:
            query = query.where(Project.name > _KEYS.parts(cursor)[0])
        with self._store.read() as session:
            rows = session.scalars(query).all()
            held = held_by(Register().jobs(session), self._now())
        found = [(row, role_in(who, row.name)) for row in rows[:limit]]
        items = [_view(row, role, held.get(row.name)) for row, role in found if role]
        more = len(rows) > limit
        return ProjectPage(
            items=items, next_cursor=_KEYS.cursor(f"projects/{items[-1].name}") if more else None
        )

    def add(self, who: Caller, name: str) -> ProjectView:
        """Create a project. Raises Conflict: the name is taken."""
        audit.about(project=name)
        with self._store.write() as session:
            if session.get(Project, name) is not None:
                raise Conflict(f"the project {name!r} already exists.", code="project_exists")
            row = Project(name=name, created_at=self._now(), weight=1.0)
            session.add(row)
        role = role_in(who, name)
        assert role is not None, "who makes projects has a role in all of them"
        return _view(row, role)

    def share(self, who: Caller, name: str, weight: float | None, quota: Quota | None) -> ProjectView:
        """Set a project's weight and quotas; None leaves them, and so does a limit that the quota does not name.

        Raises:
            NotFound: there is no such project.
        """
        audit.about(project=name)
        with self._store.write() as session:
            row = session.get(Project, name)
            if row is None:
                raise NotFound(f"there is no project {name!r}.")
            row.weight = row.weight if weight is None else weight
            held = held_by(Register().jobs(session), self._now()).get(name)
            # `exclude_unset`: null lifts a limit, a limit that is left out stays.
            for key, limit in (quota.model_dump(exclude_unset=True) if quota is not None else {}).items():
                setattr(row, f"quota_{key}", limit)
        role = role_in(who, name)
        assert role is not None, "who shares out projects has a role in all of them"
        return _view(row, role, held)


def _view(row: Project, role: Role, held: Held | None = None) -> ProjectView:
    quota = Quota(workers=row.quota_workers, cpus=row.quota_cpus, gpus=row.quota_gpus)
    return ProjectView(
        name=row.name,
        role=role,
        created_at=row.created_at,
        weight=row.weight,
        quota=quota,
        held=held or Held(),
    )
