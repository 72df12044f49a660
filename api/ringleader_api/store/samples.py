"""The tables of samples: the cluster once a minute, and every few seconds what a job's workers and their nodes use."""

from datetime import datetime
from typing import Any

from sqlalchemy import Float, String
from sqlalchemy.orm import Mapped, mapped_column

from ringleader_api.store.tables import Base, of_job


class ClusterSample(Base):
    """What the cluster had in one minute, and what jobs held of it."""

    __tablename__ = "cluster_samples"

    at: Mapped[datetime] = mapped_column(primary_key=True)
    nodes: Mapped[int]
    cpus: Mapped[float] = mapped_column(Float)
    gpus: Mapped[float] = mapped_column(Float)
    held_cpus: Mapped[float] = mapped_column(Float)
    held_gpus: Mapped[float] = mapped_column(Float)
    jobs: Mapped[int]
    waiting: Mapped[int]


class SystemRow(Base):
    """What a worker or a node of a job used in the `span_s` seconds until `at`; figures that its platform does not give
    are not there."""

    __tablename__ = "system_samples"

    job_id: Mapped[str] = of_job()
    kind: Mapped[str] = mapped_column(String(8), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    at: Mapped[datetime] = mapped_column(primary_key=True)
    node: Mapped[str] = mapped_column(String(100))
    span_s: Mapped[float] = mapped_column(Float)
    figures: Mapped[dict[str, Any]]
