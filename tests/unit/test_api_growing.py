"""A cluster that grows: what is asked of its autoscaler, when it is taken back, and what waiting jobs are told."""

from dataclasses import replace
from pathlib import Path

import pytest
from control_plane import FakeCluster, Stage, outcome, stage, status
from hypothesis import given, settings
from hypothesis import strategies as st
from test_api_scheduler import carried_out

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
    WorkerNeed,
    decide,
)
from ringleader_api.scheduling.admission import plan

ONE = WorkerNeed(1, 0, 0)
TWO = NodeShape("n1", 2, 0, 16), NodeShape("n2", 2, 0, 16)


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    """Over a cluster without nodes, which may grow to 4 CPUs."""
    cluster = FakeCluster()
    cluster.nodes = []
    return stage(tmp_path, cluster, autoscale_cpus=4, autoscale_cool_down_s=60.0, autoscale_patience_s=120.0)


def fixed(workers: int) -> dict[str, int]:
    return {"min": workers, "max": workers}


def look(here: Stage) -> None:
    """A round that asks the cluster anew."""
    here.time.pass_s(2)
    here.tick()


def code(here: Stage, job_id: str) -> str:
    return str(here.job(job_id)["pending_reason"]["code"])


def test_a_job_on_no_nodes_is_accepted_asked_for_and_taken_back_after_the_cool_down(here: Stage) -> None:
    here.tick()
    assert here.cluster.asked == [{}], "what an earlier process has asked for is taken back"
    job_id = here.submit(workers={"min": 3, "max": 4})
    here.tick(2)
    assert code(here, job_id) == "waiting_for_nodes"
    assert here.cluster.asked[1:] == [{ONE: 3}], "once, and for the gang"
    here.cluster.nodes = list(TWO)
    here.time.pass_s(0.3)  # while nodes are awaited every round looks
    here.tick()
    assert here.cluster.starts == [(job_id, 1)]
    assert here.cluster.alive[job_id, 1].spec.workers.max == 4, "surplus takes what is there"
    here.post(job_id, status=status("running", world_size=4))
    here.tick()
    assert here.cluster.asked[2:] == [{ONE: 4}], "what is at work counts"
    here.post(job_id, records=[outcome(1, "failed", "no_step")])
    here.tick(3)
    assert here.state(job_id) == "failed"
    here.time.pass_s(59)
    here.tick()
    assert here.cluster.asked[3:] == [], "the next job may come at once"
    here.time.pass_s(2)
    here.tick(2)
    assert here.cluster.asked[3:] == [{}]


def test_what_is_asked_for_stays_within_the_bound_and_the_others_are_told(here: Stage) -> None:
    here.tick()
    refused = here.client.post(
        "/api/v1/jobs", json={"name": "x", "entrypoint": "a:b", "workers": fixed(5)}
    ).json()
    assert (refused["code"], "can grow to 4 CPUs" in refused["detail"]) == ("infeasible", True)
    first, second, third = (here.submit(name=f"j{n}", workers=fixed(n)) for n in (2, 3, 1))
    here.tick()
    assert here.cluster.asked[1:] == [{ONE: 3}]
    assert [code(here, job) for job in (first, second, third)] == [
        "waiting_for_nodes", "waiting_for_capacity", "waiting_for_nodes",
    ]  # fmt: skip
    assert "grow to (4 CPUs" in here.job(second)["pending_reason"]["message"]
    here.cluster.nodes = [TWO[0]]
    look(here)
    assert here.cluster.starts == [(first, 1)]
    here.cluster.nodes = [*TWO]
    look(here)
    assert code(here, third) == "behind_in_queue", "else it would keep the bound used up for ever"
    dry = here.client.post(
        "/api/v1/jobs?dry_run=true", json={"name": "x", "entrypoint": "a:b", "workers": fixed(1)}
    ).json()
    assert (dry["starts_now"], dry["pending_reason"]["code"]) == (False, "behind_in_queue")


def test_nodes_that_do_not_come_are_said_to_be_unavailable_and_hold_nobody_back(here: Stage) -> None:
    here.cluster.nodes = [NodeShape("n1", 1, 0, 16)]
    here.tick()
    big = here.submit(name="big", workers=fixed(3))
    here.tick()
    here.cluster.trouble = "worker: no spot capacity in this zone"
    look(here)
    assert code(here, big) == "waiting_for_nodes"
    here.time.pass_s(120)
    here.tick()
    reason = here.job(big)["pending_reason"]
    assert (reason["code"], "no spot capacity" in reason["message"]) == ("nodes_unavailable", True)
    dry = here.client.post(
        "/api/v1/jobs?dry_run=true", json={"name": "x", "entrypoint": "a:b", "workers": fixed(3)}
    ).json()
    assert dry["pending_reason"]["code"] == "nodes_unavailable"
    small = here.started(name="small", workers=fixed(1))
    assert here.cluster.starts == [(small, 1)]
    assert here.cluster.asked[-1] == {ONE: 4}, "they are still asked for"
    here.cluster.nodes = [NodeShape("n1", 1, 0, 16), *TWO]
    look(here)
    assert (big, 1) in here.cluster.starts


def test_a_new_cluster_is_told_again_and_trouble_with_telling_is_overcome(here: Stage) -> None:
    here.tick()
    here.submit(workers=fixed(2))
    here.tick()
    here.cluster.down = True
    here.tick()
    here.cluster.down = False
    here.tick(2)
    assert here.cluster.asked == [{}, {ONE: 2}, {ONE: 2}]


def test_without_a_bound_what_an_earlier_process_asked_for_is_taken_back_once(tmp_path: Path) -> None:
    here = stage(tmp_path)
    here.running(workers=fixed(2))
    here.cluster.down = True
    here.tick()
    here.cluster.down = False
    here.tick(2)
    assert here.cluster.asked == [{}]


def test_jobs_that_their_quota_holds_back_get_no_nodes() -> None:
    queue = [Claim("a1", ONE, 2, 2, project="a"), Claim("a2", ONE, 2, 2, project="a"), Claim("b", ONE, 1, 1)]
    decisions, demand = plan(
        ClusterSnapshot([], [], queue, {"a": ProjectShare(workers=2)}, reach=Reach(99, 0))
    )
    assert demand == {ONE: 3}
    codes = [d.why.code for d in decisions if isinstance(d, Hold)]
    assert codes == ["waiting_for_nodes", "quota_used_up", "waiting_for_nodes"]


GANGS = st.lists(
    st.tuples(st.sampled_from([ONE, WorkerNeed(2, 1, 0)]), st.integers(1, 4), st.integers(0, 2)), max_size=8
)


@settings(max_examples=150, deadline=None)
@given(GANGS, st.integers(0, 4), st.integers(0, 16), st.integers(0, 4))
def test_every_possible_gang_starts_in_the_end_on_nodes_that_were_asked_for(
    gangs: list[tuple[WorkerNeed, int, int]], there: int, cpus: int, gpus: int
) -> None:
    """Nodes of 2 CPUs and 1 GPU come as asked and stay; jobs end one a pass."""
    reach = Reach(cpus + 2 * there, gpus + there)
    queue = [Claim(f"j{n}", *gang[:2], gang[1], priority=gang[2]) for n, gang in enumerate(gangs)]
    snapshot = ClusterSnapshot([NodeShape(f"n{n}", 2, 1, 0) for n in range(there)], [], queue, reach=reach)
    started: set[str] = set()
    for _ in range(40):
        decisions, demand = plan(snapshot)
        at_work = [(c.need, c.holds) for c in snapshot.admitted]
        for kind in ("cpus", "gpus"):
            asked, held = (
                sum(n * getattr(need, kind) for need, n in pairs) for pairs in (demand.items(), at_work)
            )
            assert asked <= max(getattr(reach, kind), held)
        now = {d.job_id for d in decisions if isinstance(d, Admit)}
        started |= now
        fresh = [c for c in snapshot.queued if c.job_id in now]
        left = [c for c in snapshot.queued if c.job_id not in now]
        nodes = list(snapshot.nodes)
        while any(n > room_for(nodes, need, demand) for need, n in demand.items()):
            nodes.append(NodeShape(f"m{len(nodes)}", 2, 1, 0))
        snapshot = replace(snapshot, nodes=nodes, admitted=[*snapshot.admitted, *fresh][1:], queued=left)
    never = {d.job_id for d in decide(snapshot) if isinstance(d, Hold) and d.why.code == "cluster_too_small"}
    assert started | never == {c.job_id for c in queue}
    assert all(not within(c, reach) for c in queue if c.job_id in never)


def room_for(nodes: list[NodeShape], need: WorkerNeed, demand: dict[WorkerNeed, int] | object) -> int:
    """Workers of one shape that nodes of 2 CPUs and 1 GPU hold beside those of the other one."""
    assert isinstance(demand, dict)
    large = demand.get(WorkerNeed(2, 1, 0), 0)
    return len(nodes) if need.gpus else 2 * (len(nodes) - large)


def within(claim: Claim, reach: Reach) -> bool:
    return claim.gang * claim.need.cpus <= reach.cpus and claim.gang * claim.need.gpus <= reach.gpus


def test_a_head_for_which_the_cluster_may_not_grow_yet_is_overtaken_and_gets_its_nodes_in_the_end() -> None:
    """4 CPUs at most, 3 there: an endless job on 2, a head that needs all 4, a small one behind it."""
    endless = Claim("e", ONE, 2, 2, evictable=True)
    head = Claim("head", ONE, 4, 4, waited_s=599, evictable=True)
    small = Claim("small", ONE, 1, 1, evictable=True)
    held = ClusterSnapshot([NodeShape("n", 3, 0, 16)], [endless], [head, small], reach=Reach(4, 0))
    assert {d.job_id for d in decide(held) if isinstance(d, Admit)} == set()
    later = replace(held, queued=[replace(head, waited_s=600), small])
    known = replace(later, admitted=[replace(endless, ends_in_s=9000)])
    assert not [d for d in decide(known) if isinstance(d, Admit)], "one whose start is known is never delayed"
    assert Admit("small", None, overtakes=True) in decide(later)
    why = {d.job_id: d.why for d in decide(later) if isinstance(d, Hold)}["head"]
    assert (why.code, "more than the cluster may grow to" in why.message) == ("waiting_for_capacity", True)
    assert "they wait 10 minutes, then start where there is room and make room for it again" in why.hint

    snapshot = carried_out(later, decide(later))
    for _ in range(6):
        snapshot = carried_out(snapshot, decide(snapshot))
    assert {c.job_id for c in snapshot.admitted} == {"e", "small"}, "to take the small one would not help"
    snapshot = replace(snapshot, admitted=[c for c in snapshot.admitted if c.job_id == "small"])
    assert [d.job_id for d in decide(snapshot) if isinstance(d, EvictJob)] == ["small"]
    snapshot = carried_out(snapshot, decide(snapshot))
    decisions, demand = plan(snapshot)
    told = {d.job_id: d.why.code for d in decisions if isinstance(d, Hold)}
    assert (told, demand) == ({"head": "waiting_for_nodes", "small": "behind_in_queue"}, {ONE: 4})
    gone = replace(snapshot, missing={ONE: ""})
    assert [d.job_id for d in decide(gone) if isinstance(d, Admit)] == ["small"], "the head gets no nodes"
    grown = replace(snapshot, nodes=[NodeShape("n", 3, 0, 16), NodeShape("m", 1, 0, 16)])
    assert [d.job_id for d in decide(grown) if isinstance(d, Admit)] == ["head"]


def growing(wants: int, **keys: object) -> Claim:
    return replace(Claim("e", ONE, 1, 1, elastic=True, wants=wants, grows=True), **keys)


def test_nodes_are_asked_for_surplus_only_where_the_job_says_so_within_quota_and_bound() -> None:
    def asked(claim: Claim, quota: int | None = None, reach: int = 9, **keys: object) -> object:
        projects = {"default": ProjectShare(workers=quota)}
        snapshot = ClusterSnapshot([NodeShape("n", 1, 0, 16)], [claim], [], projects, reach=Reach(reach, 0))
        return plan(replace(snapshot, **keys))[1]

    assert asked(growing(5, grows=False)) == {ONE: 1}, "free places only"
    assert asked(growing(5)) == {ONE: 5}
    assert asked(growing(5), quota=3) == {ONE: 3}
    assert asked(growing(5), reach=2) == {ONE: 2}
    assert asked(growing(5), missing={ONE: ""}) == {ONE: 1}, "nodes that are not to be had are left to gangs"
    assert asked(growing(5, elastic=False)) == {ONE: 1}, "it is leaving"


def test_gangs_that_wait_get_their_nodes_before_surplus_does() -> None:
    waits = Claim("gang", ONE, 3, 3)
    decisions, demand = plan(
        ClusterSnapshot([NodeShape("n", 1, 0, 16)], [growing(5)], [waits], reach=Reach(6, 0))
    )
    assert demand == {ONE: 4}
    assert [d.why.code for d in decisions if isinstance(d, Hold)] == ["waiting_for_nodes"]


def test_a_job_that_says_so_grows_to_its_max_on_nodes_that_come_for_it(here: Stage) -> None:
    here.tick()
    here.cluster.nodes = [TWO[0]]
    job_id = here.submit(workers={"min": 1, "max": 4}, autoscale={"surplus": True})
    look(here)
    here.post(job_id, status=status("running", world_size=2))
    here.time.pass_s(60)
    look(here)
    assert here.cluster.asked[-1] == {ONE: 4}
    here.cluster.nodes = [*TWO]
    here.time.pass_s(60)
    look(here)
    here.tick(2)
    assert here.cluster.told == [("resize", job_id, 1, 1, 4)]


def test_a_dry_run_says_where_surplus_comes_from(here: Stage, tmp_path: Path) -> None:
    def told(at: Stage, **keys: object) -> str:
        at.tick()
        body = {"name": "x", "entrypoint": "a:b", "workers": {"min": 1, "max": 3}, **keys}
        return str(at.client.post("/api/v1/jobs?dry_run=true", json=body).json()["surplus"])

    free = "workers above min (1) use free capacity only"
    assert told(here) == f"{free}: autoscale: {{surplus: true}} would add nodes for them"
    assert "the autoscaler adds nodes for up to max (3)" in told(here, autoscale={"surplus": True})
    assert told(here, workers=fixed(1)) == ""
    (tmp_path / "fixed").mkdir()
    assert (
        told(stage(tmp_path / "fixed"), autoscale={"surplus": True})
        == f"{free}: this cluster does not autoscale"
    )
    assert told(stage(tmp_path / "fixed")) == f"{free}: this cluster does not autoscale"


def test_a_job_says_where_its_surplus_comes_from_on_this_cluster(here: Stage, tmp_path: Path) -> None:
    (tmp_path / "fixed").mkdir()
    grows, stays = (
        "the autoscaler adds nodes for up to max (3)",
        "free capacity only: this cluster does not autoscale",
    )
    for at, says in ((here, grows), (stage(tmp_path / "fixed"), stays)):
        job_id = at.submit(workers={"min": 1, "max": 3}, autoscale={"surplus": True})
        (listed,) = at.client.get("/api/v1/jobs").json()["items"]
        assert says in at.job(job_id)["surplus"]
        assert listed["surplus"] == at.job(job_id)["surplus"]


def test_surplus_that_can_never_be_is_said_to_have_no_effect(here: Stage) -> None:
    body = {"name": "x", "entrypoint": "a:b", "workers": fixed(2), "autoscale": {"surplus": True}}
    told = "autoscale: {surplus: true} has no effect: workers.min and workers.max are both 2"
    assert here.client.post("/api/v1/jobs?dry_run=true", json=body).json()["surplus"] == told
    assert here.job(here.submit(**body))["surplus"] == told


def test_surplus_is_given_back_before_anybody_is_kept_waiting_for_the_bound() -> None:
    elastic = Claim("e", ONE, 1, 3, elastic=True)
    snapshot = ClusterSnapshot(
        [NodeShape("n", 3, 0, 16)], [elastic], [Claim("head", ONE, 4, 4)], reach=Reach(5, 0)
    )
    assert Grant("e", 1) in decide(snapshot)
    after = decide(carried_out(snapshot, decide(snapshot)))
    assert [d.why.code for d in after if isinstance(d, Hold)] == ["waiting_for_nodes"]
    assert len(after) == 1, "it is not given out again while the nodes come"


GPU = WorkerNeed(1, 1, 0)


def test_jobs_whose_nodes_are_not_to_be_had_ask_when_all_others_have_asked() -> None:
    vain = Claim("vain", GPU, 4, 4, priority=9, waited_s=9000)
    snapshot = ClusterSnapshot([], [], [vain, Claim("other", ONE, 2, 2)], reach=Reach(4, 4))
    decisions, demand = plan(snapshot)
    assert demand == {GPU: 4}
    decisions, demand = plan(replace(snapshot, missing={GPU: "no spot capacity"}))
    told = {d.job_id: d.why.code for d in decisions if isinstance(d, Hold)}
    assert (told, demand) == ({"vain": "nodes_unavailable", "other": "waiting_for_nodes"}, {ONE: 2})
    _, demand = plan(replace(snapshot, reach=Reach(6, 4), missing={GPU: ""}))
    assert demand == {ONE: 2, GPU: 4}, "as far as the bound goes they are asked for on"


def test_nodes_that_are_not_to_be_had_keep_no_other_job_from_its_own_and_get_another_chance(
    here: Stage,
) -> None:
    large, wide = WorkerNeed(1, 0, 32), WorkerNeed(2, 0, 0)
    here.tick()
    vain = here.submit(name="vain", workers={**fixed(4), "memory_gb": 32}, priority=9)
    here.tick()
    look(here)
    other = here.submit(name="other", workers={**fixed(1), "cpus": 2})
    here.tick()
    assert here.cluster.asked[-1] == {large: 4}
    assert [code(here, job) for job in (vain, other)] == ["waiting_for_nodes", "waiting_for_capacity"]
    here.cluster.trouble = "no large nodes"
    here.time.pass_s(120)
    here.tick()
    here.cluster.trouble = ""
    for _ in range(3):
        look(here)
        assert [code(here, job) for job in (vain, other)] == ["nodes_unavailable", "waiting_for_nodes"]
    assert here.cluster.asked[-1] == {wide: 1}
    here.cluster.nodes = [TWO[0]]
    look(here)
    assert here.cluster.starts == [(other, 1)]
    here.post(other, status=status("running", world_size=1))
    here.time.pass_s(1060)
    here.tick(2)
    assert "no large nodes" in here.job(vain)["pending_reason"]["message"], (
        "though others are asked for by now"
    )
    here.time.pass_s(20)
    here.tick(3)
    assert here.job(other)["reason"]["code"] == "preempted", "it is their turn again, by the usual rules"
    assert (code(here, vain), here.cluster.asked[-1]) == ("waiting_for_nodes", {large: 4})
    for _ in range(2):
        here.time.pass_s(118)
        here.tick(2)
        assert code(here, vain) == "waiting_for_nodes"
        here.cluster.nodes = [*here.cluster.nodes, NodeShape(f"l{here.time()}", 1, 0, 32)]
        look(here)


def test_nodes_that_were_not_to_be_had_for_long_give_way_to_others_for_as_long_as_any(here: Stage) -> None:
    here.tick()
    vain = here.submit(name="vain", workers={**fixed(4), "memory_gb": 32})
    here.tick()
    look(here)
    here.time.pass_s(9000)
    look(here)
    other = here.submit(name="other", workers={**fixed(2), "cpus": 2})
    for _ in range(3):
        look(here)
        assert [code(here, job) for job in (vain, other)] == ["nodes_unavailable", "waiting_for_nodes"]
    assert here.cluster.asked[-1] == {WorkerNeed(2, 0, 0): 2}


def test_nodes_not_to_be_had_give_way_also_where_a_job_at_work_has_some_of_their_shape(here: Stage) -> None:
    here.cluster.nodes = [NodeShape("l1", 1, 0, 32)]
    here.running(name="small", workers={**fixed(1), "memory_gb": 32})
    vain = here.submit(name="vain", workers={**fixed(3), "memory_gb": 32})
    here.tick()
    look(here)
    other = here.submit(name="other", workers={**fixed(1), "cpus": 2})
    here.tick()
    assert code(here, other) == "waiting_for_capacity"
    here.time.pass_s(120)
    here.tick()
    for _ in range(3):
        look(here)
        assert [code(here, job) for job in (vain, other)] == ["nodes_unavailable", "waiting_for_nodes"]
    assert here.cluster.asked[-1] == {WorkerNeed(1, 0, 32): 1, WorkerNeed(2, 0, 0): 1}


def test_a_head_whose_further_nodes_are_not_to_be_had_leaves_the_bound_to_others() -> None:
    endless = Claim("e", ONE, 4, 4)
    queue = [Claim("head", ONE, 4, 4, waited_s=9000), Claim("other", GPU, 1, 1)]
    snapshot = ClusterSnapshot([NodeShape("n", 4, 0, 16)], [endless], queue, reach=Reach(8, 1))
    assert plan(snapshot)[1] == {ONE: 8}
    decisions, demand = plan(replace(snapshot, missing={ONE: "no spot capacity"}))
    told = {d.job_id: d.why.code for d in decisions if isinstance(d, Hold)}
    assert (told, demand) == (
        {"head": "waiting_for_capacity", "other": "waiting_for_nodes"},
        {ONE: 4, GPU: 1},
    )
    _, demand = plan(replace(snapshot, reach=Reach(9, 1), missing={ONE: ""}))
    assert demand == {ONE: 8, GPU: 1}, "as far as the bound goes it asks on"
    free = replace(snapshot, admitted=[], missing={ONE: ""})
    decisions, demand = plan(free)
    assert ([d.job_id for d in decisions if isinstance(d, Admit)], demand) == (["head"], {ONE: 4, GPU: 1})
