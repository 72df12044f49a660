"""Jobs on a cluster of two hosts behind 1 Gbit/s links: the bits of one process, and the bytes of the formulas.

Every link counts what enters its host. Before the first step one member gives its state to all others, so that all
start from the same weights; `auto` times a few messages; several servers publish. After it every step brings what the
mode's formula says. Nothing else of a job's size crosses: Ray carries control.
"""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from linked_hosts import PROCESSES, LinkedHosts, linked_hosts
from waiting import wait_for

from ringleader.bench.exchange import laboratory
from ringleader.cli.demo.alone import Undisturbed, undisturbed
from ringleader.client import Job

WIDE = Path(__file__).with_name("wide")
WIDTHS = (740, 700)
EPOCHS, STEPS = 4, 32
GRADIENTS = 4 * (2 * WIDTHS[0] * WIDTHS[1] + sum(WIDTHS))
HEADERS = 1.02
"""Ethernet, IP and TCP headers and acknowledgements; a link counts 64 KB segments, which have one header each."""
CONTROL_BYTES = 1_000_000
"""Ray's part: the package, heartbeats with losses and lines, idle processes that are started meanwhile."""
DEADLINE_S = 100

pytestmark = [
    pytest.mark.skipif(bool(laboratory.missing()), reason=f"no network laboratory: {laboratory.missing()}"),
    pytest.mark.timeout(6 * DEADLINE_S),  # the first one waits for hosts and control plane too
]


def wide(workers: int, **changes: object) -> dict[str, object]:
    job = {
        "name": "wide",
        "entrypoint": "wide:train",
        "params": {"epochs": EPOCHS, "go": ""},
        "workers": {"min": workers, "max": workers, "placement": "spread"},
        "batch": {"global_size": 32, "logical_shards": 4},
    }
    return job | changes


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    folder = tmp_path_factory.mktemp("alone")
    (folder / "job.yaml").write_text(json.dumps(wide(1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(WIDE), os.environ.get("PYTHONPATH")))))
        with undisturbed(folder / "job.yaml", folder) as run:
            patch.undo()
            yield run


@pytest.fixture(scope="module")
def lab(one_process: Undisturbed) -> Iterator[LinkedHosts]:
    """Comes up while the one process trains."""
    with linked_hosts(2) as linked:
        yield linked


@pytest.fixture(scope="module")
def alone(lab: LinkedHosts, one_process: Undisturbed) -> str:
    """The weights of one process."""
    return one_process.sha256()


@dataclass(frozen=True)
class Trained:
    """A job that ran undisturbed.

    Attributes:
        workers, servers: the number of the host of each.
        entered: bytes, by host.
    """

    sha256: str
    workers: tuple[int, ...]
    servers: tuple[int, ...]
    entered: tuple[int, ...]

    def brings(self, host: int, *, a_step: float) -> None:
        """What entered that host is so much a step, first states, and headers."""
        expected = STEPS * a_step + GRADIENTS * self.healed(host)
        assert expected * 0.999 <= self.entered[host] <= expected * HEADERS + CONTROL_BYTES

    def healed(self, host: int) -> int:
        """How many members there took their first state from one elsewhere."""
        donor, *others = self.servers + self.workers
        return others.count(host) if donor != host else 0


def submit(lab: LinkedHosts, folder: Path, spec: dict[str, object]) -> tuple[Job, Path]:
    """The job, once it is on its way and held, and the file that lets it go on."""
    go = folder / "go"
    job = lab.stack.client.submit(spec | {"params": {"epochs": EPOCHS, "go": str(go)}}, working_dir=WIDE)
    wait_for("first steps", lambda: job.refresh().view.progress.step > 0, DEADLINE_S)
    return job, go


def trained(lab: LinkedHosts, folder: Path, spec: dict[str, object]) -> Trained:
    before = lab.crossed()
    job, go = submit(lab, folder, spec)
    where = lab.of(job)
    go.touch()
    result = job.wait(timeout=DEADLINE_S)
    entered = tuple(now - then for (now, _), (then, _) in zip(lab.crossed(), before, strict=True))
    assert result.steps == STEPS
    return Trained(result.weights_sha256, where["worker"], where.get("server", ()), entered)


def test_a_ring_of_two_hosts_brings_its_gradients_once_into_each(
    lab: LinkedHosts, alone: str, tmp_path: Path
) -> None:
    run = trained(
        lab, tmp_path, wide(2, sync={"intra_node": "ring", "inter_node": "ring", "algorithm": "direct"})
    )
    assert sorted(run.workers) == [0, 1]
    assert run.sha256 == alone
    for host in (0, 1):
        run.brings(host, a_step=GRADIENTS)


def test_a_server_takes_the_other_hosts_gradients_and_gives_weights(
    lab: LinkedHosts, alone: str, tmp_path: Path
) -> None:
    run = trained(lab, tmp_path, wide(2, sync="parameter_server"))
    assert sorted(run.workers) == [0, 1]
    assert run.sha256 == alone
    for host in (0, 1):
        run.brings(host, a_step=GRADIENTS)


def test_two_servers_stand_beside_the_workers_and_share_the_traffic(
    lab: LinkedHosts, alone: str, tmp_path: Path
) -> None:
    sync = {"intra_node": "parameter_server", "inter_node": "parameter_server", "servers": 2}
    run = trained(lab, tmp_path, wide(2, sync=sync))
    assert sorted(run.workers) == sorted(run.servers) == [0, 1]
    assert run.sha256 == alone
    for host in (0, 1):
        pushed = published = GRADIENTS / 2  # once for worker and server of the host
        run.brings(
            host, a_step=pushed + published
        )  # nothing before: all have the first weights from a member


def test_two_levels_bring_the_gradients_once_into_a_host_with_two_workers(
    lab: LinkedHosts, alone: str, tmp_path: Path
) -> None:
    sync = {"intra_node": "ring", "inter_node": "ring", "algorithm": "two_level"}
    run = trained(lab, tmp_path, wide(4, sync=sync))
    assert run.workers in {(0, 0, 1, 1), (1, 1, 0, 0)}
    assert run.sha256 == alone  # one shard a worker, and what a host holds is a node of the tree
    for host in (0, 1):
        run.brings(host, a_step=GRADIENTS)


def test_a_worker_killed_on_the_far_host_costs_no_bit(lab: LinkedHosts, alone: str, tmp_path: Path) -> None:
    job, go = submit(lab, tmp_path, wide(2))
    near, far = sorted(job.workers(), key=lambda worker: worker.rank)
    assert lab.host_of(near.pid) != lab.host_of(far.pid)
    os.kill(far.pid, signal.SIGKILL)
    go.touch()
    result = job.wait(timeout=DEADLINE_S)
    assert result.weights_sha256 == alone
    events = list(job.events())
    assert [event.data["pid"] for event in events if event.type == "worker.lost"] == [far.pid]
    assert all(near.id in event.data["members"] for event in events if event.type == "generation.formed")
    assert [point.step for point in job.metrics("loss", max_points=1000)] == list(range(1, STEPS + 1))


def test_the_rest_goes_on_without_a_host_that_is_cut_off_and_refuses_its_worker_when_it_is_back(
    lab: LinkedHosts, alone: str, tmp_path: Path
) -> None:
    """The last one here: a host that was away for long is none of Ray's any more."""
    job, go = submit(lab, tmp_path, wide(2))
    job.resize(min=1)
    near, far = sorted(job.workers(), key=lambda worker: worker.rank)
    with lab.hosts[lab.host_of(far.pid)].cut_off():
        go.touch()
        try:
            wait_for("the loss", lambda: lost_members(job), DEADLINE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{job.refresh().view}\n{told(job)}") from None
    result = job.wait(timeout=DEADLINE_S)
    assert result.weights_sha256 == alone
    wait_for("the end of the lost one", lambda: not (PROCESSES / str(far.pid)).exists(), DEADLINE_S)
    assert lost_members(job) == [(far.pid, "frozen")], told(job)
    later = [set(e.data["members"]) for e in job.events() if e.type == "generation.formed"][1:]
    assert all(near.id in members and far.id not in members for members in later)
    assert [point.step for point in job.metrics("loss", max_points=1000)] == list(range(1, STEPS + 1))


def told(job: Job) -> str:
    return "\n".join(f"{event.type} {event.data}" for event in job.events())


def lost_members(job: Job) -> list[tuple[int, str]]:
    """(pid, cause). Who was to come onto the host that is cut off, and never did, has no pid."""
    lost = [event.data for event in job.events() if event.type == "worker.lost"]
    return [(data["pid"], data["cause"]) for data in lost if data["pid"] is not None]
