"""Lightning's `Trainer` on a session."""

from ringleader.adapters.lightning.strategy import RingleaderStrategy

__all__ = ["RingleaderStrategy"]
