"""Making the cluster match the rows: the loop, the queue, and the start of an attempt exactly once."""

from ringleader_api.reconciling.growing import Growing
from ringleader_api.reconciling.inheriting import Inheriting
from ringleader_api.reconciling.launching import Launching
from ringleader_api.reconciling.leased import Leased
from ringleader_api.reconciling.loop import Reconciler

__all__ = ["Growing", "Inheriting", "Launching", "Leased", "Reconciler"]
