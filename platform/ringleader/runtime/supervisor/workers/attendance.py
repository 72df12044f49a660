"""The attendance of workers that an earlier start of the supervisor began: who answers, who is gone, who is silent."""

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import ray
from ray.exceptions import ActorDiedError, NodeDiedError, OutOfMemoryError

from ringleader.runtime.messages import Attendance
from ringleader.runtime.supervisor.failure_detector import BUSY_CPU_S
from ringleader.runtime.supervisor.workers.worker_handle import WorkerHandle, cause_of
from ringleader.runtime.supervisor.workers.worker_returns import Death

ATTEND_S = 2.0
"""The time for an answer to a supervisor that came back: a worker that takes longer, and does nothing, is frozen."""
HEAR_S = 10.0
"""The longest wait for one that is at work: the others hear from their supervisor only then, within `AWAY_S`."""
LOOKS = 2
"""The multiple of `ATTEND_S` that a look at another node's process may take."""


def ask_all(handles: Mapping[str, WorkerHandle], start: int) -> dict[str, Attendance | Death | None]:
    """Ask these workers together, for supervisor start `start`. Returns what each answers; None: it is silent."""
    asked = {worker: handle.actor.attendance.remote(start) for worker, handle in handles.items()}
    await_answers(asked, handles)
    return {worker: _answer(call) for worker, call in asked.items()}


def await_answers(
    asked: Mapping[str, Any], handles: Mapping[str, WorkerHandle], clock: Callable[[], float] = monotonic
) -> None:
    """Wait until all have answered, for `HEAR_S`; one that does not is left out once its process is not at work."""
    until, used = clock() + HEAR_S, dict.fromkeys(asked, 0.0)
    unseen = dict.fromkeys(asked, 0)
    waiting = {answer: worker for worker, answer in asked.items()}
    while waiting and clock() < until:
        _, left = ray.wait([*waiting], num_returns=len(waiting), timeout=ATTEND_S)
        waiting = {answer: waiting[answer] for answer in left}
        for answer, worker in list(waiting.items()):
            glance = handles[worker].glance()
            unseen[worker] = unseen[worker] + 1 if glance is None else 0
            if glance is None and handles[worker].look is not None and unseen[worker] <= LOOKS:
                continue  # somebody looks there
            if glance is None or glance.stopped or glance.cpu_s - used[worker] < BUSY_CPU_S:
                del waiting[answer]
            else:
                used[worker] = glance.cpu_s


def _answer(asked: Any) -> Attendance | Death | None:
    answered, _ = ray.wait([asked], timeout=0)
    try:
        attendance: Attendance | None = ray.get(asked) if answered else None
    except (ActorDiedError, NodeDiedError, OutOfMemoryError) as error:
        return Death(cause_of(error))
    except Exception:  # whatever is in the way may pass; the process must not live on unnoticed
        return None
    return attendance
