"""Log-in through the identity provider: sent out with a fresh state, accepted back once, mapped to a user."""

import re
import secrets
from datetime import timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from ringleader_api.clock import Clock
from ringleader_api.edge.credentials import sha256
from ringleader_api.edge.provider import Provider, ProviderIdentity
from ringleader_api.problems import Forbidden
from ringleader_api.store import Store, audit
from ringleader_api.store.people import PendingLogin, User

PENDING_LIFE = timedelta(minutes=10)
SESSION_LIFE = timedelta(hours=12)
"""Shorter than with a token: a user who is dismissed at the provider must not stay logged in for a week."""
_EMAIL = re.compile(r"[a-z0-9][a-z0-9._+-]*@[a-z0-9.-]{1,80}")


class SignIn:
    def __init__(self, store: Store, now: Clock, provider: Provider) -> None:
        self._store = store
        self._now = now
        self._provider = provider

    def begin(self, target: str) -> tuple[str, str]:
        """The address to send the browser to, and the state that it has to bring back in a cookie. Raises
        BadGateway."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        url = self._provider.where_to(state, nonce, verifier)
        now = self._now()
        with self._store.write() as session:
            session.execute(delete(PendingLogin).where(PendingLogin.expires_at <= now))
            session.add(
                PendingLogin(
                    state_sha256=sha256(state),
                    nonce=nonce,
                    verifier=verifier,
                    # Cut to the column: PostgreSQL refuses a longer one.
                    target=target[:2000],
                    expires_at=now + PENDING_LIFE,
                )
            )
        return url, state

    def finish(self, state: str, code: str) -> tuple[str, str]:
        """Complete a log-in; returns the user, and the path they wanted.

        Raises:
            Forbidden: the state is not one that waits, the provider's token fails a check, or the user is
                disabled.
            BadGateway: the provider does not answer.
        """
        # A transaction of its own: the state is used up even where the exchange fails.
        with self._store.write() as session:
            pending = session.get(PendingLogin, sha256(state))
            if pending is not None:
                session.delete(pending)  # used once, whatever comes of it
        if pending is None or pending.expires_at <= self._now():
            raise _refused("it took too long, or its link was used before")
        # Between the transactions: nobody waits for the provider with the writers' turn.
        identity = self._provider.exchange(code, pending.nonce, pending.verifier)
        with self._store.write() as session:
            user = self._user(session, identity)
            if user.disabled_at is not None:
                raise _refused(f"the user {user.name} is disabled")
            return user.name, pending.target

    def _user(self, session: Session, identity: ProviderIdentity) -> User:
        """The user with this identity; else the one whom an admin made under the verified address; else a new one."""
        known = session.scalar(select(User).where(User.subject == identity.subject))
        if known is not None:
            return known
        by_email = bool(_EMAIL.fullmatch(identity.email))
        name = identity.email if by_email else f"oidc-{sha256(identity.subject)[:16]}"
        audit.by(name, None)
        invited = session.get(User, name)
        if invited is None:
            invited = User(name=name, created_at=self._now())
            session.add(invited)
        # The address was bound to another identity: whoever has it now at the provider is not that user.
        elif invited.subject is not None:
            raise _refused(f"the user {name} belongs to another identity of the provider")
        invited.subject = identity.subject
        return invited


def _refused(why: str) -> Forbidden:
    return Forbidden(f"the log-in was refused: {why}.", hint="Start again at /login.", code="login_refused")
