"""The home folder of a database, which all its replicas share."""

import secrets
from pathlib import Path

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ringleader.errors import RingleaderError
from ringleader.files import write_over
from ringleader_api.store.database import Store
from ringleader_api.store.tables import Fact

FILE = "home_id"
HOME = "home"


class OtherHome(RingleaderError):
    """This control plane would work over a folder that the others do not see."""

    code = "other_home"


def require_shared(store: Store, home: Path) -> None:
    """Bind the database to a home: the first control plane names it, all others have to find that name in theirs.

    Raises:
        OtherHome: RINGLEADER_HOME is another folder than that of the control planes before.
    """
    if not store.shared:  # the database lies in the home itself
        return
    told = _read(home)
    with store.write() as session:
        # The file is written within the transaction: whoever waits for the row finds both.
        known, new = _named(session, told or secrets.token_hex(16))
        if new and not told:
            _write(home, known)
    if (found := _read(home)) != known:
        raise OtherHome(
            f"RINGLEADER_HOME={home} is not the folder that this database belongs to: its file {FILE} holds "
            f"{found or 'nothing'}, the database expects {known}.",
            hint="Control planes that use the same database must share one folder (packages, artifacts, secrets.key, "
            f"token): mount it here. If this is that folder, restored or moved, write {known} into {home / FILE}.",
        )


def _named(session: Session, value: str) -> tuple[str, bool]:
    """The name of the database's home, and whether this call has set it."""
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    # A concurrent caller waits until our transaction is over.
    first = dialect.insert(Fact).values(name=HOME, value=value).on_conflict_do_nothing().returning(Fact.name)
    new = session.scalar(first) is not None
    return session.get_one(Fact, HOME).value, new


def _read(home: Path) -> str:
    path = home / FILE
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


def _write(home: Path, value: str) -> None:
    write_over(home / FILE, value + "\n")
