"""The channels of alerts: what a webhook, Slack and a mailbox are sent."""

import json
from collections.abc import Mapping
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime
from functools import partial
from typing import Any

from anyio import fail_after, to_thread

from ringleader import __version__
from ringleader.spec.alerts import AlertChannel
from ringleader.wire.alerts import AlertBody, AlertJob, signature
from ringleader_api.alerting.mail import MailServer, NotTaken
from ringleader_api.alerting.posting import NotDelivered, Poster
from ringleader_api.clock import Clock
from ringleader_api.problems import NotFound
from ringleader_api.services.secrets import Secrets, SecretsKeyOther
from ringleader_api.store import Transactions
from ringleader_api.store.alerts import AlertRow

AGENT = f"ringleader/{__version__}"
# A server may know nothing of 8 bits, and would not say so.
SEVEN_BITS = policy.default.clone(cte_type="7bit")
MAIL_DEADLINE_S = 60.0
"""The time for one mail: servers that greylist answer late, and one that takes a mail behind the deadline gets it
again."""


class Channels:
    """Sends one alert to its channel. `url` is the control plane's; `mail` is None where no SMTP is configured."""

    def __init__(
        self,
        store: Transactions,
        secrets: Secrets,
        poster: Poster,
        now: Clock,
        *,
        url: str,
        mail: MailServer | None = None,
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._poster = poster
        self._now = now
        self._url = url
        self._mail = mail

    async def send(self, alert: AlertRow) -> None:
        """Send it once. Raises NotDelivered."""
        channel = AlertChannel.model_validate(alert.channel)
        body = self._body(alert)
        if channel.mail is not None:
            await self._send_mail(channel.mail, body)
            return
        values = await to_thread.run_sync(self._values, alert.project, channel)
        if channel.slack is not None:
            headers = {"Content-Type": "application/json", "User-Agent": AGENT}
            text = json.dumps({"text": slack_text(body)}).encode()
            called = f"the host in secret {channel.slack}"
            await self._poster.post(values[channel.slack], headers, text, called=called)
        elif channel.webhook is not None and channel.secret is not None:
            content = body.model_dump_json().encode()
            await self._poster.post(
                channel.webhook, self._signed(values[channel.secret], body, content), content
            )

    def _signed(self, secret: str, body: AlertBody, content: bytes) -> Mapping[str, str]:
        timestamp = int(self._now().timestamp())
        try:
            signed = signature(secret, body.id, timestamp, content)
        except ValueError:
            raise NotDelivered("the secret begins with whsec_ and is no base64.") from None
        return {
            "Content-Type": "application/json",
            "User-Agent": AGENT,
            "webhook-id": body.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signed,
        }

    def _values(self, project: str, channel: AlertChannel) -> dict[str, str]:
        try:
            with self._store.read() as session:
                return self._secrets.values(session, project, {name: name for name in channel.secrets})
        except (NotFound, SecretsKeyOther) as error:
            raise NotDelivered(error.message) from None

    def _body(self, alert: AlertRow) -> AlertBody:
        page = f"{self._url}/jobs/{alert.job_id}"
        job = AlertJob(id=alert.job_id, name=alert.job_name, url=page) if alert.job_id else None
        told = {
            name: getattr(alert, name) for name in ("id", "at", "project", "rule", "kind", "message", "data")
        }
        return AlertBody(job=job, **told)

    async def _send_mail(self, to: str, body: AlertBody) -> None:
        if self._mail is None:
            raise NotDelivered(
                "the control plane sends no mail: RINGLEADER_SMTP_HOST is not set.", final=True
            )
        send = partial(self._mail.send, mail_to(to, self._mail.sender, body))
        try:
            with fail_after(MAIL_DEADLINE_S):
                await to_thread.run_sync(send, abandon_on_cancel=True)
        except TimeoutError:
            told = f"the mail server did not answer within {MAIL_DEADLINE_S:g} s."
            raise NotDelivered(told, late=True) from None
        except NotTaken as error:
            raise NotDelivered(error.message) from None


def slack_text(body: AlertBody) -> str:
    """The alert as Slack shows it; only these three characters mean anything to it in a message from outside."""
    plain = f"{body.message} (rule {body.rule} of project {body.project})"
    escaped = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"{escaped}\n<{body.job.url}>" if body.job is not None else escaped


def mail_to(to: str, sender: str, body: AlertBody) -> EmailMessage:
    """The alert as a mail of plain text. `Message-ID` is the same each time that it is sent."""
    mail = EmailMessage(SEVEN_BITS)
    mail["From"], mail["To"] = sender, to
    # On one line: a header cannot hold another.
    mail["Subject"] = " ".join(f"[ringleader] {body.message}".split())[:200]
    mail["Date"] = format_datetime(body.at)
    mail["Message-ID"] = f"<{body.id}@{sender.rpartition('@')[2]}>"
    # Nobody's absence is told to it.
    mail["Auto-Submitted"] = "auto-generated"
    link = [body.job.url, ""] if body.job else []
    facts = {
        "project": body.project,
        "rule": body.rule,
        "at": f"{body.at:%Y-%m-%d %H:%M:%S} UTC",
        **body.data,
    }
    lines = [line for name, value in facts.items() for line in _lines(name, value, body.message)]
    mail.set_content("\n".join([body.message, "", *link, *lines, ""]))
    return mail


def _lines(name: str, value: Any, said: str) -> list[str]:
    """A fact in words, a line for each of its parts; of these, what the message has said is left out."""
    if isinstance(value, Mapping):
        parts = {key: part for key, part in value.items() if str(part) not in said}
        return [line for key, part in parts.items() for line in _lines(f"{name} {key}", part, said)]
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    if value is None or value == "":
        return []
    return [f"{name}: {' '.join(value.split()) if isinstance(value, str) else json.dumps(value)}"]
