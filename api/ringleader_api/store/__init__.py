"""The control plane's memory: tables, transactions, and the one function that moves a job's state."""

from ringleader_api.store.database import Store
from ringleader_api.store.moves import IllegalMove, move, record, retarget

__all__ = ["IllegalMove", "Store", "move", "record", "retarget"]
