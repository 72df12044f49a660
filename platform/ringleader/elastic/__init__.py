"""Who belongs: plans, and the pure machine that makes them."""

from ringleader.elastic.membership import begin, handle
from ringleader.elastic.plan import Plan
from ringleader.elastic.state import Membership, Rules

__all__ = ["Membership", "Plan", "Rules", "begin", "handle"]
