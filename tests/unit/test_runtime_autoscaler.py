"""What Ray's autoscaler says of nodes that it could not start."""

import json

import pytest


def test_the_types_that_could_not_be_had_are_told_with_why() -> None:
    from ringleader.runtime.nodes.autoscaler import refusals

    spot = {"unavailable_node_information": {"category": "capacity", "description": "no spot machines left"}}
    types = {"worker": spot, "other": {"unavailable_node_information": None}}
    status = {"autoscaler_report": {"node_availability_summary": {"node_availabilities": types}}}
    assert refusals(json.dumps(status)) == "worker: no spot machines left"


@pytest.mark.parametrize("status", ["", "{}", "[1]", '{"autoscaler_report": null}'])
def test_a_status_of_another_shape_says_nothing(status: str) -> None:
    from ringleader.runtime.nodes.autoscaler import refusals

    assert refusals(status) == ""
