"""The link from a member to its supervisor, over whatever lies between them."""

from typing import Any, Protocol

from ringleader.runtime.messages import GONE_S, Heartbeat, IndexAnswer, ParkMessage, SecretsAnswer

UNKNOWN = -1
"""The answer to a heartbeat where there is no supervisor any more, or one that does not count this worker in."""


class SupervisorLink(Protocol):
    """A member's calls to its supervisor, from the threads of one process; nothing of Ray comes through."""

    def parked(self, park_message: ParkMessage) -> None:
        """Report that the worker waits for a plan. Not answered: the next heartbeat repeats it."""

    def seated(self, worker: str, generation: int) -> None:
        """Report that the worker is a member of that generation. Not answered."""

    def in_sync(self, worker: str, pair: int) -> None:
        """Report that the worker has all that the member of that pair has. Not answered."""

    def beat(self, beat: Heartbeat) -> int | None:
        """Send a heartbeat. Returns the step below which the supervisor has the records; negative where this worker has
        no supervisor, None without an answer."""

    def secrets(self) -> SecretsAnswer | None:
        """The environment variables that the job's secrets become; None without an answer."""

    def index(self, worker: str, name: str) -> IndexAnswer | None:
        """Ask for the index of files of that name; None without an answer."""

    def index_made(self, worker: str, name: str, index: bytes | None) -> None:
        """Hand over the index that the worker was to make, an empty one where it is too large; None where it made none.
        Not answered."""


class RayLink:
    """The link over Ray, as a worker's actor holds it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def parked(self, park_message: ParkMessage) -> None:
        self._handle.parked.remote(park_message)

    def seated(self, worker: str, generation: int) -> None:
        self._handle.seated.remote(worker, generation)

    def in_sync(self, worker: str, pair: int) -> None:
        self._handle.in_sync.remote(worker, pair)

    def beat(self, beat: Heartbeat) -> int | None:
        import ray
        from ray.exceptions import ActorDiedError, RayError

        try:
            answer = ray.get(self._handle.beat.remote(beat), timeout=GONE_S)
        except ActorDiedError:  # for good: Ray does not restart it any more
            return UNKNOWN
        except (RayError, ConnectionError):  # it is coming back
            return None
        return None if answer is None else int(answer)

    def secrets(self) -> SecretsAnswer | None:
        import ray
        from ray.exceptions import RayError

        try:
            handed: SecretsAnswer | None = ray.get(self._handle.secrets.remote(), timeout=GONE_S)
        except (RayError, ConnectionError):  # it is coming back
            return None
        return handed

    def index(self, worker: str, name: str) -> IndexAnswer | None:
        import ray
        from ray.exceptions import RayError

        try:
            found: IndexAnswer = ray.get(self._handle.index.remote(worker, name), timeout=GONE_S)
        except (RayError, ConnectionError):
            return None
        return found

    def index_made(self, worker: str, name: str, index: bytes | None) -> None:
        self._handle.index_made.remote(worker, name, index)
