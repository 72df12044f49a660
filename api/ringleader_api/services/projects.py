"""Projects: what jobs, roles and secrets belong to."""

from sqlalchemy import select

from ringleader.wire.access import ProjectPage, ProjectView
from ringleader_api.clock import Clock
from ringleader_api.problems import Conflict
from ringleader_api.rights import Caller, role_in
from ringleader_api.store import Store, audit
from ringleader_api.store.people import Project


class Projects:
    def __init__(self, store: Store, now: Clock) -> None:
        self._store = store
        self._now = now

    def page(self, who: Caller) -> ProjectPage:
        """Those in which the caller has a role, by name."""
        with self._store.read() as session:
            rows = session.scalars(select(Project).order_by(Project.name)).all()
        found = [(row, role_in(who, row.name)) for row in rows]
        return ProjectPage(
            items=[ProjectView(name=p.name, role=role, created_at=p.created_at) for p, role in found if role]
        )

    def add(self, who: Caller, name: str) -> ProjectView:
        """Raises Conflict: the name is taken."""
        audit.about(project=name)
        with self._store.write() as session:
            if session.get(Project, name) is not None:
                raise Conflict(f"there is a project {name!r} already.", code="project_exists")
            row = Project(name=name, created_at=self._now())
            session.add(row)
        role = role_in(who, name)
        assert role is not None, "who makes projects has a role in all of them"
        return ProjectView(name=name, role=role, created_at=row.created_at)
