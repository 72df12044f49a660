"""The cluster over the last days, from the samples that the reconciler stores."""

from datetime import datetime, timedelta

from sqlalchemy import select

from ringleader.wire.views import View
from ringleader_api.store import Store
from ringleader_api.store.samples import ClusterSample

KEPT = timedelta(days=7)
"""For how long samples are kept."""


class UsageHistory(View):
    """The cluster minute by minute, by columns: what there was, and what jobs held of it. Minutes in which no control
    plane saw the cluster are left out."""

    at: list[datetime]
    nodes: list[int]
    cpus: list[float]
    gpus: list[float]
    held_cpus: list[float]
    held_gpus: list[float]
    jobs: list[int]
    waiting: list[int]


def usage_history(store: Store, since: datetime) -> UsageHistory:
    names = list(UsageHistory.model_fields)
    query = select(*(getattr(ClusterSample, name) for name in names)).where(ClusterSample.at >= since)
    with store.read() as session:
        rows = session.execute(query.order_by(ClusterSample.at)).all()
    return UsageHistory(**{name: [row[at] for row in rows] for at, name in enumerate(names)})
