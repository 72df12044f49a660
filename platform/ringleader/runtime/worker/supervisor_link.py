"""Whom a member reports to: its supervisor, over whatever lies between them."""

from typing import Any, Protocol

from ringleader.runtime.messages import GONE_S, Heartbeat, ParkMessage, SecretsAnswer

UNKNOWN = -1
"""Answered to a heartbeat where there is no supervisor any more, or one that does not count this worker in."""


class SupervisorLink(Protocol):
    """What a member says to its supervisor. Called from the threads of one process; nothing of Ray comes through."""

    def parked(self, standing: ParkMessage) -> None:
        """It waits for a plan. Not answered: the next heartbeat says it again."""

    def seated(self, worker: str, generation: int) -> None:
        """It is a member of that generation. Not answered."""

    def level(self, worker: str, pair: int) -> None:
        """It has all that the member of that pair has. Not answered."""

    def beat(self, beat: Heartbeat) -> int | None:
        """Below which step the supervisor has the records; negative where this worker has none, None without an
        answer."""

    def secrets(self) -> SecretsAnswer | None:
        """The environment variables that the job's secrets become; None without an answer."""


class RayLink:
    """A supervisor as a worker's actor holds it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def parked(self, standing: ParkMessage) -> None:
        self._handle.parked.remote(standing)

    def seated(self, worker: str, generation: int) -> None:
        self._handle.seated.remote(worker, generation)

    def level(self, worker: str, pair: int) -> None:
        self._handle.level.remote(worker, pair)

    def beat(self, beat: Heartbeat) -> int | None:
        import ray
        from ray.exceptions import ActorDiedError, RayError

        try:
            answer = ray.get(self._handle.beat.remote(beat), timeout=GONE_S)
        except ActorDiedError:
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
