"""Copying jobs to MLflow. The only package that speaks to it; an outage there is felt nowhere else."""

from ringleader_api.tracking.admitted import admitted
from ringleader_api.tracking.exporter import Exporter
from ringleader_api.tracking.mlflow import Mlflow

__all__ = ["Exporter", "Mlflow", "admitted"]
