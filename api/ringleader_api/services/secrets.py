"""Secrets: written, never read back; handed to the jobs that name them, and masked in what these report."""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from sqlalchemy import delete, select, tuple_
from sqlalchemy.orm import Session

from ringleader.errors import RingleaderError
from ringleader.files import write_once
from ringleader.text import is_utf8
from ringleader.wire.access import EVERY, SecretPage, SecretView
from ringleader.wire.disclosure import LEAST_CHARACTERS, MOST_CHARACTERS, masks_of, sized
from ringleader_api.clock import Clock
from ringleader_api.problems import NotFound, Unprocessable
from ringleader_api.rights import Action, Caller, where
from ringleader_api.services.pages import ListCursors
from ringleader_api.services.users.access import no_project
from ringleader_api.store import Store, audit
from ringleader_api.store.people import Project, Secret

_KEY = re.compile(rb"[A-Za-z0-9_-]{43}=")
_KEYS = ListCursors(re.compile(r"secrets/([^/\0]+)/([^\0]+)"))


class SecretMissing(NotFound):
    """The job names a secret that does not exist."""

    code = "secret_missing"


class SecretsKeyTorn(RingleaderError):
    """The key file holds no key: it is empty or cut, as a power cut or a bad restore leaves it."""

    code = "secrets_key_torn"


class SecretsKeyOther(RingleaderError):
    """The secret was sealed with another key than the home's."""

    code = "secrets_key_other"


class Secrets:
    """Secrets, encrypted with the key in RINGLEADER_HOME/secrets.key: the database alone reveals none of them."""

    def __init__(self, store: Store, now: Clock, home: Path) -> None:
        self._store = store
        self._now = now
        self._key_file = home / "secrets.key"
        # At the start: a torn key must not be found by the first job that needs it.
        if self._key_file.exists():
            self._key()

    def page(self, who: Caller, project: str | None, limit: int, cursor: str | None) -> SecretPage:
        """The names in the projects that the caller may submit to, by project and name; `cursor` continues behind the
        last of the page before."""
        query = select(Secret).order_by(Secret.project, Secret.name).limit(limit + 1)
        if (theirs := where(who, Action.SUBMIT)) is not None:
            query = query.where(Secret.project.in_(theirs))
        if project is not None:
            query = query.where(Secret.project == project)
        if cursor is not None:
            query = query.where(tuple_(Secret.project, Secret.name) > tuple_(*_KEYS.parts(cursor)))
        with self._store.read() as session:
            rows = session.scalars(query).all()
        items = [_view(row) for row in rows[:limit]]
        if len(rows) <= limit:
            return SecretPage(items=items)
        return SecretPage(
            items=items, next_cursor=_KEYS.cursor(f"secrets/{items[-1].project}/{items[-1].name}")
        )

    def put(self, who: Caller, project: str, name: str, body: Any) -> SecretView:
        """Set or replace a secret. The value is returned nowhere, not even where it is refused.

        Raises:
            NotFound: there is no such project.
            Unprocessable: the value is no text of a length that can be masked.
        """
        value = body.get("value") if isinstance(body, dict) and set(body) == {"value"} else None
        if not isinstance(value, str) or "\0" in value or not is_utf8(value) or not sized(value):
            raise Unprocessable(
                f'the request body must be {{"value": "…"}} with {LEAST_CHARACTERS} to {MOST_CHARACTERS} characters '
                "of text.",
                hint="Shorter values could not be masked in logs.",
                code="bad_secret",
            )
        audit.about(project=project, target=name)
        row = Secret(
            project=project,
            name=name,
            sealed=self._seal(project, name, value),
            set_by=who.name,
            set_at=self._now(),
        )
        with self._store.write() as session:
            # `*` stands for all projects, and is none.
            if project == EVERY or session.get(Project, project) is None:
                raise no_project(project)
            session.merge(row)
        return _view(row)

    def drop(self, project: str, name: str) -> None:
        """Delete a secret. Raises NotFound. Attempts that train go on with the value they have; if they have to ask
        again for new workers, they wait until it is set once more. Attempts that begin without it fail."""
        audit.about(project=project, target=name)
        with self._store.write() as session:
            row = session.get(Secret, (project, name))
            if row is None:
                raise _missing(project, name)
            session.execute(delete(Secret).where(Secret.project == project, Secret.name == name))

    def missing(self, session: Session, project: str, named: Mapping[str, str]) -> list[str]:
        """The variables whose secrets do not exist."""
        there = set(session.scalars(select(Secret.name).where(Secret.project == project)))
        return [variable for variable, name in named.items() if name not in there]

    def values(self, session: Session, project: str, named: Mapping[str, str]) -> dict[str, str]:
        """The values by environment variable. Raises SecretMissing."""
        return {variable: self._open(session, project, name) for variable, name in named.items()}

    def masks(self, session: Session, project: str, named: Mapping[str, str]) -> list[str]:
        """The texts to mask in the records of a job that names these: each value, and each of its lines; longest
        first."""
        values: list[str] = []
        for name in named.values():
            with suppress(SecretMissing):  # gone meanwhile
                values.append(self._open(session, project, name))
        return masks_of(values)

    def _open(self, session: Session, project: str, name: str) -> str:
        row = session.get(Secret, (project, name))
        if row is None:
            raise _missing(project, name)
        try:
            opened = json.loads(self._cipher().decrypt(row.sealed))
        except InvalidToken:
            raise SecretsKeyOther(
                f"the secret {name!r} of project {project!r} cannot be decrypted: it was encrypted with another key "
                f"than the one in {self._key_file}.",
                hint=f"Restore that key, or set the secret again: `ringleader secret set {name} --project {project}`.",
            ) from None
        if (opened["project"], opened["name"]) != (project, name):
            raise _missing(project, name)  # somebody has moved rows about
        return str(opened["value"])

    def _seal(self, project: str, name: str, value: str) -> bytes:
        # Project and name are sealed in, so that a row moved to another place does not open there.
        return self._cipher().encrypt(json.dumps({"project": project, "name": name, "value": value}).encode())

    def derived(self, purpose: str) -> str:
        """A token that only this home can derive, the same each time."""
        return hmac.new(self._key(), purpose.encode(), hashlib.sha256).hexdigest()

    def _cipher(self) -> Fernet:
        return Fernet(self._key())

    def _key(self) -> bytes:
        """The home's key. Raises SecretsKeyTorn."""
        if not self._key_file.exists():
            write_once(self._key_file, Fernet.generate_key().decode())
        # Read also where it was made above: of two processes that make one, the first one's stays.
        key = self._key_file.read_bytes().strip()
        # From less than a whole key anybody could derive its tokens.
        if not _KEY.fullmatch(key):
            raise SecretsKeyTorn(
                f"{self._key_file} is damaged: it holds {len(key)} bytes, not a key of 44 characters.",
                hint="Restore the file from a backup. Without one, delete it and start again (a new key is created); "
                "then set every secret again and resubmit running jobs, whose tokens were derived from the old key.",
            )
        return key


def _missing(project: str, name: str) -> SecretMissing:
    return SecretMissing(
        f"there is no secret {name!r} in project {project!r}.",
        hint=f"Set it with `ringleader secret set {name} --project {project}`.",
    )


def _view(row: Secret) -> SecretView:
    return SecretView(project=row.project, name=row.name, set_by=row.set_by, set_at=row.set_at)
