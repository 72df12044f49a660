"""Users and their roles."""

import re

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from ringleader.wire.access import EVERY, Role, Roles, UserPage, UserView
from ringleader_api.clock import Clock
from ringleader_api.problems import Conflict, NotFound
from ringleader_api.rights import Action, Caller, may
from ringleader_api.services.pages import ListCursors
from ringleader_api.services.users.access import no_project
from ringleader_api.store import Store, audit
from ringleader_api.store.people import Project, RoleRow, User

_KEYS = ListCursors(re.compile(r"users/([^\0]+)"))


class Users:
    """Users and roles. Callers were permitted before; a refusal here holds for everybody."""

    def __init__(self, store: Store, now: Clock) -> None:
        self._store = store
        self._now = now

    def page(self, limit: int, cursor: str | None) -> UserPage:
        """Users by name; `cursor` continues behind the last user of the page before."""
        query = select(User).order_by(User.name).limit(limit + 1)
        if cursor is not None:
            query = query.where(User.name > _KEYS.parts(cursor)[0])
        with self._store.read() as session:
            users = session.scalars(query).all()
            items = [_view(session, user) for user in users[:limit]]
        more = len(users) > limit
        return UserPage(items=items, next_cursor=_KEYS.cursor(f"users/{items[-1].name}") if more else None)

    def add(self, name: str, roles: Roles) -> UserView:
        """Create a user. Raises Conflict (the name is taken), NotFound (a project does not exist)."""
        audit.about(target=name)
        with self._store.write() as session:
            if session.get(User, name) is not None:
                raise Conflict(f"the user {name!r} already exists.", code="user_exists")
            user = User(name=name, created_at=self._now())
            session.add(user)
            # The user's row first: the session knows of no relation by which it could order the two.
            session.flush()
            for project, role in roles.items():
                _known(session, project)
                session.add(RoleRow(user=name, project=project, role=role.value))
            session.flush()
            return _view(session, user)

    def disable(self, who: Caller, name: str) -> None:
        """Disable a user: none of their tokens and sessions opens anything from now on; jobs and history stay.

        Raises:
            NotFound: there is no such user.
            Conflict: it is `who` themselves.
        """
        audit.about(target=name)
        _not_oneself(who, name)
        with self._store.write() as session:
            user = _load(session, name)
            # The first time stays: it says since when they are shut out.
            user.disabled_at = user.disabled_at or self._now()

    def enable(self, name: str) -> UserView:
        """Undo `disable`."""
        audit.about(target=name)
        with self._store.write() as session:
            user = _load(session, name)
            user.disabled_at = None
            session.flush()
            return _view(session, user)

    def grant(self, who: Caller, name: str, project: str, role: Role) -> UserView:
        """Give `name` a role, replacing the one before. Shows the roles that `who` may give and take."""
        audit.about(project=project, target=name)
        _not_oneself(who, name)
        with self._store.write() as session:
            user = _load(session, name)
            _known(session, project)
            session.merge(RoleRow(user=name, project=project, role=role.value))
            session.flush()
            shown = _view(session, user)
        # An admin of one project must not learn of a user's roles in others.
        theirs = {held: role for held, role in shown.roles.items() if may(who, Action.GRANT, held)}
        return shown.model_copy(update={"roles": theirs})

    def take_away(self, who: Caller, name: str, project: str) -> None:
        """Take away the user's role in the project; does nothing where there is none."""
        audit.about(project=project, target=name)
        _not_oneself(who, name)
        with self._store.write() as session:
            _load(session, name)
            session.execute(delete(RoleRow).where(RoleRow.user == name, RoleRow.project == project))


def _view(session: Session, user: User) -> UserView:
    rows = session.scalars(select(RoleRow).where(RoleRow.user == user.name).order_by(RoleRow.project))
    roles = {row.project: Role(row.role) for row in rows}
    return UserView(name=user.name, roles=roles, created_at=user.created_at, disabled_at=user.disabled_at)


def _load(session: Session, name: str) -> User:
    user = session.get(User, name, with_for_update=True)
    if user is None:
        raise NotFound(f"there is no user {name!r}.", hint="GET /api/v1/users lists all users.")
    return user


def _known(session: Session, project: str) -> None:
    if project != EVERY and session.get(Project, project) is None:
        raise no_project(project)


def _not_oneself(who: Caller, name: str) -> None:
    """Refuse changes to one's own rights."""
    if who.name == name:
        # Else the last admin could lock everybody out.
        raise Conflict(
            "you cannot change your own rights.", hint="Ask another admin to change them.", code="own_rights"
        )
