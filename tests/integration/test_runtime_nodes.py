"""Jobs whose weights travel as tokens on one of two levels, or both, on a Ray cluster of two nodes; and what those
nodes have, reserve and install."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pytest
import torch
from integration.ray_home import IngestServer, address, living, ray_node
from integration.runtime_job import TRAIN, Run, start, write_training
from integration.test_api_process import process
from pace import gates
from waiting import wait_for
from wheels import wheel

from ringleader import Client
from ringleader.runtime.nodes import death_watch
from ringleader.runtime.nodes.cluster import RayCluster
from ringleader.wire.package import pack

AWAY = "127.0.0.3"
EPOCHS = 60
STEPS, ROWS = EPOCHS * 4, EPOCHS * 64
MODES = {
    "rings-between": {"inter_node": "token_ring", "intra_node": "ring"},
    "servers-between": {"inter_node": "token_ring", "intra_node": "parameter_server", "servers": 2},
    "servers-over-rings": {"inter_node": "parameter_server", "intra_node": "token_ring", "servers": 2},
}


@pytest.fixture(scope="module")
def away(cluster: RayCluster) -> Iterator[str]:
    """The id of the second node."""
    with ray_node(AWAY, num_cpus=8, num_gpus=2) as node:
        wait_for("second node", lambda: node in living(), 180)
        yield node


def by_node(run: Run) -> dict[str, list[str]]:
    """The ids of the members on each node, workers and servers."""
    found: dict[str, list[str]] = {}
    for worker in run.ingest.status.get("workers", []):
        if worker["rank"] is not None:
            found.setdefault(worker["node"], []).append(worker["id"])
    return found


@pytest.mark.parametrize("mode", MODES)
def test_tokens_on_two_levels_train_a_job_on_two_nodes_and_lose_no_row(
    cluster: RayCluster,
    away: str,
    home: Path,
    ingest: IngestServer,
    package: bytes,
    tmp_path: Path,
    mode: str,
) -> None:
    victims: list[str] = []
    run = start(
        cluster,
        home,
        ingest,
        package,
        mode,
        workers={"min": 4, "max": 4, "placement": "spread"},
        params={"epochs": EPOCHS, "pause": 0.005, "gates": gates(tmp_path, 60)},
        sync=MODES[mode],
        debug={"ledger": True},
    )
    run.until_world(4)
    run.until_step(8)
    nodes, before = by_node(run), run.pids()
    members = [{name[0] for name in names} for names in nodes.values()]
    assert members == [{"w", "s"} if "servers" in MODES[mode] else {"w"}] * 2, nodes
    if mode == "rings-between":
        victims = nodes[away][:1]
        os.kill(before[victims[0]], signal.SIGKILL)
        wait_for("replacement", lambda: len(ingest.events("worker.joined")) > len(before), 60)
    run.open_gate(60)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert (outcome["result"]["steps"], outcome["result"]["samples"]) == (STEPS, ROWS)
    losses = [m["values"]["loss"] for m in ingest.stream("metrics")]
    assert len(losses) == STEPS
    assert sum(losses[-20:]) / 20 < 0.5 * sum(losses[:4]) / 4, "it learns"
    assert [lost["worker"] for lost in ingest.events("worker.lost")] == victims
    assert not ingest.events("warning"), "there is something between the nodes"
    run.leave_nothing()


def test_what_burning_workers_use_is_measured_on_each_of_two_nodes(
    cluster: RayCluster, away: str, home: Path, ingest: IngestServer, package: bytes, tmp_path: Path
) -> None:
    workers = {"min": 2, "max": 2, "placement": "spread"}
    burnt = tmp_path / "burnt"
    run = start(
        cluster,
        home,
        ingest,
        package,
        "burning",
        function="burn",
        workers=workers,
        params={"burnt": str(burnt)},
    )
    run.until_world(2)
    pids, nodes = run.pids(), by_node(run)
    assert away in nodes
    assert len(nodes) == 2
    began, before = monotonic(), {worker: cpu_s(pid) for worker, pid in pids.items()}

    def shown(worker: str) -> bool:
        """More than half of what the worker has got of a core, be the machine as busy as it likes."""
        got = (cpu_s(pids[worker]) - before[worker]) / (monotonic() - began)
        uses = [use for sample in ingest.system for use in sample.uses if use.id == worker]
        return any(use.figures.get("cpu_percent", 0.0) > 50 * min(1.0, got) > 5 for use in uses)

    for worker in pids:
        wait_for(f"what {worker} uses", lambda worker=worker: shown(worker), 120)
    last = {use.id: use for sample in ingest.system for use in sample.uses}
    for node, (worker,) in nodes.items():
        assert (last[worker].kind, last[worker].node) == ("worker", node)
        assert last[worker].figures["memory_bytes"] > 50e6, "torch alone takes more"
        assert 0 < last[node].figures["cpu_percent"] <= 100
        assert last[node].figures["memory_total_bytes"] > last[node].figures["memory_bytes"] > 0
        assert "gpu_percent" not in last[node].figures, "there is none"
    wait_for("the newest beside the worker", lambda: all(w["cpu_percent"] for w in ingest.status["workers"]))
    burnt.touch()
    assert run.outcome()["outcome"] == "succeeded"
    run.leave_nothing()


def cpu_s(pid: int) -> float:
    found = psutil.Process(pid).cpu_times()
    return found.user + found.system


ENDS = """
import os
from pathlib import Path
import torch
from pace import keep_pace
from torch.utils.data import TensorDataset

def train(session):
    net = session.model(torch.nn.Linear(8, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.001))
    rows = TensorDataset(torch.ones(64, 8), torch.ones(64))
    ends = Path(session.params["ends"]) / str(os.getpid())
    for epoch in range(3):
        for x, y in session.batches(rows):
            keep_pace(session)
            if ends.exists():
                os._exit(3)
            session.step(((net(x).squeeze(-1) - y) ** 2).mean())
"""
WATCHER = "DeathWatcher"


@pytest.mark.parametrize(("way", "cause"), [("exit", "died (exit code 3)"), ("kill", "died (SIGKILL)")])
def test_how_a_process_of_another_node_ended_is_told(
    cluster: RayCluster, away: str, home: Path, ingest: IngestServer, tmp_path: Path, way: str, cause: str
) -> None:
    write_training(tmp_path / "ends", ENDS)
    run = start(
        cluster,
        home,
        ingest,
        pack(tmp_path / "ends"),
        f"ended-{way}",
        workers={"min": 2, "max": 2, "placement": "spread"},
        params={"ends": str(tmp_path), "gates": gates(tmp_path, 4)},
    )
    run.until_step(4)
    (victim,) = by_node(run)[away]
    pid = run.pids()[victim]
    watching = wait_for("who watches it", lambda: watchers(pid))

    def told() -> list[str]:
        found = [*ingest.events("worker.lost"), *ingest.events("worker.explained")]
        return [event["cause"] for event in found if event["worker"] == victim]

    # Stopped: on a busy machine its raylet may wait for the process before its watcher has read the status.
    raylet = psutil.Process(pid).parent()
    raylet.suspend()
    try:
        if way == "exit":
            (tmp_path / str(pid)).touch()
        else:
            os.kill(pid, signal.SIGKILL)
        wait_for("the cause", lambda: cause in told(), 60)
    finally:
        raylet.resume()
    run.open_gate(4)
    assert run.outcome()["outcome"] == "succeeded"
    assert told()[-1] == cause
    run.leave_nothing()
    wait_for("end of the watcher", lambda: not set(watching) & set(watchers()), 60)


HOLDS = ENDS.replace("os._exit(3)", "ends.unlink(); sum(range(800_000_000))  # holds the interpreter's lock")


def test_a_process_of_another_node_that_runs_without_beating_is_not_frozen(
    cluster: RayCluster, away: str, home: Path, ingest: IngestServer, tmp_path: Path
) -> None:
    write_training(tmp_path / "holds", HOLDS)
    run = start(
        cluster,
        home,
        ingest,
        pack(tmp_path / "holds"),
        "holds",
        workers={"min": 2, "max": 2, "placement": "spread"},
        params={"ends": str(tmp_path), "gates": gates(tmp_path, 4)},
    )
    run.until_step(4)
    (victim,) = by_node(run)[away]
    process = psutil.Process(run.pids()[victim])
    wait_for("who looks at it", lambda: watchers(process.pid))
    # Stopped: on a busy machine its raylet takes longer to start a process for a look than a silence may last.
    raylet = process.parent()
    raylet.suspend()
    try:
        used_s = process.cpu_times().user
        (tmp_path / str(process.pid)).touch()
        wait_for("seconds of its own without a beat", lambda: process.cpu_times().user - used_s > 3.5, 60)
    finally:
        raylet.resume()
    run.open_gate(4)
    assert run.outcome()["outcome"] == "succeeded"
    assert ingest.events("worker.lost") == []
    run.leave_nothing()


def watchers(of: int | None = None) -> list[int]:
    """The processes that await deaths on another node; `of`: those that have the life of this process."""
    titles = [(p.pid, p.info["cmdline"] or [""]) for p in psutil.process_iter(["cmdline"])]
    found = [pid for pid, words in titles if WATCHER in words[0]]
    return found if of is None else [pid for pid in found if lives(pid) & lives(of)]


def lives(pid: int) -> set[str]:
    """The inodes of all lives that a process has mapped."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.split()[4] for line in maps if death_watch.NAME in line}


JOB_FILE = """
name: digits-{mode}
entrypoint: ringleader_jobs.digits:train
params: {{lr: 0.05, epochs: 10}}
workers: {{min: 4, max: 4, placement: spread}}
batch: {{global_size: 64}}
sync: {sync}
"""


@pytest.fixture(scope="module")
def plane(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a control plane on the cluster."""
    home = tmp_path_factory.mktemp("plane") / "home"
    with (
        process(home, RINGLEADER_RAY_ADDRESS=address(), RINGLEADER_WARM_PER_NODE="3") as (_, plane),
        Client(str(plane.base_url), (home / "token").read_text().strip()) as client,
    ):
        yield client


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_a_job_file_with_tokens_on_one_level_trains_digits_on_two_nodes_over_rest(
    cluster: RayCluster, away: str, plane: Client, tmp_path: Path, mode: str
) -> None:
    """Through API, scheduler and supervisor, as users submit it."""
    file = tmp_path / "job.yaml"
    file.write_text(JOB_FILE.format(mode=mode, sync=json.dumps(MODES[mode])))
    job = plane.submit(file)
    assert job.wait(timeout=180).steps == 10 * 23
    accuracy = [point.value for point in job.metrics("accuracy")]
    assert len(accuracy) == 10
    assert accuracy[-1] > 0.9, "chance is 0.1"
    told = list(job.events())
    formed = [event for event in told if event.type == "generation.formed"]
    members = {"w": 4, "s": 2} if "servers" in MODES[mode] else {"w": 4}
    assert Counter(name[0] for name in formed[-1].data["members"]) == members
    assert not [event for event in told if event.type == "warning"], "it is between the nodes, too"
    wait_for("free CPUs", lambda: cluster.capacity().available.get("CPU", 0) == cluster.capacity().cpus)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_worker_whose_node_has_no_device_to_see_fails_the_job_before_its_code_runs(
    cluster: RayCluster, away: str, home: Path, ingest: IngestServer, package: bytes
) -> None:
    run = start(cluster, home, ingest, package, "no-device", workers={"min": 1, "max": 1, "gpus": 1})
    outcome = run.outcome()
    assert (outcome["outcome"], outcome["reason"]["code"]) == ("failed", "no_device"), outcome
    assert f"no CUDA device on node {AWAY} (worker w0)" in outcome["reason"]["message"]
    assert not [line for line in ingest.stream("logs") if "hello" in line["line"]]
    run.leave_nothing()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_servers_stand_beside_workers_that_hold_every_device(
    cluster: RayCluster, away: str, home: Path, ingest: IngestServer, package: bytes
) -> None:
    run = start(
        cluster,
        home,
        ingest,
        package,
        "beside",
        workers={"min": 2, "max": 2, "gpus": 1, "device": "auto"},
        sync="parameter_server",
        servers={"count": 2, "cpus": 0.5},
        params={"epochs": 2},
    )
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert "device" in {warning["about"] for warning in ingest.events("warning")}
    run.leave_nothing()


def test_the_workers_of_a_node_find_the_packages_that_a_job_brings(
    cluster: RayCluster, away: str, home: Path, ingest: IngestServer, tmp_path: Path
) -> None:
    wheel(tmp_path / "links", "smallpkg", "2.0")
    brings = "def brings(session):\n    import smallpkg\n    print('small', smallpkg.VERSION)\n    train(session)\n"
    write_training(tmp_path / "brings", TRAIN + brings)
    env = {
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(tmp_path / "links"),
        "RINGLEADER_SCRATCH": str(tmp_path / "own"),
    }
    asked: dict[str, Any] = {"workers": {"min": 2, "max": 2}, "params": {"epochs": 1}, "env": env}
    work = pack(tmp_path / "brings")
    asked |= {"function": "brings"}
    run = start(cluster, home, ingest, work, "brings", requirements=["smallpkg==2.0"], **asked)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert any("small 2.0" in line["line"] for line in ingest.stream("logs"))
    assert [told["packages"] for told in ingest.events("requirements.installed")] == [["smallpkg==2.0"]]
    run.leave_nothing()
    ingest.forget()
    run = start(cluster, home, ingest, work, "not-to-be-had", requirements=["smallpkg==9.9"], **asked)
    outcome = run.outcome()
    assert (outcome["outcome"], outcome["reason"]["code"]) == ("failed", "requirements_failed")
    assert "smallpkg==9.9" in outcome["reason"]["message"]
    run.leave_nothing()
