"""Access as the API shows it: roles, users, tokens, projects, secrets and the audit log."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from ringleader.wire.views import View

EVERY = "*"
"""In the place of a project: all of them, also those to come."""

ProjectName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
ProjectOrEvery = Annotated[
    str, Field(min_length=1, max_length=100, pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]*)$")
]
UserName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$")]
SecretName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Role(StrEnum):
    """The rights of a user in a project; each role has the rights of those before it."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        return _ORDER.index(self)


# Outside the class, in which it would become a role itself.
_ORDER = tuple(Role)
Roles = dict[ProjectOrEvery, Role]


class MeView(View):
    """The calling user. `roles` are those of the user's roles that the credential allows; `longest_token_s` is the
    longest lifetime of a token that they create now, null for no limit."""

    name: str
    roles: Roles
    token: str | None
    longest_token_s: float | None = None


class UserView(View):
    """A user. One with `disabled_at` is refused everywhere."""

    name: str
    roles: Roles
    created_at: datetime
    disabled_at: datetime | None


class UserPage(View):
    items: list[UserView]
    next_cursor: str | None = None


class TokenView(View):
    """A token without its secret: `prefix` is its beginning. `scope` limits the roles of its user."""

    id: str
    user: str
    name: str
    prefix: str
    scope: Roles
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewTokenView(TokenView):
    """The only answer that contains the token itself."""

    token: str


class TokenPage(View):
    items: list[TokenView]
    next_cursor: str | None = None


class Quota(View):
    """The most that the jobs of a project may hold at once, parameter servers included; null means no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] | None = None
    cpus: Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)] | None = None
    gpus: Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)] | None = None


Weight = Annotated[float, Field(strict=True, ge=0.001, le=1000, allow_inf_nan=False)]


class Held(View):
    """The resources that the active jobs of a project hold, parameter servers included, and how many jobs wait."""

    workers: int = 0
    cpus: float = 0.0
    gpus: float = 0.0
    jobs: int = 0
    waiting: int = 0


class ProjectView(View):
    """A project: the caller's role in it, its weight among the projects, its quota, and what its jobs hold."""

    name: str
    role: Role
    created_at: datetime
    weight: float = 1.0
    quota: Quota = Quota()
    held: Held = Held()


class ProjectPage(View):
    items: list[ProjectView]
    next_cursor: str | None = None


class SecretView(View):
    """A secret's name. Its value never leaves the control plane, except for the jobs that name it."""

    project: str
    name: str
    set_by: str
    set_at: datetime


class SecretPage(View):
    items: list[SecretView]
    next_cursor: str | None = None


class AuditEntry(View):
    """One request that changed something or was refused: `outcome` is `done`, or the status of its answer."""

    id: int
    at: datetime
    who: str
    token: str | None
    method: str
    path: str
    project: str
    target: str
    outcome: str
    source: str
    request_id: str


class AuditPage(View):
    """Newest first; `next` is the value of `before` for the next page, null on the last one."""

    items: list[AuditEntry]
    next: int | None
