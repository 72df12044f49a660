"""Alert rules: what has to happen to a job, and who is told. The same in the job file and in a project."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from ringleader.spec.part import Impossible, SpecPart

MAX_RULES, MAX_CHANNELS = 20, 5
"""The most rules of a job file, and the most channels of a rule."""
MAX_ADDRESS = 2000
RULE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
RuleName = Annotated[str, Field(min_length=1, max_length=100, pattern=RULE_NAME)]
MAIL = r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)+$"
Mail = Annotated[str, Field(max_length=254, pattern=MAIL)]
METRIC = r"^[^\x00-\x1f\x7f-\x9f]+$"
ALERT_PATTERNS = {
    MAIL: ("is not a mail address", "an address such as ops@example.org"),
    METRIC: ("has control characters", "the name of a metric, on one line"),
}
"""By pattern, the complaint about text that does not match, and the text that is allowed."""
StateName = Literal[
    "queued", "starting", "running", "recovering", "stopping", "paused", "succeeded", "failed", "cancelled"
]
"""The states of a job: those of `wire.states.State`, which stands above this."""
Kind = Literal["state", "metric", "worker_lost", "waits_longer_than_s", "goodput_below"]
KINDS: tuple[Kind, ...] = ("state", "metric", "worker_lost", "waits_longer_than_s", "goodput_below")
BESIDE = {"above": "metric", "below": "metric", "steps": "metric", "over_s": "goodput_below"}
"""Keys that belong to a condition of one kind."""
ONE_KIND = "one of " + ", ".join(KINDS)


class AlertCondition(SpecPart):
    """The condition of a rule: one of `state`, `metric`, `worker_lost`, `waits_longer_than_s` and `goodput_below`.

    Attributes:
        state: the job comes to this state.
        metric: its recorded values are above `above`, or below `below`, for `steps` recorded steps in a row.
        worker_lost: a worker is gone without having been asked.
        waits_longer_than_s: the job is queued for longer.
        goodput_below: computing is a smaller share of the running time, over each stretch of `over_s`.
    """

    state: StateName | None = None
    metric: Annotated[str, Field(min_length=1, max_length=250, pattern=METRIC)] | None = None
    above: Annotated[float, Field(strict=True)] | None = None
    below: Annotated[float, Field(strict=True)] | None = None
    steps: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1
    worker_lost: Literal[True] | None = None
    waits_longer_than_s: Annotated[float, Field(strict=True, ge=1, le=1e8)] | None = None
    goodput_below: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    over_s: Annotated[float, Field(strict=True, ge=10, le=1e8)] = 600

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            named = " and ".join(given) if given else "nothing"
            raise ValueError(f"the condition names {named}; allowed: {ONE_KIND}")
        for key, kind in BESIDE.items():
            # By value: a stored rule names every key.
            value, default = getattr(self, key), type(self).model_fields[key].default
            if value != default and kind != given[0]:
                raise Impossible(key, value, f"{key} belongs to {kind}; allowed: leave it out")
        if self.metric is not None and (self.above is None) == (self.below is None):
            raise ValueError("metric needs one bound; allowed: above or below")
        return self

    @property
    def kind(self) -> Kind:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)


class AlertChannel(SpecPart):
    """The receiver of alerts: one of `webhook` (with the name of the `secret` that signs), `slack` and `mail`.

    Attributes:
        webhook: the address, http or https, that is posted to.
        secret: the project's secret with whose value each post is signed.
        slack: the project's secret that holds the address of a Slack incoming webhook.
        mail: a mail address.
    """

    webhook: Annotated[str, Field(max_length=MAX_ADDRESS)] | None = None
    secret: RuleName | None = None
    slack: RuleName | None = None
    mail: Mail | None = None

    @field_validator("webhook")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and (why := address_refused(value)):
            raise ValueError(f"{why}; allowed: http:// or https:// with a host, without user and password")
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [kind for kind in ("webhook", "slack", "mail") if getattr(self, kind) is not None]
        if len(given) != 1:
            named = " and ".join(given) if given else "nothing"
            raise ValueError(f"the channel names {named}; allowed: one of webhook, slack, mail")
        if self.webhook is not None and self.secret is None:
            raise Impossible("secret", None, "a webhook needs secret; allowed: the name of a secret")
        if self.webhook is None and self.secret is not None:
            raise Impossible("secret", self.secret, "secret belongs to webhook; allowed: leave it out")
        return self

    @property
    def secrets(self) -> list[str]:
        """The names of the secrets that sending needs."""
        return [name for name in (self.secret, self.slack) if name is not None]

    @property
    def target(self) -> str:
        """The channel in words, without any secret, and of an address without its query, which may hold one."""
        if self.slack is not None:
            return f"slack {self.slack}"
        if self.mail is not None:
            return f"mail {self.mail}"
        parts = urlsplit(self.webhook or "")
        host = parts.netloc.rpartition("@")[2]
        return f"webhook {urlunsplit((parts.scheme, host, parts.path, '', ''))}"


class AlertTerms(SpecPart):
    """A rule without its name."""

    when: AlertCondition
    channels: Annotated[list[AlertChannel], Field(min_length=1, max_length=MAX_CHANNELS)]


class AlertRule(AlertTerms):
    """A rule: its name, what has to happen, and who is told."""

    name: RuleName


def _apart(rules: list[AlertRule]) -> list[AlertRule]:
    """Refuse two rules of one name: what a rule remembers is kept by it."""
    names = [rule.name for rule in rules]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise Impossible(
                f"{place}.name", name, f"an earlier rule is called {name}; allowed: another name"
            )
    return rules


AlertRules = Annotated[list[AlertRule], Field(max_length=MAX_RULES), AfterValidator(_apart)]


def address_refused(address: str) -> str:
    """The reason why nothing may be posted to an address, as far as its spelling tells; empty where there is none."""
    # `urlsplit` drops tabs and line feeds, and clients take a backslash for a slash: another address would be asked
    # than the one that is checked here.
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in address) or "\\" in address:
        return "the address has spaces, backslashes or control characters"
    try:
        parts = urlsplit(address)
        # Read here, as this raises where it is no number.
        port = parts.port
    except ValueError:
        return "the address cannot be read"
    if parts.scheme not in ("http", "https"):
        return "the address begins with neither http:// nor https://"
    if "@" in parts.netloc:
        return "the address holds a user or a password"
    if not parts.hostname or port == 0:
        return "the address has no host"
    return ""
