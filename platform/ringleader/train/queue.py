"""The queue of a loop's items, as its `sync:` asks for it."""

from ringleader.elastic.leases import Batches, Bounded, Discipline, EachAlone, FirstCome, Leases
from ringleader.spec.sync import Sync
from ringleader.train.cursor import present_shards
from ringleader.train.steps import Loop


def queue_of(loop: Loop, sync: Sync) -> Leases:
    """Every item of the loop, none of them taken."""
    epoch = loop.epoch
    last = present_shards(epoch.batch_rows(epoch.steps - 1), epoch.shards)
    return Leases(Batches(epoch.steps, epoch.shards, tuple(sorted(last))), _discipline_of(sync))


def _discipline_of(sync: Sync) -> Discipline:
    if sync.consistency == "async":
        return EachAlone()
    return FirstCome(sync.backup_workers) if sync.backup_workers else Bounded(sync.staleness or 0)
