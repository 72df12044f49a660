"""Authentication: tokens, the page's sessions, and the tokens that supervisors post with."""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Row, bindparam, delete, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from ringleader.errors import RingleaderError
from ringleader.files import write_once
from ringleader.wire.access import EVERY, Role
from ringleader_api.clock import Clock, new_id
from ringleader_api.log import Log
from ringleader_api.rights import WHOLE, Caller, SupervisorCaller
from ringleader_api.services.users.access import caller
from ringleader_api.settings import is_loopback
from ringleader_api.store import Store, audit
from ringleader_api.store.people import RoleRow, Token, User
from ringleader_api.store.tables import IngestToken, LoginSession

log = Log("ringleader.credentials")
SESSION_LIFE = timedelta(days=7)
USE_NOTED_EVERY = timedelta(minutes=1)
FIRST_USER = "admin"
TOKEN_PREFIX = "rl_"  # noqa: S105 - how tokens begin, so that scanners find those that leaked
SHOWN = 10
LEAST_CHARACTERS = 32


class TokenExposed(RingleaderError):
    """The token file can be read by others."""

    code = "token_exposed"


class AuthenticationMissing(RingleaderError):
    """The API would be open to others before anybody has a credential."""

    code = "authentication_missing"


class TokenWeak(RingleaderError):
    """The token in the file could be guessed."""

    code = "token_weak"


_OF_TOKEN = (
    select(Token.id, Token.user, Token.scope, Token.expires_at, Token.revoked_at, Token.last_used_at)
    .add_columns(User.disabled_at, RoleRow.project, RoleRow.role)
    .join(User, User.name == Token.user)
    # Outer: a user without any role is known all the same.
    .outerjoin(RoleRow, RoleRow.user == Token.user)
    .where(Token.sha256 == bindparam("sha256"))
)
"""A token with its user, one row for each role. Built once: every request runs it."""
_OF_JOB = select(IngestToken.sha256, IngestToken.attempt).where(IngestToken.job_id == bindparam("job_id"))


class Credentials:
    """Finds the user behind a token or a cookie. Only hashes are stored."""

    def __init__(self, first_token: str, store: Store, now: Clock) -> None:
        self._store = store
        self._now = now
        # Cookies do not know ports: each instance names its own, so that two on one machine do not log each other out.
        self.cookie = f"ringleader_{sha256(first_token)[:8]}"
        self.login_cookie = f"{self.cookie}_login"
        self.cookies = frozenset((self.cookie, self.login_cookie))
        with suppress(IntegrityError):  # a replica that starts with us was first
            self._adopt(first_token)

    def by_token(self, token: str) -> Caller | None:
        """The user of a token that is valid now; None: it is not."""
        now = self._now()
        found = self._store.rows(_OF_TOKEN, sha256=sha256(token))
        if not found or found[0].disabled_at is not None or not _living(found[0], now):
            return None
        row = found[0]
        roles = {one.project: Role(one.role) for one in found if one.project is not None}
        # At most once a minute: each note is a write to the disk, and every request comes this way.
        self._note_use(row, now)
        return Caller(row.user, roles, _scope(row), row.id, row.expires_at)

    def by_cookie(self, value: str) -> Caller | None:
        """The user of a session, which lives no longer than the token that it was made with; None: it has ended."""
        now = self._now()
        with self._store.read() as session:
            row = session.get(LoginSession, sha256(value))
            if row is None or row.expires_at <= now or row.user is None:
                return None
            # Asked of the token each time: one that is revoked takes its sessions along.
            if row.token is not None:
                return _caller_with(session, session.get(Token, row.token), now)
            return caller(session, row.user, WHOLE, None, row.expires_at)

    def supervisor(self, token: str, job_id: str) -> SupervisorCaller | None:
        """The attempt of this job that the token belongs to; None: there is none."""
        given = sha256(token)
        for row in self._store.rows(_OF_JOB, job_id=job_id):
            if hmac.compare_digest(row.sha256, given):
                return SupervisorCaller(job_id, row.attempt)
        return None

    def log_in(self, user: str, token: str | None, life: timedelta = SESSION_LIFE) -> str:
        """Store a new session; returns the cookie's value."""
        value = secrets.token_urlsafe(32)
        now = self._now()
        audit.by(user, token)
        with self._store.write() as session:
            # Sessions that ran out are removed by the next log-in: nothing else would ever look for them.
            session.execute(delete(LoginSession).where(LoginSession.expires_at < now))
            session.add(LoginSession(sha256=sha256(value), user=user, token=token, expires_at=now + life))
        return value

    def log_out(self, value: str) -> None:
        """End the session of this cookie. Does nothing for an unknown session, or one that has ended."""
        ours = LoginSession.sha256 == sha256(value)
        # A read first: an unknown cookie takes no writers' turn, and leaves no row in the audit log.
        with self._store.read() as session:
            known = session.scalar(select(LoginSession.sha256).where(ours))
        if known is None:
            audit.changes_nothing()
            return
        with self._store.write() as session:
            session.execute(delete(LoginSession).where(ours))

    def _note_use(self, row: Row[Any], now: datetime) -> None:
        if row.last_used_at is None or now - row.last_used_at >= USE_NOTED_EVERY:
            try:
                with self._store.write() as session:
                    session.execute(update(Token).where(Token.id == row.id).values(last_used_at=now))
            except DBAPIError as error:  # what only reads goes on over a database that takes nothing
                log.warning("token.use_not_noted", token=row.id, error=str(error.orig))

    def _adopt(self, token: str) -> None:
        """Make the token in the home folder the first user's. A new file takes the place of the one before."""
        with self._store.read() as session:
            if session.scalar(select(Token.id).where(Token.sha256 == sha256(token))) is not None:
                return
        with self._store.write() as session:
            before = update(Token).where(Token.name == "home", Token.revoked_at.is_(None))
            session.execute(before.values(revoked_at=self._now()))
            # Enabled again: whoever can write into that folder has everything anyway, and it is the way back in.
            session.execute(update(User).where(User.name == FIRST_USER).values(disabled_at=None))
            # `merge`: the user may have the role already.
            session.merge(RoleRow(user=FIRST_USER, project=EVERY, role=Role.ADMIN.value))
            session.add(
                new_token(token, user=FIRST_USER, name="home", scope=WHOLE, at=self._now(), expires_at=None)
            )


def new_token(
    token: str, *, user: str, name: str, scope: Mapping[str, Role], at: datetime, expires_at: datetime | None
) -> Token:
    """The row of a token."""
    return Token(
        id=new_id("tok"),
        user=user,
        name=name,
        prefix=token[:SHOWN] if token.startswith(TOKEN_PREFIX) else "",
        sha256=sha256(token),
        scope=dict(scope),
        created_at=at,
        expires_at=expires_at,
    )


def random_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def sha256(text: str) -> str:
    # A token in a JSON body may hold half a surrogate pair, which UTF-8 refuses to encode.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _caller_with(session: Session, token: Token | None, now: datetime) -> Caller | None:
    if token is None or not _living(token, now):
        return None
    return caller(session, token.user, _scope(token), token.id, token.expires_at)


def _living(token: Token | Row[Any], now: datetime) -> bool:
    return token.revoked_at is None and (token.expires_at is None or token.expires_at > now)


def _scope(token: Token | Row[Any]) -> dict[str, Role]:
    return {project: Role(role) for project, role in token.scope.items()}


def require_set_up(home: Path, host: str, provider: str) -> None:
    """Refuse to listen beyond loopback with a credential that nobody knows yet.

    Raises:
        AuthenticationMissing: there is neither a token in `home` nor an identity provider.
    """
    if is_loopback(host) or provider or (home / "token").exists():
        return
    raise AuthenticationMissing(
        f"authentication is not set up, and RINGLEADER_HOST={host} would open the API beyond this machine.",
        hint=f"Put a token of at least {LEAST_CHARACTERS} random characters into {home / 'token'} (chmod 600), or set "
        "RINGLEADER_OIDC_ISSUER and RINGLEADER_OIDC_CLIENT_ID. Starting once on loopback also creates a token.",
    )


def first_token(home: Path) -> str:
    """The token in `home`, made at the first start; the file is never visible half written or to others.

    Raises:
        TokenExposed: others may read the file.
        TokenWeak: somebody has put a token there that is too short to be safe.
    """
    path = home / "token"
    if not path.exists():
        write_once(path, random_token())
    if path.stat().st_mode & 0o077:
        raise TokenExposed(
            f"{path} can be read by other accounts.",
            hint="Its token gives full control of the cluster. Run chmod 600 on it, or delete it: a new one is "
            "created at start.",
        )
    token = path.read_text(encoding="ascii").strip()
    if len(token) < LEAST_CHARACTERS:
        raise TokenWeak(
            f"the token in {path} has only {len(token)} characters.",
            hint=f"Use at least {LEAST_CHARACTERS} random characters, or delete the file: a new one is created at "
            "start.",
        )
    return token
