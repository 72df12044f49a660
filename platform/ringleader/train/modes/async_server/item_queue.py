"""The lease queue of a loop's items, by the mode that its `sync:` asks for."""

from ringleader.spec.sync import Sync
from ringleader.train.modes.async_server.lease_queue import (
    AsyncPolicy,
    BackupWorkers,
    BoundedStaleness,
    LeasePolicy,
    LeaseQueue,
    LoopItems,
)
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.rows.cursor import present_shards


def queue_of(loop: BatchLoop, sync: Sync) -> LeaseQueue:
    """A queue with every item of the loop, none of them taken."""
    epoch = loop.epoch
    last = present_shards(epoch.batch_rows(epoch.steps - 1), epoch.shards)
    return LeaseQueue(LoopItems(epoch.steps, epoch.shards, tuple(sorted(last))), _discipline_of(sync))


def _discipline_of(sync: Sync) -> LeasePolicy:
    if sync.consistency == "async":
        return AsyncPolicy()
    return (
        BackupWorkers(sync.backup_workers) if sync.backup_workers else BoundedStaleness(sync.staleness or 0)
    )
