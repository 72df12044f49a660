"""A job's secrets on their way: the supervisor asks the control plane for them, workers ask the supervisor."""

import threading
from time import monotonic

import httpx

from ringleader.errors import RingleaderError
from ringleader.runtime.messages import AttemptLaunch, MemberTask, SecretsAnswer
from ringleader.runtime.worker.supervisor_link import SupervisorLink
from ringleader.wire.ingest import JobSecrets
from ringleader.wire.states import Reason

ANSWER_S = 5.0
AGAIN_S = 0.5


class JobSecretMissing(RingleaderError):
    """A job names a secret that was not there when its attempt began."""

    code = Reason.SECRET_MISSING


class SecretCache:
    """The supervisor's side: fetched when a worker first needs them, kept in the memory of this process alone.

    Nothing of it is in the arguments of an actor, which Ray's control store keeps, nor in the spool.
    """

    def __init__(self, launch: AttemptLaunch) -> None:
        self._url = f"{launch.ingest_url.removesuffix('/ingest')}/secrets"
        self._token = launch.ingest_token
        self._fetching = threading.Lock()
        self._known: SecretsAnswer | None = None
        self._ask_at = 0.0

    def open(self, *, begun: bool = False) -> SecretsAnswer | None:
        """The answer for a worker; None where there is none just now: ask again. One thread waits for it at a time.

        Args:
            begun: the attempt has had a plan: a secret that is missing now, as one that is just being replaced, is no
                reason to end what has trained so long.
        """
        # Nobody queues here: the supervisor has few threads, and heartbeats need them.
        if self._known is not None or not self._fetching.acquire(blocking=False):
            return self._known
        try:
            if self._known is not None or monotonic() < self._ask_at:
                return self._known
            found = self._fetch()
            # For all workers together: they ask at the same moment, and go on asking while there is no answer.
            self._ask_at = monotonic() + AGAIN_S
            if found is not None and found.refused:
                return None if begun else found
            self._known = found
            return found
        finally:
            self._fetching.release()

    def _fetch(self) -> SecretsAnswer | None:
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            answer = httpx.get(self._url, headers=headers, timeout=ANSWER_S, trust_env=False)
            # The code too: a 404 alone may come from something on the way to the API.
            if answer.status_code == 404 and answer.json().get("code") == Reason.SECRET_MISSING:
                return SecretsAnswer(refused=str(answer.json()["detail"]))
            answer.raise_for_status()
            return SecretsAnswer(JobSecrets.model_validate(answer.json()).values)
        except (httpx.HTTPError, ValueError):
            return None


def secrets_of(task: MemberTask, supervisor_link: SupervisorLink) -> dict[str, str]:
    """The worker's side: its secrets by variable; waits for as long as its supervisor does. Raises JobSecretMissing."""
    if not task.spec.secrets:
        return {}
    while True:
        handed = supervisor_link.secrets()
        if handed is not None and handed.refused:
            raise JobSecretMissing(handed.refused)
        if handed is not None:
            return handed.values
        # Without a deadline: heartbeats go on meanwhile, and end this process without a supervisor.
        threading.Event().wait(AGAIN_S)
