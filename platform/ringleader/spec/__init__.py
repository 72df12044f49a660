"""The job file's model."""

from ringleader.spec.job import Batch, Debug, JobSpec, Policy, Sync, Workers

__all__ = ["Batch", "Debug", "JobSpec", "Policy", "Sync", "Workers"]
