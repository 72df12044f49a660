"""A job's living workers and servers, as its supervisor last reported them."""

from ringleader.wire.views import View, WorkerView
from ringleader_api.services.users.access import load
from ringleader_api.store import Store


class WorkerPage(View):
    """Workers in rank order, servers behind them."""

    items: list[WorkerView]


def workers(store: Store, job_id: str) -> WorkerPage:
    with store.read() as session:
        rows = load(session, job_id).workers
    return WorkerPage(items=[WorkerView.model_validate(row) for row in rows])
