"""Alerts as the API shows them, and as a webhook receives them."""

import base64
import hashlib
import hmac
from datetime import datetime
from enum import StrEnum
from typing import Any

from ringleader.spec.alerts import AlertTerms
from ringleader.wire.views import View

TEST = "test"
"""The kind of an alert that somebody sent to try a rule's channels."""
WHSEC = "whsec_"
"""How secrets begin that are base64, as Standard Webhooks has them; of any other secret the text itself is the key."""


class AlertState(StrEnum):
    """The state of an alert: `pending` until a receiver has taken it, or until no more is tried."""

    PENDING = "pending"
    SENT = "sent"
    FAILED = "failed"


class AlertRuleView(AlertTerms):
    """A rule of a project."""

    project: str
    name: str
    set_by: str
    set_at: datetime


class AlertRuleSet(AlertRuleView):
    """A rule of a project that was just set.

    Attributes:
        warnings: what would keep its alerts from arriving as things are now, in sentences.
    """

    warnings: list[str]


class AlertRulePage(View):
    """The rules of a project, by name."""

    items: list[AlertRuleView]


class AlertView(View):
    """One alert on its way to one channel.

    Attributes:
        job: the job's id; empty for a test.
        kind: the rule's condition, or `test`.
        target: the channel, in words.
        tries: how often it was sent so far.
        error: why the last try failed; empty where none did.
        due_at: when it is tried next; null once it is sent or failed.
    """

    id: str
    project: str
    job: str
    job_name: str
    rule: str
    kind: str
    message: str
    data: dict[str, Any]
    target: str
    state: AlertState
    tries: int
    error: str
    at: datetime
    due_at: datetime | None
    ended_at: datetime | None


class AlertPage(View):
    """Alerts, newest first."""

    items: list[AlertView]
    next_cursor: str | None = None


class AlertJob(View):
    """The job that an alert is about; its page is at `url`."""

    id: str
    name: str
    url: str


class AlertBody(View):
    """The body that a webhook receives. `id` is the same each time that one alert is sent to one channel."""

    id: str
    at: datetime
    project: str
    rule: str
    kind: str
    message: str
    job: AlertJob | None
    data: dict[str, Any]


def signature(secret: str, alert_id: str, timestamp: int, body: bytes) -> str:
    """The value of the header `webhook-signature`: HMAC-SHA256, as Standard Webhooks has it."""
    key = base64.b64decode(secret.removeprefix(WHSEC)) if secret.startswith(WHSEC) else secret.encode()
    signed = f"{alert_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
