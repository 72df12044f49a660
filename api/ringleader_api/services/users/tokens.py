"""Tokens: created once, shown once, scoped, expiring, revoked for good."""

import re
from datetime import datetime, timedelta

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from ringleader.wire.access import EVERY, NewTokenView, Role, Roles, TokenPage, TokenView
from ringleader_api.clock import Clock
from ringleader_api.edge.credentials import new_token, random_token
from ringleader_api.problems import Conflict, Forbidden, NotFound, Unprocessable
from ringleader_api.rights import WHOLE, Action, Caller, may
from ringleader_api.services.pages import ListCursors
from ringleader_api.services.users.access import permit
from ringleader_api.store import Store, audit
from ringleader_api.store.people import Token, User

MOST = 500
"""The most valid tokens of one user."""
_KEYS = ListCursors(re.compile(r"(tok_[0-9A-Z]{26})"))


class Tokens:
    """Tokens: everybody manages their own, those who may `ADMIT` everybody's.

    Args:
        oidc_life: the longest life of a token made by a user who logs in through the identity provider: we do not
            hear of their dismissal there.
    """

    def __init__(self, store: Store, now: Clock, oidc_life: timedelta) -> None:
        self._store = store
        self._now = now
        self._oidc_life = oidc_life

    def page(self, who: Caller, user: str | None, limit: int, cursor: str | None) -> TokenPage:
        """The tokens of `user`, or all that the caller may see; newest first. `cursor` continues behind the last of the
        page before."""
        query = select(Token).order_by(Token.id.desc()).limit(limit + 1)
        if not may(who, Action.ADMIT, EVERY):
            query = query.where(Token.user == who.name)
        if user is not None:
            query = query.where(Token.user == user)
        if cursor is not None:
            query = query.where(Token.id < _KEYS.parts(cursor)[0])
        with self._store.read() as session:
            rows = session.scalars(query).all()
        items = [TokenView(**_fields(row)) for row in rows[:limit]]
        return TokenPage(items=items, next_cursor=_KEYS.cursor(items[-1].id) if len(rows) > limit else None)

    def longest(self, who: Caller) -> timedelta | None:
        """The longest life of a token that the caller creates now; None: no limit."""
        bounds = [who.expires_at - self._now()] if who.token is not None and who.expires_at else []
        with self._store.read() as session:
            maker = session.get(User, who.name)
            if maker is not None and maker.subject is not None:
                bounds.append(self._oidc_life)
        return min(bounds, default=None)

    def make(
        self, who: Caller, user: str, name: str, scope: Roles | None, expires_at: datetime | None
    ) -> NewTokenView:
        """Create a token for `user`; without a scope it has all the user's rights.

        Raises:
            Forbidden: the caller's own credential is scoped, or they may not make tokens for others.
            NotFound: there is no such user.
            Conflict: they have `MOST` valid tokens.
            Unprocessable: it would expire in the past, outlive the caller's own credential, or last longer than a token
                of who logs in through the identity provider may.
        """
        _whole(who)
        if user != who.name:
            permit(who, Action.ADMIT, EVERY)
        now = self._now()
        # Of a token alone: a session of the page ends soon, and is what tokens that last are made with.
        limit = who.expires_at if who.token is not None else None
        if expires_at is not None and expires_at <= now:
            raise Unprocessable("the token would expire in the past.", code="bad_expiry")
        if limit is not None and (expires_at is None or expires_at > limit):
            raise Unprocessable(
                f"the new token would outlive the one used to create it, which expires at {limit.isoformat()}.",
                code="bad_expiry",
            )
        token = random_token()
        row = new_token(token, user=user, name=name, scope=scope or WHOLE, at=now, expires_at=expires_at)
        audit.about(target=user)
        with self._store.write() as session:
            self._within_oidc_life(session.get(User, who.name), now, expires_at)
            # Locked until the commit: of two that count at once, each would find room for one more.
            found = session.get(User, user, with_for_update=True)
            if found is None or found.disabled_at is not None:
                raise NotFound(f"there is no user {user!r}.")
            _room_for_one(session, user, now)
            session.add(row)
            audit.about(target=f"{user} {row.id}")
        return NewTokenView(token=token, **_fields(row))

    def _within_oidc_life(self, maker: User | None, now: datetime, expires_at: datetime | None) -> None:
        # Nobody tells us of a dismissal at the provider: only a log-in that fails shows it.
        if maker is None or maker.subject is None:
            return
        if expires_at is None or expires_at > now + self._oidc_life:
            days = f"{self._oidc_life / timedelta(days=1):g} days"
            raise Unprocessable(
                f"{maker.name} logs in through the identity provider, so their tokens must expire within {days}.",
                hint=f"Set an expiry within {days} (expires_in_s, --expires). A service that needs a longer one gets "
                "its token from an admin who logs in with a token. RINGLEADER_OIDC_TOKEN_DAYS sets the limit.",
                code="bad_expiry",
            )

    def revoke(self, who: Caller, token_id: str) -> None:
        """Revoke a token: it opens nothing from now on, nor do sessions that were made with it.

        Raises:
            NotFound: there is no such token, or it is another's.
            Forbidden: the caller's own credential is scoped, and this is another one.
        """
        with self._store.write() as session:
            row = session.get(Token, token_id, with_for_update=True)
            if row is None or not (row.user == who.name or may(who, Action.ADMIT, EVERY)):
                raise NotFound(
                    f"there is no token {token_id!r}.", hint="GET /api/v1/tokens lists your tokens."
                )
            # The caller's own token may always be revoked: whoever leaks it must be able to close it.
            if row.id != who.token:
                _whole(who)
            audit.about(target=f"{row.user} {row.id}")
            # The first time stays: it says since when the token has opened nothing.
            row.revoked_at = row.revoked_at or self._now()


def _room_for_one(session: Session, user: str, now: datetime) -> None:
    lasting = or_(Token.expires_at.is_(None), Token.expires_at > now)
    valid = select(func.count()).where(Token.user == user, Token.revoked_at.is_(None), lasting)
    if (session.scalar(valid) or 0) >= MOST:
        raise Conflict(
            f"{user} already has {MOST} valid tokens, the most that a user may have.", code="too_many_tokens"
        )


def _whole(who: Caller) -> None:
    """Require a credential without scope."""
    if not who.is_whole:
        # Else a scoped token would be a way to an unscoped one.
        raise Forbidden(
            "a scoped token cannot create or revoke other tokens.",
            hint="Log in, or use a token without a scope.",
        )


def _fields(row: Token) -> dict[str, object]:
    return {
        "id": row.id,
        "user": row.user,
        "name": row.name,
        "prefix": row.prefix,
        "scope": {project: Role(role) for project, role in row.scope.items()},
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "last_used_at": row.last_used_at,
        "revoked_at": row.revoked_at,
    }
