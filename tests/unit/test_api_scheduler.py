"""The scheduler's invariants, each on generated clusters and queues, passes played on until nothing changes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader_api.scheduling import (
    Admit,
    Claim,
    ClusterSnapshot,
    Decision,
    EvictJob,
    Grant,
    Hold,
    NodeShape,
    ProjectShare,
    WorkerNeed,
    decide,
)
from ringleader_api.scheduling.room import FreeRoom

ONE = WorkerNeed(1, 0, 0)
NEEDS = st.builds(
    WorkerNeed, st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0, 0, 1]), st.sampled_from([0.0, 2.0])
)
CLUSTERS = st.lists(
    st.tuples(st.integers(1, 8), st.integers(0, 4), st.integers(2, 16)), min_size=1, max_size=4
).map(lambda rows: [NodeShape(f"n{i}", *row) for i, row in enumerate(rows)])
LIMITS = st.one_of(st.none(), st.integers(0, 8))
PROJECTS = st.fixed_dictionaries(
    {
        name: st.builds(ProjectShare, st.sampled_from([0.5, 1.0, 3.0]), LIMITS, LIMITS, LIMITS)
        for name in ("a", "b")
    }
)


@st.composite
def claims(draw: st.DrawFn) -> list[Claim]:
    rows = []
    for number in range(draw(st.integers(0, 8))):
        floor, more = draw(st.integers(1, 3)), draw(st.integers(0, 4))
        rows.append(
            Claim(
                f"j{number}",
                draw(NEEDS),
                floor,
                floor + more,
                servers=draw(st.sampled_from([0, 0, 0, 2])),
                project=draw(st.sampled_from(["a", "b"])),
                priority=draw(st.integers(-1, 2)),
                waited_s=draw(st.sampled_from([0.0, 700.0, 4000.0])),
                elastic=draw(st.booleans()),
                evictable=True,
                ends_in_s=draw(st.sampled_from([None, 100.0, 500.0, 2000.0])),
            )
        )
    return rows


def settled(
    cluster: Sequence[NodeShape], jobs: Sequence[Claim], projects: Mapping[str, ProjectShare]
) -> ClusterSnapshot:
    """Some of the jobs at work, as passes before have admitted them; the others wait."""
    half = len(jobs) // 2
    first = ClusterSnapshot(cluster, [], jobs[:half], projects)
    admitted = carried_out(first, decide(first)).admitted
    return ClusterSnapshot(
        cluster, admitted, [replace(c, job_id=f"q{n}") for n, c in enumerate(jobs[half:])], projects
    )


def carried_out(
    snapshot: ClusterSnapshot, decisions: Iterable[Decision], pass_s: float = 60.0
) -> ClusterSnapshot:
    """The snapshot of the next pass: everybody has done as they were told."""
    deeds = {d.job_id: d for d in decisions}
    queued, admitted = [], []
    for claim in snapshot.queued:
        deed = deeds[claim.job_id]
        if isinstance(deed, Admit):
            workers = claim.holds if deed.workers is None else deed.workers
            begun = replace(claim, holds=workers, wants=claim.holds, waited_s=0, overtook=deed.overtakes)
            admitted.append(replace(begun, ran_s=pass_s, settled_s=pass_s))
        else:
            queued.append(replace(claim, waited_s=claim.waited_s + pass_s))
    at_work = []
    for claim in snapshot.admitted:
        match deeds.get(claim.job_id):
            case EvictJob():
                again = replace(
                    claim, holds=claim.wants or claim.holds, wants=None, waited_s=0.0, overtook=False
                )
                queued.append(again)
            case Grant(workers=workers):
                wants = claim.holds if claim.wants is None else claim.wants
                at_work.append(
                    replace(claim, holds=workers, wants=wants, ran_s=claim.ran_s + pass_s, settled_s=pass_s)
                )
            case _:
                at_work.append(replace(claim, ran_s=claim.ran_s + pass_s, settled_s=claim.settled_s + pass_s))
    return replace(snapshot, queued=queued, admitted=at_work + admitted)


def kinds(decisions: Iterable[Decision], kind: type) -> set[str]:
    return {d.job_id for d in decisions if isinstance(d, kind)}


def holding(room: FreeRoom, claims: Iterable[Claim]) -> bool:
    """Whether all of them have their places at once."""
    return all(room.take(c.need, c.holds + c.servers, least=c.holds + c.servers) is not None for c in claims)


def used(claims: Iterable[Claim], project: str) -> tuple[float, float, float]:
    own = [(c.holds + c.servers, c.need) for c in claims if c.project == project]
    return (
        sum(n for n, _ in own),
        sum(n * need.cpus for n, need in own),
        sum(n * need.gpus for n, need in own),
    )


@settings(max_examples=150, deadline=None)
@given(CLUSTERS, claims(), PROJECTS)
def test_no_gang_is_half_placed_and_no_worker_is_promised_twice(
    cluster: list[NodeShape], jobs: list[Claim], projects: dict[str, ProjectShare]
) -> None:
    jobs = [replace(c, elastic=True) for c in jobs]
    before = settled(cluster, jobs, projects)
    decisions = decide(before)
    wants = {c.job_id: (c.floor, c.holds) for c in before.queued}
    for admit in (d for d in decisions if isinstance(d, Admit)):
        low, high = wants[admit.job_id]
        assert admit.workers is not None
        assert low <= admit.workers <= high
    after = carried_out(before, decisions).admitted
    for resource in ("cpus", "gpus", "memory_gb"):
        total = sum(getattr(n, resource) for n in cluster)
        assert sum((c.holds + c.servers) * getattr(c.need, resource) for c in after) <= total + 1e-6
    if len({c.need for c in after}) <= 1:  # then it does not matter who is put where first
        assert holding(FreeRoom(cluster), after)


@settings(max_examples=150, deadline=None)
@given(CLUSTERS, claims(), PROJECTS)
def test_one_decision_for_each_waiting_job_the_same_each_time_and_in_words(
    cluster: list[NodeShape], jobs: list[Claim], projects: dict[str, ProjectShare]
) -> None:
    snapshot = settled(cluster, jobs, projects)
    decisions = decide(snapshot)
    assert decisions == decide(snapshot)
    answers = [d for d in decisions if isinstance(d, Admit | Hold)]
    assert [d.job_id for d in answers] == [c.job_id for c in snapshot.queued]
    assert len({d.job_id for d in decisions}) == len(decisions)
    for decision in decisions:
        if isinstance(decision, Hold | EvictJob):
            assert decision.why.code
            assert decision.why.message
            assert decision.why.hint
    told = {c.job_id: c for c in snapshot.admitted}
    for grant in (d for d in decisions if isinstance(d, Grant)):
        claim = told[grant.job_id]
        assert claim.elastic
        assert claim.floor <= grant.workers <= (claim.wants or claim.holds)
        assert grant.workers != claim.told


@settings(max_examples=150, deadline=None)
@given(CLUSTERS, claims(), PROJECTS)
def test_nobody_gets_what_is_above_the_quota(
    cluster: list[NodeShape], jobs: list[Claim], projects: dict[str, ProjectShare]
) -> None:
    snapshot = ClusterSnapshot(cluster, [], jobs, projects)
    for _ in range(4):
        snapshot = carried_out(snapshot, decide(snapshot))
        for name, project in projects.items():
            limits = (project.workers, project.cpus, project.gpus)
            for limit, has in zip(limits, used(snapshot.admitted, name), strict=True):
                assert limit is None or has <= limit + 1e-6


@settings(max_examples=200, deadline=None)
@given(CLUSTERS, claims(), PROJECTS)
def test_surplus_above_a_lowered_quota_is_given_back_and_no_gang_is_touched(
    cluster: list[NodeShape], jobs: list[Claim], projects: dict[str, ProjectShare]
) -> None:
    before = replace(
        settled(cluster, [replace(c, elastic=True) for c in jobs], {}), queued=[], projects=projects
    )
    after = carried_out(before, decide(before))
    for name, project in projects.items():
        own = [c for c in after.admitted if c.project == name]
        assert all(c.holds >= c.floor for c in own)
        if project.workers is not None and any(c.holds > c.floor for c in own):
            assert used(own, name)[0] <= project.workers


def test_nobody_is_evicted_for_one_whose_turn_it_would_not_be_by_then() -> None:
    """Once the victim is gone its project holds nothing, and its waiting job, which has aged, comes first."""

    def job(name: str, floor: int, project: str, **others: Any) -> Claim:
        return Claim(name, ONE, floor, floor, project=project, elastic=True, evictable=True, **others)

    running = [job("j0", 1, "a", ran_s=1000.0), job("j1", 2, "b", ran_s=1000.0)]
    head = job("q1", 3, "a", priority=1)
    aged = job("q0", 2, "b", servers=2, waited_s=700.0)
    cluster = [NodeShape("n0", 4, 0, 2)]
    assert kinds(decide(ClusterSnapshot(cluster, running, [head], {})), EvictJob) == {"j1"}
    assert not kinds(decide(ClusterSnapshot(cluster, running, [aged, head], {})), EvictJob)


@settings(max_examples=150, deadline=None)
@given(CLUSTERS, claims())
def test_surplus_goes_before_anybody_is_evicted_and_nobody_is_evicted_in_vain(
    cluster: list[NodeShape], jobs: list[Claim]
) -> None:
    # One shape: a pass puts jobs at work on nodes anew, so with several it may see gaps where there are none.
    before = settled(cluster, [replace(c, elastic=True, need=ONE) for c in jobs], {})
    before = replace(before, admitted=[replace(c, ran_s=1000.0) for c in before.admitted])
    decisions = decide(before)
    evicted = kinds(decisions, EvictJob)
    if not evicted:
        return
    after = carried_out(before, decisions)
    victims = [c for c in before.admitted if c.job_id in evicted]
    head = max(
        (c for c in before.queued if c.job_id not in kinds(decisions, Admit)), key=lambda c: c.priority
    )
    assert all(v.priority < head.priority for v in victims)
    again = decide(replace(after, queued=[c for c in after.queued if c.job_id not in evicted]))
    assert kinds(again, Admit), "the one it was done for starts"


def test_eviction_waits_until_surplus_is_not_enough() -> None:
    cluster = [NodeShape("n", 8, 0, 0)]
    big = Claim("big", ONE, 2, 6, elastic=True, evictable=True, ran_s=5000, project="a")
    small = Claim("small", ONE, 2, 2, elastic=True, evictable=True, ran_s=1000, project="b")
    head = Claim("head", ONE, 3, 3, priority=1)
    assert decide(ClusterSnapshot(cluster, [big, small], [head]))[1:] == [Grant("big", 3)]
    decisions = decide(ClusterSnapshot(cluster, [big, small], [replace(head, floor=6, holds=6)]))[1:]
    assert [(type(d), d.job_id) for d in decisions] == [(Grant, "big"), (EvictJob, "small")]
    assert decisions[0] == Grant("big", 2)
    equal = decide(ClusterSnapshot(cluster, [big, small], [replace(head, floor=6, holds=6, priority=0)]))
    assert [(type(d), d.job_id) for d in equal] == [(Hold, "head")], "nobody is asked for anything in vain"
    young = [replace(c, ran_s=10) for c in (big, small)]
    assert not kinds(decide(ClusterSnapshot(cluster, young, [replace(head, floor=6, holds=6)])), EvictJob)


def test_while_others_let_go_nobody_else_is_asked() -> None:
    cluster = [NodeShape("n", 4, 0, 0)]
    first = Claim("first", ONE, 1, 3, elastic=True, granted=2, wants=3)
    second = Claim("second", ONE, 1, 1, elastic=True, evictable=True, ran_s=1000)
    decisions = decide(
        ClusterSnapshot(cluster, [first, second], [Claim("head", ONE, 1, 4, elastic=True, priority=9)])
    )
    assert [type(d) for d in decisions] == [Hold]
    assert isinstance(decisions[0], Hold)
    assert "taking workers back from first" in decisions[0].why.message


@settings(max_examples=150, deadline=None)
@given(CLUSTERS, claims(), PROJECTS)
def test_with_nothing_new_the_cluster_comes_to_rest(
    cluster: list[NodeShape], jobs: list[Claim], projects: dict[str, ProjectShare]
) -> None:
    snapshot = settled(cluster, jobs, projects)
    for _ in range(40):
        if not holding(FreeRoom(cluster), snapshot.admitted):
            return  # nobody says where they are, and put there anew they have no room: the cluster always says
        decisions = decide(snapshot)
        snapshot = carried_out(snapshot, decisions)
        if not kinds(decisions, Admit) | kinds(decisions, Grant) | kinds(decisions, EvictJob):
            break
    else:
        raise AssertionError(f"still at it: {decisions}")


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(8, 24), st.booleans())
def test_projects_hold_workers_by_their_weights(a: int, b: int, cpus: int, whole: bool) -> None:
    """Whether they have many small jobs (whole) or one elastic one each, and whoever came first."""
    projects = {"a": ProjectShare(a), "b": ProjectShare(b)}
    first = [Claim(f"a{n}", ONE, 1, 1, project="a") for n in range(cpus)]
    later = [Claim(f"b{n}", ONE, 1, 1, project="b") for n in range(cpus)]
    if not whole:
        first = [Claim("a", ONE, 1, cpus, project="a", elastic=True)]
        later = [Claim("b", ONE, 1, cpus, project="b", elastic=True)]
    snapshot = ClusterSnapshot([NodeShape("n", cpus, 0, 0)], [], first, projects)
    snapshot = replace(snapshot, queued=first + later) if whole else carried_out(snapshot, decide(snapshot))
    snapshot = snapshot if whole else replace(snapshot, queued=later)
    for _ in range(8):
        snapshot = carried_out(snapshot, decide(snapshot))
    has = {name: used(snapshot.admitted, name)[0] for name in projects}
    assert sum(has.values()) == cpus
    assert abs(has["a"] - cpus * a / (a + b)) <= 2, has


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 12), claims())
def test_a_higher_priority_is_served_first_and_nobody_of_a_lower_one_overtakes(
    cpus: int, jobs: list[Claim]
) -> None:
    queue = [replace(c, need=ONE, waited_s=0.0, ends_in_s=None, servers=0) for c in jobs]
    decisions = decide(ClusterSnapshot([NodeShape("n", cpus, 0, 0)], [], queue))
    admitted = kinds(decisions, Admit)
    possible = [c for c in queue if c.floor <= cpus]
    waiting = [c.priority for c in possible if c.job_id not in admitted]
    assert not waiting or all(c.priority >= max(waiting) for c in possible if c.job_id in admitted)


def start_of_head(cpus: int, at_work: Sequence[Claim], queue: Sequence[Claim]) -> float:
    """When the job `head` starts, if everybody takes as long as they may. Passes at every end."""
    now, ends = 0.0, {c.job_id: c.ends_in_s or 0.0 for c in at_work}
    snapshot = ClusterSnapshot([NodeShape("n", cpus, 0, 0)], at_work, queue)
    lengths = {c.job_id: c.ends_in_s or 0.0 for c in queue}
    while True:
        decisions = decide(snapshot)
        started = kinds(decisions, Admit)
        if "head" in started:
            return now
        ends |= {job_id: now + lengths[job_id] for job_id in started}
        snapshot = carried_out(snapshot, decisions)
        now = min(end for end in ends.values() if end > now)
        left = [replace(c, ends_in_s=ends[c.job_id] - now) for c in snapshot.admitted if ends[c.job_id] > now]
        snapshot = replace(snapshot, admitted=left)


LENGTHS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50)), max_size=5)


@settings(max_examples=150, deadline=None)
@given(LENGTHS, LENGTHS, st.integers(4, 8))
def test_backfill_never_delays_the_head(
    at_work: list[tuple[int, int]], behind: list[tuple[int, int]], cpus: int
) -> None:
    running, room = [], cpus
    for number, (workers, ends_in_s) in enumerate(at_work):
        if workers <= room:
            running.append(Claim(f"r{number}", ONE, workers, workers, ends_in_s=ends_in_s))
            room -= workers
    head = Claim("head", ONE, cpus, cpus, ends_in_s=10)
    small = [Claim(f"s{number}", ONE, w, w, ends_in_s=length) for number, (w, length) in enumerate(behind)]
    assert start_of_head(cpus, running, [head, *small]) == start_of_head(cpus, running, [head])


def test_a_short_job_goes_before_the_head_and_a_long_or_endless_one_does_not() -> None:
    at_work = [Claim("r", ONE, 2, 2, ends_in_s=100)]
    head = Claim("head", ONE, 4, 4)
    queue = [head, Claim("long", ONE, 1, 1, ends_in_s=101), Claim("endless", ONE, 1, 1)]
    queue.append(Claim("short", ONE, 1, 1, ends_in_s=100))
    assert kinds(decide(ClusterSnapshot([NodeShape("n", 4, 0, 0)], at_work, queue)), Admit) == {"short"}


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 3))
def test_waiting_helps_and_nobody_starves(priority: int, cpus: int) -> None:
    """Under an endless stream of jobs of a higher priority, one of which ends in each pass."""
    old = Claim("old", ONE, cpus, cpus, project="a")
    snapshot = ClusterSnapshot([NodeShape("n", cpus, 0, 0)], [], [old])
    snapshot = replace(snapshot, admitted=[Claim(f"r{n}", ONE, 1, 1, project="b") for n in range(cpus)])
    for number in range(200):
        stream = [Claim(f"s{number}-{n}", ONE, 1, 1, priority=priority, project="b") for n in range(cpus)]
        waiting = [c for c in snapshot.queued if c.job_id == "old"]
        decisions = decide(replace(snapshot, queued=[*waiting, *stream]))
        if "old" in kinds(decisions, Admit):
            assert number > 0
            return
        snapshot = carried_out(replace(snapshot, queued=[*waiting, *stream]), decisions)
        snapshot = replace(snapshot, admitted=snapshot.admitted[1:])
    raise AssertionError("it has starved")


def test_a_job_that_its_quota_holds_back_stops_its_own_project_only() -> None:
    queue = [
        Claim("a1", ONE, 3, 3, project="a"),
        Claim("a2", ONE, 1, 1, project="a"),
        Claim("never", ONE, 9, 9, project="c"),
        Claim("c2", ONE, 1, 1, project="c"),
        Claim("b1", ONE, 1, 1, project="b"),
    ]
    at_work = [Claim("r", ONE, 2, 2, project="a")]
    limited = {"a": ProjectShare(workers=4), "c": ProjectShare(workers=4)}
    decisions = decide(ClusterSnapshot([NodeShape("n", 9, 0, 0)], at_work, queue, limited))
    assert kinds(decisions, Admit) == {"b1", "c2"}
    codes = {d.job_id: d.why.code for d in decisions if isinstance(d, Hold)}
    assert codes == {"a1": "quota_used_up", "a2": "behind_in_queue", "never": "quota_too_small"}


def test_nobody_grows_while_somebody_waits_nor_right_after_a_change() -> None:
    cluster = [NodeShape("n", 8, 0, 0)]
    grown = Claim("e", ONE, 1, 2, elastic=True, wants=8)
    assert decide(ClusterSnapshot(cluster, [grown], [])) == [Grant("e", 8)]
    assert decide(ClusterSnapshot(cluster, [replace(grown, settled_s=5)], [])) == []
    rigid = Claim("r", ONE, 4, 4)
    waits = decide(ClusterSnapshot(cluster, [grown, rigid], [Claim("head", ONE, 5, 5)]))
    assert [type(d) for d in waits] == [Hold]


def test_waiting_lifts_a_job_to_the_highest_priority_that_waits_and_no_further() -> None:
    cluster = [NodeShape("n", 1, 0, 0)]
    high = Claim("high", ONE, 1, 1, priority=2, project="b")
    for waited_s, first in ((0.0, "high"), (1199.0, "high"), (1200.0, "old"), (3599.0, "old")):
        old = Claim("old", ONE, 1, 1, waited_s=waited_s, project="a")
        assert kinds(decide(ClusterSnapshot(cluster, [], [old, high])), Admit) == {first}
        assert kinds(decide(ClusterSnapshot(cluster, [], [old, replace(high, priority=0)])), Admit) == {"old"}
    new = Claim("new", ONE, 1, 1, project="b")
    holder = Claim("r", ONE, 1, 1, project="a")
    queue = [Claim("old", ONE, 1, 1, waited_s=1200.0, project="a"), new]
    decisions = decide(ClusterSnapshot([NodeShape("n", 2, 0, 0)], [holder], queue))
    assert kinds(decisions, Admit) == {"new"}, "among equals the share decides, not the time"


@settings(max_examples=100, deadline=None)
@given(st.integers(4, 40), st.integers(1, 3), st.integers(1, 3))
def test_surplus_moves_to_the_project_with_less_once_and_not_back(cpus: int, a: int, b: int) -> None:
    rich = Claim("rich", ONE, 1, cpus - 1, elastic=True, project="a", wants=cpus)
    poor = Claim("poor", ONE, 1, 1, elastic=True, project="b", wants=cpus)
    snapshot = ClusterSnapshot(
        [NodeShape("n", cpus, 0, 0)], [rich, poor], [], {"a": ProjectShare(a), "b": ProjectShare(b)}
    )
    told: dict[str, list[int]] = {"rich": [cpus - 1], "poor": [1]}
    for _ in range(12):
        decisions = decide(snapshot)
        for grant in decisions:
            assert isinstance(grant, Grant)
            told[grant.job_id].append(grant.workers)
        snapshot = carried_out(snapshot, decisions)
    assert told["rich"] == sorted(told["rich"], reverse=True)
    assert told["poor"] == sorted(told["poor"])
    assert abs(told["poor"][-1] - cpus * b / (a + b)) <= 1


def test_after_an_hour_whoever_has_less_than_their_share_goes_before_all() -> None:
    at_work = [Claim("ra", ONE, 4, 4, project="a"), Claim("rb", ONE, 1, 1, project="b")]
    high = Claim("high", ONE, 5, 5, priority=3, project="b")
    for waited_s, held, first in ((3599.0, 4, "high"), (3600.0, 4, "old"), (3600.0, 6, "high")):
        old = Claim("old", ONE, 4, 4, waited_s=waited_s, project="a")
        holder = replace(at_work[0], floor=held, holds=held)
        nodes = [NodeShape("n", held + 6, 0, 0)]
        decisions = decide(ClusterSnapshot(nodes, [holder, at_work[1]], [old, high]))
        assert kinds(decisions, Admit) == {first}, (waited_s, held)
