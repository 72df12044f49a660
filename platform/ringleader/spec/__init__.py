"""The job file's model."""

from ringleader.spec.batch import Batch
from ringleader.spec.job import Checkpoint, Debug, JobSpec, Policy, Precision
from ringleader.spec.sync import Sync
from ringleader.spec.workers import Servers, Workers

__all__ = ["Batch", "Checkpoint", "Debug", "JobSpec", "Policy", "Precision", "Servers", "Sync", "Workers"]
