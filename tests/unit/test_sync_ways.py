"""What an exchange says about itself: which schedule sums which buckets, and by which costs it was chosen."""

from exchange_members import Member, on_members, on_nodes, plan_of
from rooms import open_room

from ringleader.cli.terminal.exchange_text import exchange_text
from ringleader.comm.choosing.choice import choose
from ringleader.comm.schedules import RankPart
from ringleader.comm.simulator import ClusterCosts, LinkCost
from ringleader.comm.tree import tree_over
from ringleader.exchange.chosen import told

SLOW, FAST = LinkCost(1e-4, 8e-9), LinkCost(2e-5, 2e-10)


def chosen(member: Member) -> dict:
    said = member.exchange.chosen()
    assert said is not None
    return said


def test_members_that_share_memory_sum_in_place_and_measure_nothing():
    first, second = on_members(plan_of(2, 4), chosen, shared=True)
    assert first == second
    assert [way["schedule"] for way in first["ways"]] == ["in_place"]
    assert "costs" not in first


def test_members_on_several_nodes_say_what_they_measured_and_chose_by_it():
    store = open_room()
    plan = plan_of(3, 4)
    buckets: list[tuple[int, int]] = []

    def said(member: Member) -> tuple[dict, list[str]]:
        if member.rank == 0:
            buckets.extend((b.number, b.length) for b in member.exchange.buckets.buckets)
        costs = member.exchange._choice.costs
        rows = tuple(tree_over(4, frozenset(range(4))).partials(plan.shards_of(r)) for r in range(3))
        lengths = [b.length for b in member.exchange.buckets.buckets]
        parts = [
            RankPart(member.rank, n, rows, tree_over(4, frozenset(range(4))), groups=((0, 1), (2,)))
            for n in lengths
        ]
        return chosen(member), [choose(part, costs, canonical=True) for part in parts]

    results = on_members(plan, said, members=on_nodes((0, 0, 1), store.port))
    first = results[0][0]
    assert all(answer == first for answer, _ in results)
    named = sorted(name for way in first["ways"] for name in [way["schedule"]] * way["buckets"])
    assert named == sorted(results[0][1])
    assert sum(way["buckets"] for way in first["ways"]) == len(buckets)
    assert set(first["costs"]) == {"inside", "between_nodes", "add_bytes_per_s"}
    assert first["costs"]["between_nodes"]["latency_s"] > 0


def test_who_is_alone_and_who_has_one_way_only_say_nothing():
    assert on_members(plan_of(1, 4), lambda m: m.exchange.chosen()) == [None]
    assert on_members(plan_of(1, 4, servers=1), lambda m: m.exchange.chosen()) == [None, None]


def test_buckets_of_one_schedule_are_one_way_with_their_sizes():
    said = told("auto", [("ring", 100), ("gather", 8), ("ring", 300)], ClusterCosts(FAST, SLOW, 0.0))
    assert said["ways"] == [
        {"schedule": "ring", "buckets": 2, "least_bytes": 100, "most_bytes": 300},
        {"schedule": "gather", "buckets": 1, "least_bytes": 8, "most_bytes": 8},
    ]
    assert said["costs"]["inside"] == {"latency_s": 2e-5, "bytes_per_s": 1 / 2e-10}
    assert said["costs"]["add_bytes_per_s"] is None


def test_describe_shows_ways_and_costs():
    said = told("auto", [("ring", 26_214_400)] * 3 + [("gather", 1024)], ClusterCosts(FAST, SLOW, 1 / 16e9))
    assert exchange_text(said, 2).splitlines() == [
        "",
        "exchange (algorithm auto, since generation 2)",
        "  26.2 MB × 3 buckets: ring",
        "  1.0 KB × 1 bucket: gather",
        "  measured: between nodes 0.1 ms a message, 125.0 MB/s; inside a node 0.02 ms a message, 5.0 GB/s; "
        "adds 16.0 GB/s",
    ]
    alone = told("auto", [("gather", 1024)], ClusterCosts(SLOW, SLOW, 0.0))
    assert exchange_text(alone, 1).splitlines()[-1] == "  measured: 0.1 ms a message, 125.0 MB/s"
