"""The status of an attempt as the control plane shows it: its workers, its progress, its time."""

from ringleader.elastic import Membership
from ringleader.elastic.state import Phase
from ringleader.runtime.messages import Heartbeat
from ringleader.runtime.records.record_log import RecordLog
from ringleader.runtime.records.sample_queue import SampleQueue
from ringleader.runtime.supervisor.workers.worker_group import WorkerGroup
from ringleader.wire.ingest import Status
from ringleader.wire.states import State
from ringleader.wire.views import Progress, Spent, WorkerView


def status_of(
    state: Membership,
    worker_group: WorkerGroup,
    newest: Heartbeat | None,
    spent: Spent | None,
    records: RecordLog,
) -> Status:
    """The status of an attempt that has begun.

    Args:
        newest: the heartbeat of the furthest worker.
        spent: the account of its time.
        records: the log of its records: how many were dropped, and what its workers use.
    """
    step = max(state.committed, newest.step if newest else 0)
    total = newest.total_steps if newest else None
    return Status(
        state=State(state.status),
        generation=state.generation,
        world_size=_world(state),
        progress=Progress(
            step=step,
            # A program that goes on behind the steps it has told of: nobody knows how many there will be.
            total_steps=total if total is None or step <= total else None,
            epoch=newest.epoch if newest else 0,
        ),
        workers=_views(state, worker_group, records.samples),
        failures_spent=state.spent,
        spent=spent,
        dropped=records.dropped,
    )


def _world(state: Membership) -> int:
    if state.plan is None:
        return 0
    return len([m for m in state.members if m.role == "worker" and m.phase is not Phase.CONDEMNED])


def _views(state: Membership, worker_group: WorkerGroup, samples: SampleQueue) -> list[WorkerView]:
    views = []
    for worker in state.workers:
        identity = worker_group.identity(worker.id)
        member = state.plan is not None and worker in state.members
        rank = state.plan.rank_of(worker.id) if member and state.plan else None
        use = samples.newest(worker.id)
        memory, on_gpus = use.get("memory_bytes"), use.get("gpu_memory_bytes")
        shards = state.plan.shards_of(rank) if state.plan and rank is not None else range(0)
        views.append(
            WorkerView(
                id=worker.id,
                role=worker.role,
                rank=rank,
                pid=identity.pid if identity else 0,
                node=identity.node if identity else "",
                address=identity.host if identity else "",
                state=worker.phase,
                generation=worker.generation,
                shards=(shards.start, shards.stop),
                cpu_percent=use.get("cpu_percent"),
                memory_bytes=int(memory) if memory is not None else None,
                gpu_memory_bytes=int(on_gpus) if on_gpus is not None else None,
            )
        )
    return views
