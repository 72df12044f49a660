"""The job file's model."""

from ringleader.spec.job import Batch, Checkpoint, Debug, JobSpec, Policy, Precision, Workers
from ringleader.spec.sync import Sync

__all__ = ["Batch", "Checkpoint", "Debug", "JobSpec", "Policy", "Precision", "Sync", "Workers"]
