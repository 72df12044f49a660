"""How a member meets the others."""

from pathlib import Path

from ringleader.elastic import Plan
from ringleader.runtime.member import call_of
from ringleader.runtime.messages import Task
from ringleader.spec import JobSpec


def test_a_wait_for_others_may_be_longer_than_a_stall():
    spec = JobSpec.parse(
        {
            "name": "member",
            "entrypoint": "unit:train",
            "workers": {"max": 2},
            "batch": {"global_size": 4},
            "policy": {"stall_timeout_s": 1},
        }
    )
    task = Task("job", 1, "w1", "worker", spec, Path("artifacts"), Path("scratch"), "checkpoints")
    plan = Plan(1, 3, ("w0", "w1"), 0, 2, 0, (), 0, "127.0.0.1:4321", "start")
    call = call_of(task, "here", plan, 1)
    assert (call.store_host, call.store_port, call.rank, call.size) == ("127.0.0.1", 4321, 1, 2)
    assert call.prefix.endswith("/1.3")
    assert call.deadline_s == 3600, "whoever is slow, in a first step or an evaluation, is waited for"
