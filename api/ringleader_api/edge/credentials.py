"""Who may come in: the operator's token, sessions of the page, and the tokens supervisors post with."""

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy import delete, select

from ringleader.errors import RingleaderError
from ringleader_api.clock import Clock
from ringleader_api.store import Store
from ringleader_api.store.tables import IngestToken, LoginSession

SESSION_LIFE = timedelta(days=7)


class TokenExposed(RingleaderError):
    """Others may read the token file."""

    code = "token_exposed"


@dataclass(frozen=True, slots=True)
class Operator:
    """May do everything but post as a supervisor."""

    by_cookie: bool


@dataclass(frozen=True, slots=True)
class Supervisor:
    """May post records of one attempt of one job."""

    job_id: str
    attempt: int


Principal = Operator | Supervisor


class Credentials:
    """Checks tokens and cookies, in constant time where they are compared."""

    def __init__(self, token: str, store: Store, now: Clock) -> None:
        self._token = token
        self._store = store
        self._now = now
        # Cookies do not know ports: each instance names its own, so that two on one machine do not log each other out.
        self.cookie = f"ringleader_{sha256(token)[:8]}"

    def is_operator(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())

    def supervisor(self, token: str, job_id: str) -> Supervisor | None:
        """The attempt of this job that the token belongs to."""
        given = sha256(token)
        with self._store.read() as session:
            rows = session.scalars(select(IngestToken).where(IngestToken.job_id == job_id)).all()
        for row in rows:
            if hmac.compare_digest(row.sha256, given):
                return Supervisor(job_id, row.attempt)
        return None

    def log_in(self) -> str:
        """A new session; returns the cookie's value."""
        value = secrets.token_urlsafe(32)
        now = self._now()
        with self._store.write() as session:
            session.execute(delete(LoginSession).where(LoginSession.expires_at < now))
            session.add(LoginSession(sha256=sha256(value), expires_at=now + SESSION_LIFE))
        return value

    def log_out(self, value: str) -> None:
        with self._store.write() as session:
            session.execute(delete(LoginSession).where(LoginSession.sha256 == sha256(value)))

    def has_session(self, value: str) -> bool:
        with self._store.read() as session:
            row = session.get(LoginSession, sha256(value))
        return row is not None and row.expires_at > self._now()


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def operator_token(home: Path) -> str:
    """The token in `home`, made at the first start; the file is never visible half written or to others.

    Raises:
        TokenExposed: others may read the file.
    """
    path = home / "token"
    if not path.exists():
        _make(path)
    if path.stat().st_mode & 0o077:
        raise TokenExposed(
            f"{path} can be read by others.",
            hint="Whoever reads it controls the cluster. Delete it (a new one is made at start), or chmod 600 it.",
        )
    return path.read_text(encoding="ascii").strip()


def _make(path: Path) -> None:
    partial = path.with_name(f".token.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write("rl_" + secrets.token_urlsafe(32))
    with suppress(FileExistsError):  # another process was first: its token holds
        os.link(partial, path)
    partial.unlink()
