"""What `describe` says about the exchange of a job that has really run."""

import json

import pytest
from whole_stack import Running

from ringleader.cli.main import main
from ringleader.client import Client

DEADLINE_S = 300


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize(
    ("sync", "way"),
    [
        ({"algorithm": "auto"}, "in place (shared memory)"),
        ({"algorithm": "halving_doubling", "reproducible": False}, "halving_doubling"),
    ],
    ids=["auto", "named"],
)
def test_describe_names_the_schedule_that_sums_the_buckets(
    stack: Running, sync: dict[str, object], way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = stack.client.submit(
        {
            "name": "described",
            "entrypoint": "ringleader_jobs.digits:train",
            "params": {"lr": 0.1, "epochs": 1},
            "workers": {"min": 2, "max": 2},
            "batch": {"global_size": 64},
            "sync": sync,
        }
    )
    job.wait(timeout=DEADLINE_S)
    (told,) = [event for event in job.events() if event.type == "exchange.chosen"]
    capsys.readouterr()
    assert main(["describe", job.id], connect=lambda: Client(stack.url, stack.token)) == 0
    out = capsys.readouterr().out
    head = f"exchange (algorithm {sync['algorithm']}, since generation {told.generation})"
    after = out.splitlines()[out.splitlines().index(head) + 1 :]
    assert after[0].endswith(f": {way}")
    assert len(told.data["ways"]) == 1
    assert "costs" not in told.data  # one node: nothing had to be measured
    assert main(["events", job.id, "-o", "json"], connect=lambda: Client(stack.url, stack.token)) == 0
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert [line["data"] for line in lines if line["type"] == "exchange.chosen"] == [told.data]
