"""A store where members of a test meet: the product's own, with a room open to whoever has the test's secret."""

from pathlib import Path

from ringleader.comm.rendezvous import Rendezvous

SECRET = bytes(range(32))
ROOM = "job"


def open_room(host: str = "127.0.0.1", folder: Path | None = None) -> Rendezvous:
    """Lives as long as what this returns."""
    store = Rendezvous(host, folder)
    store.admit(ROOM, SECRET)
    return store
