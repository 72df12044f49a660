"""Who takes what of the cluster: nodes, queue, projects, the autoscaler, and the last days."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from control_plane import FakeCluster, Stage, stage, status

from ringleader_api.scheduling import NodeShape, WorkerNeed

OCCUPANCY, HISTORY = "/api/v1/cluster/occupancy", "/api/v1/cluster/history"
NOTHING = {"cpus": 0, "gpus": 0, "memory_gb": 0}


def fixed(workers: int) -> dict[str, int]:
    return {"min": workers, "max": workers}


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path, FakeCluster())


def worker(name: str, node: str) -> dict[str, Any]:
    one = {"id": name, "role": "worker", "rank": 0, "pid": 1, "state": "running", "generation": 1}
    return {**one, "node": node, "shards": [0, 1]}


def test_nodes_say_which_job_takes_what_and_not_which_where_one_may_not_read_it(here: Stage) -> None:
    here.cluster.nodes.append(NodeShape("n2", 4, 1, 8))
    here.cluster.addresses = {"n1": "10.0.0.7"}
    mine = here.running(name="mine", project="vision", workers=fixed(3))
    here.cluster.places = {(mine, 1): [("n1", 1), ("n2", 1), ("n1", 1)]}  # the gang's, and one beyond it
    here.post(mine, status=status("running", world_size=3, workers=[worker("w0", "n1"), worker("w1", "n2")]))
    here.time.pass_s(5)
    here.tick()
    seen = here.client.get(OCCUPANCY).json()
    first, second = seen["nodes"]
    assert (seen["reachable"], seen["growing"], first["others"], second["gpus"]) == (True, None, NOTHING, 1)
    assert [node["address"] for node in seen["nodes"]] == ["10.0.0.7", ""]
    named = {"job": mine, "name": "mine", "project": "vision", "servers": 0}
    takes = {**NOTHING, "cpus": 2}
    assert first["jobs"] == [{**named, **takes, "places": 2, "members": ["w0"]}]
    ann = here.user("ann", speech="viewer")
    theirs = ann.get(OCCUPANCY).json()
    unnamed = {"job": None, "name": None, "project": None, "servers": 0}
    assert theirs["nodes"][0]["jobs"] == [{**unnamed, **takes, "places": 2, "members": []}]
    assert [one["name"] for one in theirs["projects"]] == ["speech"]
    assert mine not in ann.get(OCCUPANCY).text


def test_the_queue_is_told_in_its_order_and_a_start_only_where_it_is_known(here: Stage) -> None:
    here.client.patch("/api/v1/projects/default", json={"quota": {"workers": 9}})
    here.running(workers=fixed(4), max_runtime_s=60)
    last = here.submit(name="last", workers=fixed(4), priority=-1)
    head = here.submit(name="head", workers=fixed(4))
    other = here.submit(name="other", workers=fixed(4), project="speech", priority=-2)
    here.tick()
    seen = here.client.get(OCCUPANCY).json()
    assert [(one["place"], one["job"]) for one in seen["queue"]] == [(1, head), (2, last), (3, other)]
    first, second, _ = seen["queue"]
    assert (first["workers"], first["why"]["code"], seen["waiting"]) == (4, "waiting_for_capacity", 3)
    assert datetime.fromisoformat(first["starts_by"]) > here.time()
    assert second["starts_by"] is None
    (project,) = [one for one in seen["projects"] if one["name"] == "default"]
    assert (project["quota"]["workers"], project["held"]["workers"], project["held"]["waiting"]) == (9, 4, 2)
    theirs = here.user("ann", speech="viewer").get(OCCUPANCY).json()["queue"]
    assert [one["job"] for one in theirs] == [None, None, other]
    assert {value for key, value in theirs[0].items() if key != "place"} == {None}


def test_a_start_of_which_nobody_knows_is_not_made_up(here: Stage) -> None:
    here.running(workers=fixed(4))
    here.submit(workers=fixed(4))
    here.tick()
    (waiting,) = here.client.get(OCCUPANCY).json()["queue"]
    assert (waiting["place"], waiting["starts_by"]) == (1, None)
    here.cluster.down = True
    here.tick()
    away = here.client.get(OCCUPANCY).json()
    assert (away["reachable"], away["nodes"], away["waiting"]) == (False, [], 1)
    assert "the head is gone" in away["trouble"]


def test_what_the_autoscaler_was_asked_and_what_it_could_not_provide_is_told(tmp_path: Path) -> None:
    grows = {"autoscale_cpus": 16, "autoscale_patience_s": 60}
    here = stage(tmp_path, FakeCluster(), **grows)
    here.submit(workers=fixed(8))
    here.tick()
    asked = here.client.get(OCCUPANCY).json()["growing"]
    assert (asked["reach_cpus"], asked["missing"]) == (16, [])
    assert here.cluster.asked[-1] == {WorkerNeed(1, 0, 0): 8}
    assert [(one["workers"], one["cpus"]) for one in asked["asked"]] == [(8, 1)]
    here.cluster.trouble = "no nodes are left"
    here.rounds(90)
    missing = here.client.get(OCCUPANCY).json()["growing"]
    assert [one["why"] for one in missing["missing"]] == ["no nodes are left"]


def test_a_minute_is_sampled_once_and_forgotten_after_a_week(here: Stage) -> None:
    here.running(workers=fixed(3))
    here.submit(workers=fixed(4))
    here.tick(3)
    first = here.client.get(HISTORY).json()
    before = len(first["at"])
    here.time.pass_s(60)
    here.tick(3)
    now = here.client.get(HISTORY, params={"hours": 168}).json()
    assert len(now["at"]) == before + 1
    last = {name: values[-1] for name, values in now.items() if name != "at"}
    held = {"held_cpus": 3, "held_gpus": 0, "jobs": 1, "waiting": 1}
    assert last == {"nodes": 1, "cpus": 4, "gpus": 0, **held}
    here.time.pass_s(timedelta(days=8).total_seconds())
    here.tick()
    assert len(here.client.get(HISTORY, params={"hours": 168}).json()["at"]) == 1
    assert here.client.get(HISTORY, params={"hours": 169}).status_code == 422
