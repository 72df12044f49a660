"""Where attempts have their places, read from Ray's table of placement groups."""

from collections.abc import Mapping

from ringleader.runtime.nodes.layout import ClusterLayout, lasting, places_of

JOB = "job-job_01M7ZW9AWEHEJAZN2204WBPFD7-a2"


def group(name: str, *nodes: str) -> Mapping[str, object]:
    return shaped(name, *((node, {"CPU": 1.0}) for node in nodes))


def shaped(name: str, *bundles: tuple[str, dict[str, float]]) -> Mapping[str, object]:
    return {
        "name": name,
        "bundles": dict(enumerate(bundle for _, bundle in bundles)),
        "bundles_to_node_id": dict(enumerate(node for node, _ in bundles)),
    }


def test_the_gang_comes_first_then_the_surplus_in_the_order_of_its_workers() -> None:
    groups = [
        group(f"{JOB}-surplus-w10", "b"),
        group(f"{JOB}-surplus-w9", "c"),
        group(f"{JOB}-floor", "a", "b", "a", ""),
        group("somebody's-floor", "a"),
    ]
    found, servers = places_of(groups)
    assert found == {("job_01M7ZW9AWEHEJAZN2204WBPFD7", 2): (("a", 2), ("b", 1), ("c", 1), ("b", 1))}
    assert servers == {}


def test_servers_of_another_shape_are_told_apart_from_the_workers() -> None:
    worker, server = {"CPU": 1.0, "GPU": 1.0}, {"CPU": 2.0}
    groups = [
        shaped(f"{JOB}-floor", ("a", worker), ("b", worker), ("a", server), ("b", server)),
        shaped(f"{JOB}-surplus-w4", ("b", worker)),
        shaped(f"{JOB}-surplus-w5", ("c", server)),
    ]
    who = "job_01M7ZW9AWEHEJAZN2204WBPFD7", 2
    assert places_of(groups) == (
        {who: (("a", 1), ("b", 1), ("b", 1))},
        {who: (("a", 1), ("b", 1), ("c", 1))},
    )


def test_what_has_just_been_let_go_of_is_not_taken_for_somebody_elses() -> None:
    first = ClusterLayout({}, {"a": (2.0, 0.0, 1.0), "b": (1.0, 0.0, 0.0)}, {})
    then = ClusterLayout({}, {"a": (1.0, 1.0, 1.0), "c": (1.0, 0.0, 0.0)}, {})
    assert lasting(None, first) == {}
    assert lasting(first, then) == {"a": (1.0, 0.0, 1.0)}
