"""The queue's decisions, on generated clusters and queues: nobody gets what is not there, nobody is overtaken."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader_api.scheduling import Admit, Claim, ClusterSnapshot, Hold, NodeShape, WorkerNeed, decide, fits
from ringleader_api.scheduling.needs import place, room

needs = st.builds(
    WorkerNeed, st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0, 1]), st.sampled_from([0.0, 1.0, 4.0])
)
nodes = st.lists(
    st.builds(lambda c, g, m: (c, g, m), st.integers(0, 8), st.integers(0, 4), st.integers(0, 16)), max_size=4
).map(lambda rows: [NodeShape(f"n{i}", c, g, m) for i, (c, g, m) in enumerate(rows)])


def claims(prefix: str) -> st.SearchStrategy[list[Claim]]:
    one = st.tuples(needs, st.integers(1, 4), st.integers(0, 4))
    return st.lists(one, max_size=5).map(
        lambda rows: [Claim(f"{prefix}{i}", n, low, low + more) for i, (n, low, more) in enumerate(rows)]
    )


@settings(max_examples=200, deadline=None)
@given(nodes, claims("a"), claims("q"))
def test_floors_of_all_admitted_jobs_fit_and_the_order_is_kept(
    cluster: list[NodeShape], admitted: list[Claim], queued: list[Claim]
) -> None:
    decisions = decide(ClusterSnapshot(cluster, admitted, queued))
    assert [d.job_id for d in decisions] == [c.job_id for c in queued]
    free = tuple(cluster)
    for claim in admitted:
        _, free = place(free, claim.need, claim.holds)
    blocked = False
    for claim, decision in zip(queued, decisions, strict=True):
        if isinstance(decision, Admit):
            assert not blocked, "nobody is overtaken"
            got, free = place(free, claim.need, claim.holds)
            assert got >= claim.floor
        else:
            assert isinstance(decision, Hold)
            assert decision.why.message
            blocked = blocked or fits(cluster, claim)


@settings(max_examples=200, deadline=None)
@given(nodes, needs, st.integers(0, 20))
def test_workers_are_only_put_where_there_is_room(
    cluster: list[NodeShape], need: WorkerNeed, count: int
) -> None:
    placed, left = place(cluster, need, count)
    assert placed == min(count, sum(room(n, need) for n in cluster))
    assert all(n.cpus > -1e-6 and n.gpus > -1e-6 and n.memory_gb > -1e-6 for n in left)


def test_a_job_that_no_longer_fits_any_cluster_holds_nobody_back() -> None:
    cluster = [NodeShape("n", 4, 0, 16)]
    one = WorkerNeed(1, 0, 0)
    decisions = decide(ClusterSnapshot(cluster, [], [Claim("huge", one, 9, 9), Claim("small", one, 1, 1)]))
    assert [type(d) for d in decisions] == [Hold, Admit]
