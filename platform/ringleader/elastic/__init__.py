"""Who belongs: plans, and the pure machine that makes them."""

from ringleader.elastic.membership import begin, handle
from ringleader.elastic.plan import NOWHERE, Meeting, Plan
from ringleader.elastic.state import Membership, Rules

__all__ = ["NOWHERE", "Meeting", "Membership", "Plan", "Rules", "begin", "handle"]
