"""Who belongs: plans, and the pure machine that makes them."""

from ringleader.elastic.plan import Plan

__all__ = ["Plan"]
