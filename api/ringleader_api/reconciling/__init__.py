"""Making the cluster match the rows: the loop, the queue, and the start of each attempt exactly once."""

from ringleader_api.reconciling.autoscaling import Autoscaling
from ringleader_api.reconciling.launcher import AttemptLauncher
from ringleader_api.reconciling.leased_backend import RoleLeasedBackend
from ringleader_api.reconciling.loop import Reconciler
from ringleader_api.reconciling.retention import Retention
from ringleader_api.reconciling.sampling import ClusterSampling
from ringleader_api.reconciling.spool_recovery import SpoolRecovery
from ringleader_api.reconciling.sweeping import Sweeping

__all__ = [
    "AttemptLauncher",
    "Autoscaling",
    "ClusterSampling",
    "Reconciler",
    "Retention",
    "RoleLeasedBackend",
    "SpoolRecovery",
    "Sweeping",
]
