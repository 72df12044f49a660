"""A job that no cluster like this one can hold is told which of its keys asks for too much, and how much there is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from control_plane import SPEC, FakeCluster, Stage, stage

from ringleader.errors import RingleaderError
from ringleader.spec import JobSpec
from ringleader_api.scheduling import Claim, NodeShape, Reach, Seen, WorkerNeed
from ringleader_api.scheduling.pending_reasons import gang
from ringleader_api.services.jobs.infeasible import placeable

CPUS = (NodeShape("a", 4, 0, 16), NodeShape("b", 8, 0, 8))
GPUS = (NodeShape("a", 4, 0, 64), NodeShape("g", 2, 1, 16))
SERVERS = {"sync": "parameter_server", "workers": {"min": 1, "max": 1}}
NOTHING_MORE = "Ask for less for each {}, or add a larger node."


def refused(nodes: Sequence[NodeShape], reach: Reach | None = None, **changes: Any) -> Any:
    with pytest.raises(RingleaderError) as error:
        placeable(JobSpec.parse({**SPEC, **changes}), Seen(nodes, reach=reach))
    return error.value


def one(**each: Any) -> dict[str, Any]:
    return {"workers": {"min": 1, "max": 1, **each}}


@pytest.mark.parametrize(
    ("nodes", "changes", "pointer", "value", "told"),
    [
        (CPUS, one(gpus=1), "/workers/gpus", 1, "no node has a GPU; allowed: at most 0 GPUs"),
        (CPUS, one(cpus=64), "/workers/cpus", 64, "a node has at most 8 CPUs; allowed: at most 8 CPUs"),
        (CPUS, one(memory_gb=6400), "/workers/memory_gb", 6400, "a node has at most 16 GB"),
        (CPUS, one(cpus=8, memory_gb=16), "/workers/memory_gb", 16, "a node has at most 8 GB"),
        (GPUS, one(cpus=4, gpus=1), "/workers/cpus", 4, "a node has at most 2 CPUs"),
        (CPUS, {**SERVERS, "servers": {"cpus": 64}}, "/servers/cpus", 64, "a server can get: a node has at most 8"),
        (CPUS, {**SERVERS, "servers": {"memory_gb": 6400}}, "/servers/memory_gb", 6400, "a node has at most 16 GB"),
        (CPUS, {**SERVERS, "servers": {"gpus": 1}}, "/servers/gpus", 1, "a server can get: no node has a GPU"),
        (CPUS, {"workers": {"min": 13, "max": 13}}, "/workers/min", 13, "at most 12 workers of 1 CPU"),
    ],
)  # fmt: skip
def test_the_key_that_no_node_can_give_is_named_with_the_most_that_one_has(
    nodes: Sequence[NodeShape], changes: dict[str, Any], pointer: str, value: float, told: str
) -> None:
    error = refused(nodes, **changes)
    (finding,) = error.errors
    assert (error.code, finding["pointer"], finding["value"]) == ("infeasible", pointer, value)
    assert finding["message"].startswith(f"{value} is more than")
    assert told in finding["message"]


def test_a_cluster_that_grows_is_measured_by_what_it_may_grow_to() -> None:
    reach = Reach(16, 0)
    placeable(JobSpec.parse({**SPEC, **one(cpus=16)}), Seen(CPUS, reach=reach))
    error = refused(CPUS, reach, **one(cpus=17))
    assert error.errors[0]["pointer"] == "/workers/cpus"
    assert error.errors[0]["allowed"] == "at most 16 CPUs; the cluster can grow to 16 CPUs and 0 GPUs"


@pytest.mark.parametrize("device", [None, "auto"])
def test_who_asks_for_a_gpu_where_there_is_none_hears_how_to_train_on_cpus(
    tmp_path: Path, device: str | None
) -> None:
    here: Stage = stage(tmp_path, FakeCluster())
    here.tick()
    workers = {"min": 1, "max": 1, "gpus": 1, **({"device": device} if device else {})}
    answer = here.client.post("/api/v1/jobs", json={**SPEC, "workers": workers}).json()
    assert answer["hint"].startswith("Leave out workers.gpus and workers.device to train on CPUs.")
    assert "workers.device: auto reserves a GPU, too" in answer["hint"]
    assert here.client.post("/api/v1/jobs", json={**SPEC, **one()}).status_code == 201


def test_numbers_agree_with_their_nouns() -> None:
    one, several = WorkerNeed(1, 0, 0), WorkerNeed(0.5, 2, 8)
    assert gang(Claim("j", one, 1, 1)) == "1 worker of 1 CPU"
    assert gang(Claim("j", several, 2, 2)) == "2 workers of 0.5 CPUs, 2 GPUs, 8 GB"
    assert str(Reach(1, 0)) == "1 CPU and 0 GPUs"
