"""The control plane's storage: tables, transactions, and the one function that moves a job's state."""

from ringleader_api.store.database import Store, Transactions
from ringleader_api.store.homes import OtherHome, require_shared
from ringleader_api.store.leases import Fenced, RoleLease, RoleLeaseLost, lease_for
from ringleader_api.store.moves import IllegalMove, move, record, retarget, stay_paused
from ringleader_api.store.whole import log_failure

__all__ = [
    "Fenced",
    "IllegalMove",
    "OtherHome",
    "RoleLease",
    "RoleLeaseLost",
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
