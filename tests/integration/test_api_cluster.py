"""The control plane over a real Ray whose control store is frozen or killed: it says so in time, and comes back."""

import json
import signal
from pathlib import Path

import httpx
import pytest
from integration.ray_home import begin_head
from integration.test_api_process import process
from processes import children, name_of
from waiting import wait_for

from ringleader.cli.stack.process import PidIdentity
from ringleader.runtime.nodes.cluster_process import CONNECT_S, RAY_S

TOLD_S = 2 * RAY_S
"""A call that began before has its time, too."""
REACHED_S = CONNECT_S + TOLD_S
"""One that was to connect has more."""


@pytest.mark.timeout(2 * REACHED_S + 2 * TOLD_S)
def test_a_control_store_that_is_frozen_or_killed_is_told_of_in_time_and_reached_when_it_is_back(
    tmp_path: Path,
) -> None:
    with begin_head(tmp_path, 1) as guard:
        assert guard.stdout is not None
        said = json.loads(guard.stdout.readline())
        store = only_child(only_child(guard.pid).pid, "gcs_server")
        environ = {
            "RINGLEADER_RAY_ADDRESS": said["address"],
            "RINGLEADER_WARM_PER_NODE": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(tmp_path / "ray_token"),
        }
        with process(tmp_path / "home", **environ) as (api, client):
            wait_for("cluster", lambda: troubles(client) == [], REACHED_S)
            asking = only_child(api.pid)
            assert [knows_ray(pid) for pid in (api.pid, asking.pid)] == [False, True]
            store.send(signal.SIGSTOP)
            wait_for("word of it", lambda: "did not answer" in str(troubles(client)), TOLD_S)
            assert not asking.alive
            store.send(signal.SIGCONT)
            wait_for("cluster again", lambda: troubles(client) == [], REACHED_S)
            asking = only_child(api.pid)
            store.send(signal.SIGKILL)
            wait_for("word of its end", lambda: "cannot be reached" in str(troubles(client)), TOLD_S)
            wait_for("end of the connection", lambda: not asking.alive, TOLD_S)
        assert guard.wait(timeout=40) == 1


def troubles(client: httpx.Client) -> list[str]:
    return [str(told) for told in client.get("/readyz").json()["trouble"]]


def only_child(pid: int, name: str = "") -> PidIdentity:
    """Of a process, among those with this name."""
    (child,) = (PidIdentity.of(child) for child in children(pid) if name_of(child).startswith(name))
    assert child is not None
    return child


def knows_ray(pid: int) -> bool:
    return "_raylet" in Path(f"/proc/{pid}/maps").read_text()
