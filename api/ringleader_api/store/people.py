"""The tables of access control: users, roles, tokens, projects, secrets, log-ins under way, the audit log."""

from datetime import datetime
from typing import Any

from sqlalchemy import Float, ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from ringleader_api.store.tables import Base, RowId


def _of_user() -> ForeignKey:
    return ForeignKey("users.name")


class User(Base):
    """A person or a service. Never deleted: jobs and the audit log name them.

    `subject` is who they are at the identity provider: issuer and subject.
    """

    __tablename__ = "users"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    subject: Mapped[str | None] = mapped_column(String(600), unique=True)
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]


class RoleRow(Base):
    """A user's role in a project; `*` is all projects."""

    __tablename__ = "roles"

    user: Mapped[str] = mapped_column(String(100), _of_user(), primary_key=True)
    project: Mapped[str] = mapped_column(String(100), primary_key=True)
    role: Mapped[str] = mapped_column(String(16))


class Token(Base):
    """A token, by its hash: 256 random bits need no salt and no slow hash."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    user: Mapped[str] = mapped_column(String(100), _of_user(), index=True)
    name: Mapped[str] = mapped_column(String(100))
    prefix: Mapped[str] = mapped_column(String(16))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    scope: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Project(Base):
    """A project, which jobs, secrets and roles belong to. `weight` is its due against the others; a quota of None is no
    limit."""

    __tablename__ = "projects"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    created_at: Mapped[datetime]
    weight: Mapped[float] = mapped_column(Float, default=1.0)
    quota_workers: Mapped[int | None]
    quota_cpus: Mapped[float | None] = mapped_column(Float)
    quota_gpus: Mapped[float | None] = mapped_column(Float)


class Secret(Base):
    """A secret of a project, encrypted."""

    __tablename__ = "secrets"

    project: Mapped[str] = mapped_column(String(100), ForeignKey("projects.name"), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    sealed: Mapped[bytes] = mapped_column(LargeBinary)
    set_by: Mapped[str] = mapped_column(String(100))
    set_at: Mapped[datetime]


class PendingLogin(Base):
    """A log-in that went to the identity provider and has not come back; used once."""

    __tablename__ = "pending_logins"

    state_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    nonce: Mapped[str] = mapped_column(String(64))
    verifier: Mapped[str] = mapped_column(String(128))
    target: Mapped[str] = mapped_column(String(2000))
    expires_at: Mapped[datetime]


class AuditRow(Base):
    """A request that changed something, stored in the transaction of the change; or one that was refused."""

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_who_id", "who", "id"), Index("ix_audit_project_id", "project", "id"))

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    who: Mapped[str] = mapped_column(String(100))
    token: Mapped[str | None] = mapped_column(String(40))
    method: Mapped[str] = mapped_column(String(16))
    path: Mapped[str] = mapped_column(String(500))
    project: Mapped[str] = mapped_column(String(100))
    target: Mapped[str] = mapped_column(String(200))
    outcome: Mapped[str] = mapped_column(String(16))
    source: Mapped[str] = mapped_column(String(64))
    request_id: Mapped[str] = mapped_column(String(32))
