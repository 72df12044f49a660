"""A head of which nobody knows when it can start is overtaken, and starts as if it had not been: nobody starves."""

from dataclasses import replace
from pathlib import Path

import pytest
from control_plane import Stage, outcome, stage, status
from hypothesis import given, settings
from hypothesis import strategies as st
from test_api_scheduler import carried_out, kinds

from ringleader_api.scheduling import (
    Admit,
    Claim,
    ClusterSnapshot,
    EvictJob,
    Grant,
    Hold,
    NodeShape,
    WorkerNeed,
    decide,
)

ONE = WorkerNeed(1, 0, 0)
FOUR = [NodeShape("n", 4, 0, 0)]
LONG = 600.0
SOON = 7
"""Passes of a minute: five until who has just begun may leave, one in which it goes, one to start."""


def job(name: str, workers: int, *, project: str = "a", waited_s: float = 0.0, priority: int = 0) -> Claim:
    return Claim(
        name,
        ONE,
        workers,
        workers,
        project=project,
        waited_s=waited_s,
        priority=priority,
        elastic=True,
        evictable=True,
    )


def waits_for(snapshot: ClusterSnapshot, name: str) -> str:
    """What the job is told about why it waits."""
    why = next(d.why for d in decide(snapshot) if isinstance(d, Hold) and d.job_id == name)
    return f"{why.code}: {why.message}. {why.hint}"


def test_others_go_before_a_head_that_hangs_on_no_known_end_once_it_has_waited_ten_minutes() -> None:
    endless, head, small = job("e", 2), job("head", 3, waited_s=LONG - 1), job("small", 1)
    held = ClusterSnapshot(FOUR, [endless], [head, small])
    assert not kinds(decide(held), Admit)
    told = waits_for(held, "small")
    assert told.startswith(
        "behind_in_queue: waits behind head, which is ahead in the queue and needs 3 workers of 1 CPU."
    )
    assert "once that job has waited for 10 minutes" in told
    later = replace(held, queued=[replace(head, waited_s=LONG), small, job("wide", 2)])
    assert [d for d in decide(later) if isinstance(d, Admit)] == [Admit("small", 1, overtakes=True)]
    assert "waits behind head" in waits_for(later, "wide")
    known = replace(later, admitted=[replace(endless, ends_in_s=9000.0)])
    assert not kinds(decide(known), Admit), "one whose start is known is never delayed"
    assert "if its max_runtime_s ends before" in waits_for(known, "small")


def test_what_others_than_jobs_hold_has_no_known_end_either() -> None:
    queue = [job("head", 4, waited_s=LONG), job("small", 2), job("more", 1)]
    beside = ClusterSnapshot(FOUR, [], queue, others={"n": ONE})
    assert kinds(decide(beside), Admit) == {"small", "more"}
    after = carried_out(beside, decide(beside))
    assert not kinds(decide(after), EvictJob), "nobody is evicted in vain"
    later = replace(after, admitted=[replace(c, ran_s=300.0) for c in after.admitted], others={})
    later = replace(later, queued=[job("head", 4, waited_s=LONG + 300)])
    assert kinds(decide(later), EvictJob) == {"small", "more"}


def test_who_overtook_makes_room_whatever_its_priority_but_only_for_who_waited_then() -> None:
    small = replace(job("small", 2), overtook=True, ran_s=320.0)
    other = replace(job("other", 1), ran_s=1000.0)
    first = ClusterSnapshot(FOUR, [small, other], [job("head", 3, waited_s=700.0)])
    evicted = [d for d in decide(first) if isinstance(d, EvictJob)]
    assert [(d.job_id, d.why.message) for d in evicted] == [
        ("small", "made room for head, which it had overtaken in the queue")
    ]
    assert not kinds(decide(replace(first, queued=[job("late", 3, waited_s=319.0)])), EvictJob)
    assert not kinds(decide(replace(first, admitted=[replace(small, overtook=False), other])), EvictJob)
    # Once it waits itself it would come before this one: it is older, and neither project holds more.
    younger = replace(
        first, admitted=[small, replace(other, project="b")], queued=[job("z", 3, waited_s=700.0)]
    )
    assert not kinds(decide(younger), EvictJob)


def test_one_that_overtook_and_has_just_begun_is_waited_for_and_nobody_else_goes_before() -> None:
    starting = replace(job("small", 2), overtook=True, evictable=False, ran_s=300.0)
    waiting = [job("head", 3, waited_s=700.0), job("next", 1)]
    at_work = ClusterSnapshot(FOUR, [starting, job("other", 1)], waiting)
    assert {type(d) for d in decide(at_work)} == {Hold}
    assert "makes room by preempting small" in waits_for(at_work, "head")
    running = replace(at_work, admitted=[replace(starting, evictable=True), job("other", 1)])
    assert kinds(decide(running), EvictJob) == {"small"}
    young = replace(at_work, admitted=[replace(starting, evictable=True, ran_s=299.0), job("other", 1)])
    assert {type(d) for d in decide(young)} == {Hold}, "nobody flaps"


SIZES = st.lists(st.integers(1, 3), min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    SIZES,
    st.integers(1, 10),
    st.lists(st.tuples(st.integers(1, 3), st.integers(-1, 0)), min_size=1, max_size=40),
    st.integers(0, 2),
)
def test_the_head_starts_five_minutes_after_it_would_have_at_the_latest_whoever_went_before_it(
    sizes: list[int], endless: list[int], gang: int, stream: list[tuple[int, int]], stay: int
) -> None:
    """Jobs without an end arrive at every pass, and take what room there is."""
    nodes, cpus = [NodeShape(f"n{i}", size, 0, 0) for i, size in enumerate(sizes)], sum(sizes)
    running = [job(f"e{n}", size, project="b") for n, size in enumerate(endless)]
    if sum(endless) > cpus or not cpus - sum(endless) < gang <= cpus:
        return
    snapshot = ClusterSnapshot(nodes, running, [job("head", gang)])
    arrivals = iter([job(f"s{n:02d}", w, priority=q) for n, (w, q) in enumerate(stream)])

    def played(snapshot: ClusterSnapshot) -> ClusterSnapshot:
        arrived = replace(
            snapshot, queued=[*snapshot.queued, *[c for _, c in zip(range(2), arrivals, strict=False)]]
        )
        return carried_out(arrived, decide(arrived))

    for _ in range(12):
        snapshot = played(snapshot)
        assert sum(c.holds for c in snapshot.admitted) <= cpus
        assert all(c.overtook for c in snapshot.admitted[len(running) :])
    left = {c.job_id for c in running[:stay]}
    if sum(c.holds for c in running[:stay]) + gang > cpus:
        return
    ended = {c.job_id for c in running} - left
    snapshot = replace(snapshot, admitted=[c for c in snapshot.admitted if c.job_id not in ended])
    for _ in range(SOON):
        snapshot = played(snapshot)
    assert "head" in {c.job_id for c in snapshot.admitted}


@settings(max_examples=150, deadline=None)
@given(SIZES, st.integers(5, 8), st.integers(4, 8), st.integers(1, 4))
def test_who_waited_between_the_head_and_those_who_overtook_it_does_not_starve_either(
    later: list[int], gang: int, between: int, endless: int
) -> None:
    """The head is cancelled; the next one fits beside the endless job, though not beside those who overtook both."""
    queue = [job("a-head", max(gang, 9 - endless)), job("b-next", between)]
    queue += [job(f"c{n}", size) for n, size in enumerate(later)]
    snapshot = ClusterSnapshot([NodeShape("n", 8, 0, 0)], [job("e", endless, project="b")], queue)
    if between + endless > 8:
        return
    for _ in range(12):
        snapshot = carried_out(snapshot, decide(snapshot))
    snapshot = replace(snapshot, queued=[c for c in snapshot.queued if c.job_id != "a-head"])
    for _ in range(SOON):
        snapshot = carried_out(snapshot, decide(snapshot))
    assert "b-next" in {c.job_id for c in snapshot.admitted}


@settings(max_examples=100, deadline=None)
@given(SIZES, st.lists(st.tuples(st.integers(1, 6), st.sampled_from("abc")), max_size=10))
def test_with_nothing_new_nobody_is_evicted_again_and_again(
    endless: list[int], waiting: list[tuple[int, str]]
) -> None:
    nodes = [NodeShape("n", max(6, sum(endless)), 0, 0)]
    queue = [job(f"q{n:02d}", size, project=p) for n, (size, p) in enumerate(waiting)]
    snapshot = ClusterSnapshot(nodes, [job(f"e{n}", size) for n, size in enumerate(endless)], queue)
    evictions = 0
    for _ in range(150):  # two hours and a half: patience and all
        decisions = decide(snapshot)
        evictions += len(kinds(decisions, EvictJob))
        snapshot = carried_out(snapshot, decisions)
    assert evictions <= len(queue)
    last = decide(snapshot)
    assert not kinds(last, EvictJob) | kinds(last, Admit) | kinds(last, Grant)


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def test_the_control_plane_lets_a_job_go_before_and_has_it_make_room_again(here: Stage) -> None:
    """4 CPUs: an endless job on 2, a head that needs 3, a small one behind it."""
    endless = here.running(workers={"min": 2, "max": 2})
    here.post(endless, status=status("running", world_size=2))
    head = here.submit(name="head", workers={"min": 3, "max": 3})
    small = here.submit(name="small", workers={"min": 2, "max": 2})
    here.tick()
    why = here.job(small)["pending_reason"]
    assert (why["code"], head in why["message"]) == ("behind_in_queue", True)
    here.time.pass_s(600)
    here.tick()
    assert here.state(small) == "starting"
    here.post(small, status=status("running", world_size=2))
    here.tick()
    assert here.state(small) == "running", "it would not help the head"
    here.post(endless, records=[outcome(1, "failed", "no_step")])
    here.tick(3)
    assert (here.state(endless), here.state(small)) == ("failed", "running"), "it has just begun"
    here.time.pass_s(300)
    here.tick(2)
    assert here.state(small) == "stopping"
    here.post(small, records=[outcome(1, "paused")])
    here.tick(2)
    told = here.job(small)
    assert (told["state"], told["failures"]["spent"]) == ("queued", 0)
    assert "which it had overtaken in the queue" in here.client.get(f"/api/v1/jobs/{small}/events").text
    assert here.cluster.starts == [(endless, 1), (small, 1), (head, 1)]
