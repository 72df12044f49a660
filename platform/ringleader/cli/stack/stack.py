"""The stack: starts the services in order, restarts those that die, ends them in the reverse of importance."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from ringleader.cli.stack.home import Home, read_json, write_json
from ringleader.cli.stack.process import PidIdentity, end, wait_gone
from ringleader.cli.stack.recipes import LOOPBACK, REAL, Recipes, mlflow_url
from ringleader.cli.stack.service import Recipe, Service, ServiceFailed, left_by, recorded, turn_over
from ringleader.client.profile import Profile, save

LEFTOVERS_DEADLINE_S = 30.0
DEFAULT_CPUS = max(os.cpu_count() or 1, 4)
"""Logical CPUs Ray may hand out: at least 4, so that a three-worker job starts on a small machine too."""

_LOOK_EVERY_S = 0.2
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_STABLE_AFTER_S = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ForeignCluster:
    """A Ray cluster that somebody else started, with a node on this machine.

    Attributes:
        address: that of its head, host:port.
        token: a file with the token that its ports require.
    """

    address: str
    token: Path


@dataclass
class Stack:
    """All embedded services. Use `running`, which also ends them.

    Attributes:
        cluster: one that runs already; None: a Ray of its own with `num_cpus`.
    """

    home: Home
    num_cpus: int
    port: int
    say: Say
    recipes: Recipes = REAL
    cluster: ForeignCluster | None = None
    services: dict[str, Service] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _pause_s: dict[str, float] = field(default_factory=dict)
    _started_at: dict[str, float] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def mlflow_url(self) -> str:
        return mlflow_url(self.home)

    @property
    def profile(self) -> Profile:
        """The address, with the token that the API made at its first start."""
        return Profile(self.url, self.home.api_token.read_text(encoding="utf-8").strip())

    def start(self) -> None:
        """Start all services, wait until they are ready, and write the profile.

        Raises:
            ServiceFailed: one of them did not start; with the end of its log.
        """
        self._clear_leftovers()
        # Before anything starts: `down` finds an `up` that hangs in its start.
        self._announce(url="")
        self._launch(self.recipes.mlflow(self.home))  # slow to start: beside the others
        if self.cluster is not None:
            self.home.take_ray_token(self.cluster.token)
        else:
            self._launch(self.recipes.ray(self.home, self.num_cpus))
            self.services["ray"].wait_ready()
        self._launch_api()
        # Kept: where any port was asked for, an API that is started again answers at the same address.
        self.port = httpx.URL(self.services["api"].wait_ready()["url"]).port or self.port
        self.services["mlflow"].wait_ready()
        save(self.home.root, self.profile)
        self._announce(self.url)

    def tend(self) -> None:
        """Restart services that die, with growing pauses, and bound the logs, until `stop`."""
        while not self._over.wait(_LOOK_EVERY_S):
            for name in ("up", *self.services):
                turn_over(self.home.log(name))
            for name in [n for n in ("ray", "mlflow", "api") if n in self.services]:
                if not self.services[name].alive and not self._over.is_set():
                    # Jobs survive an outage of the API or MLflow.
                    self._restart(name)
                    break  # Ray first, always: the API has to be told where it is

    def stop(self) -> None:
        """End all services."""
        self._over.set()
        # The API first: it must not take the end of Ray for the end of its jobs.
        for names in (("api",), ("ray", "mlflow")):
            ending = [self.services[name] for name in names if name in self.services]
            # All are asked before the first is awaited, so that their graces run at the same time.
            for service in ending:
                service.ask_to_end()
            for service in ending:
                service.end()
        self.home.up.unlink(missing_ok=True)

    def _clear_leftovers(self) -> None:
        """Wait for the guards of an `up` that was killed, which end by themselves, and remove what they have left."""
        end(wait_gone(recorded(self.home).values(), LEFTOVERS_DEADLINE_S), grace_s=5)
        # There is something left where a power cut gave them no time to remove it.
        for path in self.home.run.glob("*.json"):
            for folder in left_by(path):
                shutil.rmtree(folder, ignore_errors=True)
            path.unlink(missing_ok=True)

    def _launch(self, recipe: Recipe) -> None:
        self._started_at[recipe.name] = time.monotonic()
        self.services[recipe.name] = Service.start(recipe, self.home)

    def _launch_api(self) -> None:
        address = self.cluster.address if self.cluster else str(self.services["ray"].said["address"])
        self._launch(self.recipes.api(self.home, self.port, address, self.mlflow_url))

    def _restart(self, name: str) -> None:
        dead = self.services[name]
        # Its guard has ended; our end of the pipe to it is still open.
        dead.ask_to_end()
        ran_s = time.monotonic() - self._started_at[name]
        pause_s = _FIRST_PAUSE_S if ran_s > _STABLE_AFTER_S else self._pause_s.get(name, _FIRST_PAUSE_S)
        self._pause_s[name] = min(2 * pause_s, _LONGEST_PAUSE_S)
        self.say(f"{name} ended (code {dead.process.returncode}); restarting it in {pause_s:g} s")
        if self._over.wait(pause_s):
            return
        try:
            self._start_again(name)
        except ServiceFailed as error:
            self.say(str(error))
            self.services[name].end()  # also one that hangs is started again

    def _start_again(self, name: str) -> None:
        if name == "api":
            self._launch_api()
            return
        # MLflow is not awaited: its socket stays where it was, and nobody has to be told.
        self._launch(dead := self.services[name].recipe)
        if dead.name == "ray":
            # The new head has another address, which the API is told at its start.
            self.services["ray"].wait_ready()
            self.services["api"].end()
            self._launch_api()

    def _announce(self, url: str) -> None:
        """Record this process as the running `up`; with the address once it answers."""
        who = PidIdentity.of(os.getpid())
        if who is not None:
            write_json(
                self.home.up, {"pid": who.pid, "started": who.started, "url": url, "mlflow": self.mlflow_url}
            )


@contextmanager
def running(
    home: Home,
    *,
    num_cpus: int = DEFAULT_CPUS,
    port: int = 0,
    say: Say = print,
    recipes: Recipes = REAL,
    cluster: ForeignCluster | None = None,
) -> Iterator[Stack]:
    """Run the stack while the block runs; nothing of it is left afterwards. Meanwhile only its user may read what this
    process writes.

    Raises:
        AlreadyUp: another one holds this home.
        ServiceFailed: a service did not start.
    """
    with home.held():
        stack = Stack(home, num_cpus, port, say, recipes, cluster)
        tender = threading.Thread(target=stack.tend, name="tender", daemon=True)
        before = os.umask(0o077)  # for jobs, logs and the database; all services inherit it
        try:
            stack.start()
            tender.start()
            yield stack
        finally:
            # The tender first: it would restart the services that are being ended.
            stack._over.set()
            if tender.is_alive():
                tender.join(timeout=30)
            stack.stop()
            os.umask(before)


def take_down(home: Home, deadline_s: float = 60) -> bool:
    """Stop the `up` of this home by its recorded identity; returns whether there was anything to stop."""
    who = PidIdentity.read(read_json(home.up))
    # Read before `up` is ended: the records go with the services.
    guards = [identity for identity in recorded(home).values() if identity.alive]
    found = bool(guards) or (who is not None and who.alive)
    if who is not None:
        end([who], grace_s=deadline_s)
    end(wait_gone(guards, LEFTOVERS_DEADLINE_S), grace_s=15)
    home.up.unlink(missing_ok=True)
    return found
