"""Ringleader's control plane: REST, store, reconciler, tracking and the page, in one process."""
