"""Samples of the cluster: once a minute, what there is and what jobs hold of it."""

from datetime import datetime

from sqlalchemy import delete

from ringleader_api.clock import Clock
from ringleader_api.scheduling import Seen
from ringleader_api.services.history import KEPT
from ringleader_api.services.jobs.claims import Register, held_by
from ringleader_api.store import Transactions
from ringleader_api.store.listed import insert_of
from ringleader_api.store.samples import ClusterSample


class ClusterSampling:
    """Stores a sample a minute, and removes old ones. Used by the reconciler only."""

    def __init__(self, store: Transactions, now: Clock) -> None:
        self._store = store
        self._now = now
        self._register = Register()
        self._sampled: datetime | None = None

    def sample(self, seen: Seen) -> None:
        """Store the sample of this minute, unless there is one."""
        now = self._now()
        minute = now.replace(second=0, microsecond=0)
        if minute == self._sampled:
            return
        with self._store.read() as session:
            held = held_by(self._register.jobs(session), now).values()
        row = {
            "at": minute,
            "nodes": len(seen.nodes),
            "cpus": sum(node.cpus for node in seen.nodes),
            "gpus": sum(node.gpus for node in seen.nodes),
            "held_cpus": sum(one.cpus for one in held),
            "held_gpus": sum(one.gpus for one in held),
            "jobs": sum(one.jobs for one in held),
            "waiting": sum(one.waiting for one in held),
        }
        with self._store.write() as session:
            # Another control plane may have stored one before it lost the role.
            session.execute(insert_of(session)(ClusterSample).on_conflict_do_nothing(), [row])
            session.execute(delete(ClusterSample).where(ClusterSample.at < minute - KEPT))
        self._sampled = minute
