"""Somebody with an account on the machine of a running job, who knows its name and finds the store of its members."""

import os
import signal
from pathlib import Path

import pytest
from accounts import as_nobody, needs_root
from integration.runtime_job import start
from rooms import SECRET
from waiting import wait_for

from ringleader.comm.seal import NONCE_BYTES, TAG_BYTES
from ringleader.comm.store_connection import HELLO, StoreConnection, local_socket
from ringleader.runtime.nodes.environment import rays_sockets

ROOM = "job-guarded-a1"
CROWD = 300


@needs_root
def test_another_account_gets_no_word_of_a_running_job_and_disturbs_no_recovery(
    cluster, home, ingest, package
):
    import ray

    params = {"epochs": 5000, "pause": 0.01}
    run = start(cluster, home, ingest, package, "guarded", workers={"min": 1, "max": 2}, params=params)
    run.until_world(2)
    pool = ray.get_actor("warm-pool", namespace="ringleader")
    host, _, port = ray.get(pool.room.remote("job-other-a1", SECRET)).rpartition(":")
    hello = HELLO.pack(len(ROOM)) + ROOM.encode() + bytes(NONCE_BYTES + TAG_BYTES)
    code = """
heard, silent = 0, []
for number in range(int(sys.argv[4])):
    connection = socket.create_connection((sys.argv[1].encode(), int(sys.argv[2])), timeout=30)
    heard += len(connection.recv(1 << 16))
    silent.append(connection)
    if number % 2:
        try:
            connection.sendall(bytes.fromhex(sys.argv[3]) + b"place/0" * 1000)
            heard += len(connection.recv(1 << 16))
        except ConnectionError:
            pass
print(heard)
"""
    said = as_nobody(code, host, port, hello.hex(), str(CROWD))
    here = rays_sockets()
    assert here is not None
    place = {"room": "job-other-a1", "secret": SECRET, "folder": here}
    StoreConnection(
        "203.0.113.1", int(port), 30.0, **place
    ).close()  # nobody's address: only the socket leads there
    connect = "print(tried(socket.socket(socket.AF_UNIX).connect, sys.argv[1]))"
    path = local_socket(here, int(port))
    assert as_nobody(connect, str(path)) == ["PermissionError"]
    connected = [
        line for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(f" {path}")
    ]
    assert len(connected) >= 1 + 2, "its listener, and both members of the job"
    assert said == [str(CROWD * NONCE_BYTES)], "more than what everybody is asked"
    with pytest.raises(ConnectionError):
        StoreConnection(host, int(port), 30.0, room=ROOM, secret=SECRET)
    StoreConnection(host, int(port), 30.0, room="job-other-a1", secret=SECRET).close()
    before = run.pids()
    os.kill(before["w1"], signal.SIGKILL)
    wait_for("replacement", lambda: len(ingest.events("worker.joined")) >= 3, 90)
    assert run.pids()["w0"] == before["w0"]
    cluster.cancel("guarded", 1, 0.0)
    assert run.outcome()["outcome"] == "cancelled"
    run.leave_nothing()
