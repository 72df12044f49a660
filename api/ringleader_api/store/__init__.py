"""The control plane's storage: tables, transactions, and the one function that moves a job's state."""

from ringleader_api.store.database import Store, Transactions
from ringleader_api.store.homes import OtherHome, require_shared
from ringleader_api.store.leases import Fenced, Lease, LeaseLost, lease_for
from ringleader_api.store.moves import IllegalMove, move, record, retarget, stay_paused
from ringleader_api.store.whole import log_failure

__all__ = [
    "Fenced",
    "IllegalMove",
    "Lease",
    "LeaseLost",
    "OtherHome",
    "Store",
    "Transactions",
    "lease_for",
    "log_failure",
    "move",
    "record",
    "require_shared",
    "retarget",
    "stay_paused",
]
