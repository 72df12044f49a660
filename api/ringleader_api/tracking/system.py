"""System metrics of a job as MLflow shows them, in a tab of their own: the metrics whose names begin with `system/`.

A sample is told once, by its own time, as it is stored when it is told: one that comes after a later one is left out,
and of samples that were taken together meanwhile MLflow gets what stands for them.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter

from sqlalchemy import select
from sqlalchemy.orm import Session

from ringleader_api.store.samples import SystemRow
from ringleader_api.store.tables import Event
from ringleader_api.tracking.mlflow import MlflowPoint
from ringleader_api.tracking.records import millis, mlflow_key

MOST_TOLD = 24
"""The most nodes and workers of which a sample tells: MLflow keeps a row for each value and a chart for each name."""
MOST_ROWS = 500
"""The rows that are read at once; of one sample there are never more."""
SHORT = 10


def next_samples(session: Session, job_id: str, after: datetime | None) -> Sequence[SystemRow]:
    """The rows of some samples of a job behind a time, in order, each sample whole; empty where there are none."""
    query = select(SystemRow).where(SystemRow.job_id == job_id)
    if after is not None:
        query = query.where(SystemRow.at > after)
    rows = session.scalars(
        query.order_by(SystemRow.at, SystemRow.kind, SystemRow.name).limit(MOST_ROWS)
    ).all()
    if len(rows) < MOST_ROWS or rows[0].at == rows[-1].at:
        return rows
    # The rest of the last one may be behind the limit: it comes next time.
    return [row for row in rows if row.at < rows[-1].at]


def node_names(session: Session, job_id: str) -> dict[str, str]:
    """The names of a job's nodes by their ids: their addresses, as workers told them that joined there, with the
    beginning of the id where another node had the address before. A later worker changes no name."""
    joined = (
        select(Event.data).where(Event.job_id == job_id, Event.type == "worker.joined").order_by(Event.seq)
    )
    names: dict[str, str] = {}
    for told in session.scalars(joined):
        node, address = told.get("node"), told.get("address")
        # What a job's own process has told may be anything.
        if isinstance(node, str) and isinstance(address, str) and node and address and node not in names:
            names[node] = f"{address} {_short(node)}" if address in names.values() else address
    return names


def system_points(rows: Sequence[SystemRow], began: datetime, nodes: Mapping[str, str]) -> list[MlflowPoint]:
    """What MLflow is told of them: `system/NAME/FIGURE`, at the second since the job `began`, nodes before workers.
    `nodes` has the names of nodes by their ids."""
    return [
        MlflowPoint(
            mlflow_key(f"system/{_name(row, nodes)}/{figure}"),
            value,
            millis(at),
            max(0, round((at - began).total_seconds())),
        )
        for at, sample in groupby(rows, attrgetter("at"))
        for row in sorted(sample, key=attrgetter("kind", "name"))[:MOST_TOLD]
        for figure, value in sorted(row.figures.items())
    ]


def _name(row: SystemRow, nodes: Mapping[str, str]) -> str:
    return nodes.get(row.name, _short(row.name)) if row.kind == "node" else row.name


def _short(node: str) -> str:
    """The beginning of a node's id, as the page has it: Ray's have 56 letters."""
    return node[:SHORT]
