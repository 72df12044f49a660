"""Membership: plans, and the pure machine that makes them."""

from ringleader.elastic.events import ParkReport
from ringleader.elastic.membership import begin, handle
from ringleader.elastic.plan import NOWHERE, Meeting, Plan
from ringleader.elastic.state import AttemptRules, Membership

__all__ = ["NOWHERE", "AttemptRules", "Meeting", "Membership", "ParkReport", "Plan", "begin", "handle"]
