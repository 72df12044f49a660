"""The cluster through a process of its own: every call has a deadline, and the process goes with who asks."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

from ringleader.cli.stack.process import PidIdentity
from ringleader.errors import RingleaderError
from ringleader.runtime.nodes.cluster import AttemptUsed, FaultMissed, RayCluster
from ringleader.runtime.nodes.cluster_process import DEADLINES_S, ClusterProcess, OutOfReach
from ringleader_api.backend import NobodyThere, RayBackend

ODD = (sys.executable, str(Path(__file__).parent / "odd_cluster.py"))
PATIENT = dict.fromkeys(DEADLINES_S, 60.0)
SHORT_S = 0.5
HANGING = PATIENT | {"warm": SHORT_S}
PARENT = f"""
import signal
from ringleader.runtime.nodes.cluster_process import ClusterProcess
cluster = ClusterProcess({ODD!r})
cluster.call("connect", "there")
print(cluster.call("supervisors")[0][0], flush=True)
signal.pause()
"""


def begin(deadlines_s: dict[str, float]) -> ClusterProcess:
    process = ClusterProcess(ODD, deadlines_s)
    process.call("connect", "there")
    return process


@pytest.fixture
def odd() -> Iterator[ClusterProcess]:
    process = begin(HANGING)
    yield process
    process.close()
    assert not process.alive


def identity(process: ClusterProcess) -> PidIdentity:
    found = PidIdentity.of(int(process.call("supervisors")[0][0]))
    assert found is not None
    return found


def test_a_call_that_hangs_ends_at_its_deadline_and_with_it_the_process(odd: ClusterProcess) -> None:
    who = identity(odd)
    with pytest.raises(OutOfReach, match=r"did not answer `warm` within 0\.5 s"):
        odd.call("warm", 1, None)
    assert (odd.alive, who.alive) == (False, False)
    with pytest.raises(OutOfReach):
        odd.call("supervisors")


def test_a_process_that_reads_nothing_holds_up_nobody_who_has_much_to_say() -> None:
    odd = begin(PATIENT | {"ask": SHORT_S})
    identity(odd).send(signal.SIGSTOP)
    with pytest.raises(OutOfReach, match="`ask` within"):
        odd.call("ask", bytes(50_000_000))
    assert not odd.alive


def test_what_is_large_goes_there_and_back(odd: ClusterProcess) -> None:
    package = os.urandom(20_000_000)
    assert odd.call("ask", package) == package


def test_a_process_that_ends_is_known_at_once(odd: ClusterProcess) -> None:
    with pytest.raises(OutOfReach, match="ended during `forget`"):
        odd.call("forget", "job")
    assert not odd.alive


def test_errors_of_the_cluster_keep_their_types_and_others_their_names(odd: ClusterProcess) -> None:
    with pytest.raises(AttemptUsed) as used:
        odd.call("start", None)
    assert (used.value.message, used.value.hint) == (
        "attempt 1 cannot start again.",
        "Start a new attempt.",
    )
    with pytest.raises(FaultMissed, match="no such worker"):
        odd.call("fault", "", 1, "kill", None, 1.0)
    with pytest.raises(RingleaderError, match="ZeroDivisionError: of job") as told:
        odd.call("release", "job", 1)
    assert "odd_cluster.py" in told.value.__notes__[0], "where it comes from is told with it"
    assert odd.alive


def test_a_fault_that_takes_long_holds_up_nobody(odd: ClusterProcess, tmp_path: Path) -> None:
    for name in ("begun", "may"):
        os.mkfifo(tmp_path / name)
    struck: list[str] = []
    harming = threading.Thread(
        target=lambda: struck.append(odd.call("fault", str(tmp_path), 1, "kill", "w1", 1.0))
    )
    harming.start()
    assert (tmp_path / "begun").read_text() == "begun"
    assert odd.call("supervisors")
    assert struck == []
    (tmp_path / "may").write_text("killed")
    harming.join(60)
    assert struck == ["killed"]


def test_who_closes_it_ends_what_is_under_way(tmp_path: Path) -> None:
    odd = begin(PATIENT)
    for name in ("begun", "may"):
        os.mkfifo(tmp_path / name)
    raised: list[Exception] = []

    def harm() -> None:
        try:
            odd.call("fault", str(tmp_path), 1, "kill", "w1", 1.0)
        except OutOfReach as error:
            raised.append(error)

    harming = threading.Thread(target=harm)
    harming.start()
    assert (tmp_path / "begun").read_text() == "begun"
    odd.close()
    harming.join(60)
    assert [str(error).split(".")[0] for error in raised] == [
        "the connection to the cluster ended during `fault`"
    ]


@pytest.mark.parametrize("frozen", [False, True])
def test_it_goes_with_a_parent_that_is_killed_even_where_it_is_frozen(frozen: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        who = PidIdentity.of(int(parent.stdout.readline()))
        assert who is not None
        if frozen:
            who.send(signal.SIGSTOP)
        parent.kill()
    wait_for("end of the process", lambda: not who.alive)


def test_each_method_of_the_cluster_has_a_deadline_and_nothing_else_has() -> None:
    """`close` disconnects; here the process is ended instead."""
    methods = {name for name in vars(RayCluster) if not name.startswith("_")} - {"close"}
    assert DEADLINES_S.keys() == methods


@pytest.fixture
def address() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def backend_at(address: str, deadlines_s: dict[str, float] = PATIENT, **more: float) -> RayBackend:
    return RayBackend(address, warm_per_node=0, process=lambda: ClusterProcess(ODD, deadlines_s), **more)


def pid_of(backend: RayBackend) -> int:
    ((pid, _),) = backend.supervisors()
    return int(pid)


def test_after_a_deadline_all_say_so_at_once_and_the_next_round_has_a_new_process(address: str) -> None:
    deadlines_s = dict(PATIENT)
    backend = backend_at(address, deadlines_s)
    who = PidIdentity.of(pid_of(backend))
    assert who is not None
    who.send(signal.SIGSTOP)
    deadlines_s["layout"] = SHORT_S
    with pytest.raises(OutOfReach, match="`layout` within"):
        backend.capacity()
    deadlines_s |= PATIENT
    assert not who.alive
    for method in (backend.capacity, backend.supervisors):
        with pytest.raises(OutOfReach, match="`layout` within"):
            method()
    with pytest.raises(OutOfReach, match="no connection"):
        backend.capacity()
    second = pid_of(backend)
    assert second != who.pid
    assert {node.id for node in backend.capacity().nodes} == {"n1"}
    backend.close()
    assert PidIdentity.of(second) is None


def test_a_release_ends_as_soon_as_the_cluster_answers_nothing_at_all(address: str) -> None:
    deadlines_s = dict(PATIENT)
    backend = backend_at(address, deadlines_s, watch_every_s=0.01)
    os.kill(pid_of(backend), signal.SIGSTOP)
    deadlines_s["supervisors"] = SHORT_S
    with pytest.raises(OutOfReach, match="did not answer `supervisors` within"):
        backend.release("job", 1)


def test_a_process_that_was_killed_is_told_of_once(address: str) -> None:
    backend = backend_at(address)
    os.kill(pid_of(backend), signal.SIGKILL)
    with pytest.raises(OutOfReach, match="ended during `supervisors`"):
        backend.supervisors()
    assert pid_of(backend)
    backend.close()


def test_a_process_that_does_not_connect_is_not_kept(address: str) -> None:
    begun: list[ClusterProcess] = []

    def hanging() -> ClusterProcess:
        begun.append(ClusterProcess(ODD, HANGING))
        return begun[-1]

    backend = RayBackend(address, warm_per_node=1, process=hanging)
    for _ in range(2):
        with pytest.raises(OutOfReach, match="`warm`"):
            backend.supervisors()
    assert [process.alive for process in begun] == [False, False]


def test_where_nobody_listens_no_process_is_begun(address: str) -> None:
    def never() -> Any:
        raise AssertionError("it was begun")

    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(OutOfReach, match=f"no Ray head answers at 127.0.0.1:{port}"):
        RayBackend(f"127.0.0.1:{port}", warm_per_node=0, process=never).supervisors()


def test_a_fault_that_is_not_answered_struck_nobody_that_is_known_of(address: str) -> None:
    deadlines_s = dict(PATIENT)
    backend = backend_at(address, deadlines_s)
    with pytest.raises(NobodyThere, match="has no connection"):  # the reconciler's round makes it
        backend.fault("job", 1, "kill", "w1", 1.0)
    pid = pid_of(backend)
    with pytest.raises(NobodyThere, match="no such worker"):
        backend.fault("job", 1, "kill", None, 1.0)
    os.kill(pid, signal.SIGSTOP)
    deadlines_s["fault"] = SHORT_S
    with pytest.raises(NobodyThere, match="did not answer `fault`"):
        backend.fault("job", 1, "kill", "w1", 1.0)
    backend.close()
