"""Access to a job or a project. One that the caller may not see is answered as if it did not exist."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from ringleader.wire.access import EVERY, Role
from ringleader_api.problems import Forbidden, NotFound
from ringleader_api.rights import NEEDS, Action, Caller, may, roles_of
from ringleader_api.store import Store, audit
from ringleader_api.store.database import WRITES
from ringleader_api.store.people import Project, RoleRow, User
from ringleader_api.store.tables import Job

_WHOSE = select(Job.project, Job.owner).where(Job.id == bindparam("job_id"), Job.deleted_at.is_(None))
_PROJECT = select(Project.name).where(Project.name == bindparam("name"))


def load(session: Session, job_id: str) -> Job:
    """The job's row; inside a write transaction it is locked until the commit.

    Raises:
        NotFound: there is no such job, or it was deleted.
    """
    job = session.get(Job, job_id, with_for_update=session.info.get(WRITES, False))
    if job is None or job.deleted_at is not None:
        raise no_job(job_id)
    return job


def caller(
    session: Session,
    name: str,
    scope: Mapping[str, Role],
    token: str | None = None,
    expires_at: datetime | None = None,
) -> Caller | None:
    """The user with the rights that they have now, within this scope; None: there is none, or they were disabled."""
    user = session.get(User, name)
    if user is None or user.disabled_at is not None:
        return None
    rows = session.scalars(select(RoleRow).where(RoleRow.user == name))
    roles = {row.project: Role(row.role) for row in rows}
    return Caller(name, roles, scope, token, expires_at)


def permit(who: Caller, action: Action, project: str) -> None:
    """Refuse unless `who` may do `action` in `project` (EVERY: in all of them).

    Raises:
        NotFound: `who` may not know of the project.
        Forbidden: they may, but not do this.
    """
    # Before the check: an admin of the project sees in the audit log what was refused there, too.
    if project != EVERY:
        audit.about(project=project)
    if may(who, action, project):
        return
    # 404 rather than 403: a refusal would tell that the project exists.
    if project != EVERY and not may(who, Action.READ, project):
        raise no_project(project)
    where = "" if project == EVERY else f" in project {project}"
    there = "all projects" if project == EVERY else "this project"
    raise Forbidden(
        f"{who.name} is not allowed to {action}{where}.",
        hint=f"This needs the role {NEEDS[action]} in {there}, granted by an admin, and a token whose scope includes "
        "it.",
    )


def permit_somewhere(who: Caller, action: Action) -> None:
    """Refuse unless there is a project in which `who` may do `action`.

    Raises:
        Forbidden: there is none. Where they know one project only, its admins are told.
    """
    known = roles_of(who)
    if any(may(who, action, project) for project in known):
        return
    if len(known) == 1:
        audit.about(project=next(iter(known)))
    raise Forbidden(
        f"{who.name} is not allowed to {action} in any project.",
        hint=f"This needs the role {NEEDS[action]} in a project, granted by an admin, and a token whose scope "
        "includes it.",
    )


def permit_job(store: Store, who: Caller, action: Action, job_id: str) -> None:
    """The same for the job's project; a job's owner may steer it with a smaller role.

    Raises:
        NotFound: there is no such job, or `who` may not know of it.
        Forbidden: they may, but not do this.
    """
    # Without a session, and before the transaction: each request for a job comes this way.
    # What is read here stays true: neither project nor owner of a job ever changes.
    rows = store.rows(_WHOSE, job_id=job_id)
    if not rows or not may(who, Action.READ, rows[0].project):
        raise no_job(job_id)
    found = rows[0]
    audit.about(project=found.project, target=job_id)
    if action is Action.STEER and found.owner == who.name:
        action = Action.STEER_OWN
    permit(who, action, found.project)


def have_project(session: Session, who: Caller, project: str, add: Project) -> None:
    """Make the project if it does not exist; only those who may make projects come this far without it.

    Raises:
        NotFound: it is not there, and `who` may not make it.
    """
    if not session.execute(_PROJECT, {"name": project}).first():
        if not may(who, Action.FOUND, EVERY):
            raise no_project(project)
        session.add(add)


def no_project(project: str) -> NotFound:
    return NotFound(
        f"there is no project {project!r}.", hint="GET /api/v1/projects lists the projects that you can use."
    )


def no_job(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id!r}.", hint="GET /api/v1/jobs lists the jobs that you can read.")
