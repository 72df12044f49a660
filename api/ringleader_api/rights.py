"""The permission table and the one question asked of it, decided from the caller's roles alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ringleader.wire.access import EVERY, Role


class Action(StrEnum):
    """The actions in a project. Those below the line concern all projects and are asked with EVERY."""

    READ = "read"
    SUBMIT = "submit jobs"
    STEER_OWN = "change their own jobs"
    STEER = "change other users' jobs"
    BREAK = "inject faults"
    KEEP_SECRETS = "set or delete secrets"
    KEEP_ALERTS = "set, test or delete alerts"
    GRANT = "grant or remove roles"
    AUDIT = "read the audit log"
    # ---
    WATCH = "read the control plane's health and metrics"
    TRACK = "use MLflow's own page"
    FOUND = "create projects or change their quotas"
    ADMIT = "manage users or their tokens"


NEEDS: Mapping[Action, Role] = {
    Action.READ: Role.VIEWER,
    Action.SUBMIT: Role.SUBMITTER,
    Action.STEER_OWN: Role.SUBMITTER,
    Action.STEER: Role.OPERATOR,
    Action.BREAK: Role.OPERATOR,
    Action.KEEP_SECRETS: Role.OPERATOR,
    Action.KEEP_ALERTS: Role.OPERATOR,
    Action.GRANT: Role.ADMIN,
    Action.AUDIT: Role.ADMIN,
    Action.WATCH: Role.VIEWER,
    Action.TRACK: Role.OPERATOR,
    Action.FOUND: Role.ADMIN,
    Action.ADMIT: Role.ADMIN,
}
"""The least role for each action."""

WHOLE: Mapping[str, Role] = {EVERY: Role.ADMIN}
"""The scope of a credential that leaves its user's roles as they are."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A user with the rights of one credential.

    Attributes:
        roles: the user's role by project; EVERY for all projects.
        scope: the same for the credential: nobody does more through it than it allows.
        token: the id of the token behind it; None for a log-in through the identity provider.
        expires_at: when the credential ends by itself.
    """

    name: str
    roles: Mapping[str, Role]
    scope: Mapping[str, Role]
    token: str | None
    expires_at: datetime | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the credential is as good as its user: only such ones create and revoke others."""
        return self.scope.get(EVERY) is Role.ADMIN


@dataclass(frozen=True, slots=True)
class SupervisorCaller:
    """A supervisor, which may post records of one attempt of one job, and nothing else."""

    job_id: str
    attempt: int


Principal = Caller | SupervisorCaller


def may(who: Caller, action: Action, project: str) -> bool:
    """Whether `who` may do `action` in `project` (EVERY: in all of them)."""
    held = role_in(who, project)
    return held is not None and held.rank >= NEEDS[action].rank


def role_in(who: Caller, project: str) -> Role | None:
    """The role that the user has in the project and the credential leaves them."""
    user, scope = _greatest(who.roles, project), _greatest(who.scope, project)
    if user is None or scope is None:
        return None
    # The smaller of the two: a token can narrow what its user may do, never widen it.
    return min(user, scope, key=lambda role: role.rank)


def roles_of(who: Caller) -> dict[str, Role]:
    """The roles, by project, that the credential leaves its user."""
    found = {project: role_in(who, project) for project in {*who.roles, *who.scope}}
    return {project: role for project, role in sorted(found.items()) if role is not None}


def visible(who: Caller) -> frozenset[str] | None:
    """The projects whose jobs `who` may read; None: all."""
    return where(who, Action.READ)


def where(who: Caller, action: Action) -> frozenset[str] | None:
    """The projects in which `who` may do `action`; None: all."""
    # None instead of a list: a query then needs no condition, and a project made meanwhile is included.
    if may(who, action, EVERY):
        return None
    return frozenset(project for project in roles_of(who) if may(who, action, project))


def _greatest(roles: Mapping[str, Role], project: str) -> Role | None:
    held = [roles[name] for name in (project, EVERY) if name in roles]
    return max(held, key=lambda role: role.rank, default=None)
