"""The cluster over the last days, from the samples that the reconciler stores."""

from datetime import datetime, timedelta

from sqlalchemy import select

from ringleader.wire.occupancy import UsageHistory
from ringleader_api.store import Store
from ringleader_api.store.samples import ClusterSample

KEPT = timedelta(days=7)
"""For how long samples are kept."""


def usage_history(store: Store, since: datetime) -> UsageHistory:
    names = list(UsageHistory.model_fields)
    query = select(*(getattr(ClusterSample, name) for name in names)).where(ClusterSample.at >= since)
    with store.read() as session:
        rows = session.execute(query.order_by(ClusterSample.at)).all()
    return UsageHistory(**{name: [row[at] for row in rows] for at, name in enumerate(names)})
