"""Parameter servers of a shape of their own: what they take, who makes room for them, and what refusals say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from control_plane import SPEC, FakeCluster, Stage, stage
from hypothesis import given, settings
from hypothesis import strategies as st
from test_api_scheduler import CLUSTERS, NEEDS, carried_out, claims

from ringleader_api.scheduling import (
    Admit,
    Claim,
    ClusterSnapshot,
    EvictJob,
    Grant,
    Hold,
    NodeShape,
    ProjectShare,
    Reach,
    SchedulerRules,
    WorkerNeed,
    decide,
    fits,
    reaches,
)
from ringleader_api.scheduling.admission import plan
from ringleader_api.scheduling.room import FreeRoom, together

WORKER, SERVER = WorkerNeed(1, 1, 0), WorkerNeed(1, 0, 0)
FOUR_GPUS = [NodeShape("n0", 8, 4, 64)]


def job(name: str, floor: int, servers: int, **keys: Any) -> Claim:
    own = {"holds": floor, "elastic": True, "server_need": SERVER, **keys}
    return Claim(name, WORKER, floor, servers=servers, **own)


def test_servers_take_no_devices_from_workers() -> None:
    asked = job("a", 3, 2)
    assert fits(FOUR_GPUS, asked)
    assert not fits(FOUR_GPUS, replace(asked, server_need=WORKER)), "with a device each they did not fit"
    assert isinstance(decide(ClusterSnapshot(FOUR_GPUS, [], [asked]))[0], Admit)
    (held,) = decide(ClusterSnapshot(FOUR_GPUS, [], [job("b", 3, 6)]))
    assert isinstance(held, Hold)
    assert "3 workers of 1 CPU, 1 GPU each and 6 servers of 1 CPU each" in held.why.message


def test_nobody_is_promised_room_beside_a_gang_that_fits_with_care_alone_until_it_has_its_places() -> None:
    asked, small = job("a", 3, 2), Claim("b", WorkerNeed(1, 0, 0), 1, 1, elastic=True)
    first, second = decide(ClusterSnapshot(FOUR_GPUS, [], [asked, small]))
    assert (type(first), type(second)) == (Admit, Hold)
    landing = replace(asked, placed=[], servers_placed=[])
    assert isinstance(decide(ClusterSnapshot(FOUR_GPUS, [landing], [small]))[0], Hold)
    there = replace(asked, placed=[("n0", 3)], servers_placed=[("n0", 2)])
    assert isinstance(decide(ClusterSnapshot(FOUR_GPUS, [there], [small]))[0], Admit)


def test_what_servers_hold_is_missing_to_others_until_the_job_is_gone() -> None:
    at_work = job("a", 1, 6, ends_in_s=50.0)
    waits = Claim("b", WorkerNeed(2, 0, 0), 1, 1, elastic=True)
    (held,) = decide(ClusterSnapshot(FOUR_GPUS, [at_work], [waits]))
    assert isinstance(held, Hold), "one CPU of eight is free"
    placed = replace(at_work, placed=[("n0", 1)], servers_placed=[("n0", 6)])
    assert isinstance(decide(ClusterSnapshot(FOUR_GPUS, [placed], [waits]))[0], Hold)
    assert isinstance(decide(ClusterSnapshot(FOUR_GPUS, [replace(placed, servers=5)], [waits]))[0], Admit)


def test_a_job_that_leaves_gives_the_room_of_its_servers_too() -> None:
    below = job("a", 1, 6, evictable=True, ran_s=1e6)
    head = Claim("b", WorkerNeed(6, 0, 0), 1, 1, priority=5, elastic=True)
    decisions = decide(ClusterSnapshot(FOUR_GPUS, [below], [head], rules=SchedulerRules()))
    assert [d.job_id for d in decisions if isinstance(d, EvictJob)] == ["a"]


def test_room_for_workers_alone_lets_no_gang_with_servers_start() -> None:
    below = job("a", 1, 3, evictable=True, ran_s=1e6)
    head = job("b", 3, 4, priority=5)
    decisions = decide(ClusterSnapshot(FOUR_GPUS, [below], [head]))
    assert isinstance(decisions[0], Hold), "its workers fit beside the other job, its servers do not"
    assert [d.job_id for d in decisions if isinstance(d, EvictJob)] == ["a"]


def test_quotas_count_what_servers_need() -> None:
    asked = job("a", 2, 3)
    for quota, starts in (
        (ProjectShare(gpus=2), True),
        (ProjectShare(cpus=5), True),
        (ProjectShare(cpus=4), False),
        (ProjectShare(workers=4), False),
    ):
        (said,) = decide(ClusterSnapshot(FOUR_GPUS, [], [asked], {"default": quota}))
        assert isinstance(said, Admit) == starts, quota


def test_a_cluster_that_grows_is_asked_for_servers_by_their_own_need() -> None:
    asked = job("a", 3, 2)
    decisions, demand = plan(ClusterSnapshot([], [], [asked], reach=Reach(5, 3)))
    assert isinstance(decisions[0], Hold)
    assert demand == {WORKER: 3, SERVER: 2}
    assert not reaches(Reach(4, 3), asked)
    assert plan(ClusterSnapshot(FOUR_GPUS, [asked], [], reach=Reach(5, 3)))[1] == demand, (
        "and while it is at work"
    )


@given(CLUSTERS, NEEDS, st.integers(1, 3), NEEDS, st.integers(1, 3))
def test_a_gang_of_two_shapes_is_put_there_whole_or_not_at_all(
    cluster: list[NodeShape], need: WorkerNeed, count: int, other: WorkerNeed, more: int
) -> None:
    room, before = FreeRoom(cluster), FreeRoom(cluster)
    found = together(room, need, count, (other, more))
    if found is None:
        assert all(
            room.fit(shape, i) == before.fit(shape, i) for shape in (need, other) for i in range(len(room))
        )
        return
    assert [sum(n for _, n in spots) for spots in found] == [count, more]
    assert all(room.fit(WorkerNeed(1e-9, 0, 0), i) >= 0 for i in range(len(room)))


def test_servers_that_first_fit_finds_no_place_for_hold_their_room_all_the_same() -> None:
    """Both are at work on 2 and 3 CPUs, and nobody knows where: servers of 2 CPUs fit behind the half ones no more."""
    half, cluster = WorkerNeed(0.5, 0, 0), [NodeShape("n0", 2, 0, 2), NodeShape("n1", 3, 0, 2)]
    served = Claim("served", half, 1, 1, servers=2, server_need=WorkerNeed(2, 0, 0))
    snapshot = ClusterSnapshot(cluster, [Claim("small", half, 1, 1), served], [Claim("next", half, 1, 1)])
    assert [type(said) for said in decide(snapshot)] == [Hold]


@settings(max_examples=100, deadline=None)
@given(CLUSTERS, claims(), st.data())
def test_no_more_is_promised_than_the_cluster_has_with_servers_of_any_shape(
    cluster: list[NodeShape], jobs: list[Claim], data: st.DataObject
) -> None:
    jobs = [replace(c, elastic=True, server_need=data.draw(NEEDS)) for c in jobs]
    snapshot = ClusterSnapshot(cluster, [], jobs)
    for _ in range(3):
        decisions = decide(snapshot)
        told = {d.job_id: d.workers for d in decisions if isinstance(d, Grant)}
        assert all(workers >= c.floor for c in snapshot.admitted if (workers := told.get(c.job_id, c.floor)))
        snapshot = carried_out(snapshot, decisions)
        for resource in ("cpus", "gpus", "memory_gb"):
            total = sum(getattr(node, resource) for node in cluster)
            used = sum(
                c.holds * getattr(c.need, resource) + c.servers * getattr(c.server_need, resource)
                for c in snapshot.admitted
            )
            assert used <= total + 1e-6


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    cluster = FakeCluster()
    cluster.nodes = list(FOUR_GPUS)
    return stage(tmp_path, cluster)


@pytest.mark.parametrize(
    ("servers", "pointer", "says"),
    [
        ({"count": 2, "gpus": 0}, None, ""),
        (
            {"count": 2, "gpus": 1},
            "/servers/count",
            "workers.min 3 × (1 CPU, 1 GPU), servers 2 × (1 CPU, 1 GPU)",
        ),
        ({"count": 9}, "/servers/count", "servers 9 × (1 CPU)"),
        ({"count": 1, "memory_gb": 65.0}, "/servers/memory_gb", "65 is more than a server can get"),
    ],
    ids=str,
)
def test_a_job_that_never_fits_is_told_who_needs_what(
    here: Stage, servers: dict[str, Any], pointer: str | None, says: str
) -> None:
    here.tick()
    asked = {"workers": {"min": 3, "max": 3, "gpus": 1}, "sync": "parameter_server", "servers": servers}
    answer = here.client.post("/api/v1/jobs", json={**SPEC, **asked})
    if pointer is None:
        assert answer.status_code == 201, answer.json()
        here.tick()
        assert here.state(answer.json()["id"]) == "starting"
        return
    assert (answer.status_code, answer.json()["code"]) == (422, "infeasible")
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert says in answer.json()["detail"]


def test_workers_that_never_fit_are_still_told_so(here: Stage) -> None:
    here.tick()
    asked = {"workers": {"min": 5, "max": 5, "gpus": 1}, "sync": "parameter_server"}
    answer = here.client.post("/api/v1/jobs", json={**SPEC, **asked}).json()
    assert answer["errors"][0]["pointer"] == "/workers/min"
    assert "at most 4 workers of 1 CPU, 1 GPU" in answer["detail"]
