"""What the status of an attempt says of its progress."""

from types import SimpleNamespace
from typing import Any

import pytest
from membership_world import World

from ringleader.runtime.messages import Heartbeat, ProcessIdentity


@pytest.mark.parametrize(
    ("step", "told", "shown"), [(3, 4, 4), (4, 4, 4), (5, 4, None), (5, None, None)], ids=str
)
def test_a_program_that_goes_on_behind_the_steps_it_told_of_is_not_at_step_5_of_4(
    step: int, told: int | None, shown: int | None
) -> None:
    from ringleader.runtime.supervisor.attempt_status import status_of  # loads Ray

    world = World.of(workers_min=1, workers_max=1, shards=1)
    world.boot("w0")
    group: Any = SimpleNamespace(identity=lambda worker: None)
    records: Any = SimpleNamespace(dropped={}, samples=SimpleNamespace(newest=lambda worker: {}))
    beat = Heartbeat("w0", ProcessIdentity(1, "n", "h"), number=1, step=step, total_steps=told)
    progress = status_of(world.state, group, beat, None, records).progress
    assert (progress.step, progress.total_steps) == (step, shown)
