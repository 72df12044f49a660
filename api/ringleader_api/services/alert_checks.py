"""Checks on the channels of alert rules that only the control plane can make: secrets, addresses, mail."""

from collections.abc import Mapping
from typing import Self

import httpx

from ringleader.spec.alerts import AlertChannel, AlertTerms
from ringleader_api.alerting.addresses import Allowed, parsed
from ringleader_api.alerting.lookup import Hosts, Lookup, look_up
from ringleader_api.problems import Unprocessable, wrong_key
from ringleader_api.services.secrets import Secrets
from ringleader_api.settings import Settings
from ringleader_api.store import Store


class ChannelChecks:
    """Checks rules before they are stored. `mails`: whether there is a mail server."""

    def __init__(
        self, store: Store, secrets: Secrets, allowed: Allowed, *, mails: bool, look_up: Lookup = look_up
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._allowed = allowed
        self._mails = mails
        self._look_up = look_up

    @classmethod
    def of(cls, settings: Settings, store: Store, secrets: Secrets) -> Self:
        return cls(store, secrets, Allowed.of(settings.alert_hosts), mails=bool(settings.smtp_host))

    def check(
        self, project: str, rules: Mapping[str, AlertTerms], where: str, *, hosts_known: bool = False
    ) -> list[str]:
        """Check the channels of rules, by the rules' places in what holds them, which is called `where`.

        Returns:
            warnings: hosts that have no address now, and may have one later.

        Args:
            hosts_known: the hosts have been looked up before, and are not again: a look-up may take seconds.

        Raises:
            Unprocessable: a channel leads inside or is a mail without a server, or its secret is not there.
        """
        hosts = Hosts(self._look_up)
        warnings: list[str] = []
        for pointer, rule in rules.items():
            for place, channel in enumerate(rule.channels):
                below = f"{pointer}/channels/{place}"
                self._check_mail(channel, below, where)
                self._check_secrets(project, channel, below, where)
                if not hosts_known and channel.webhook is not None:
                    warnings.append(self._check_address(channel.webhook, hosts, below, where))
        return list(dict.fromkeys(filter(None, warnings)))

    def _check_mail(self, channel: AlertChannel, pointer: str, where: str) -> None:
        if channel.mail is not None and not self._mails:
            raise wrong_key(
                f"{pointer}/mail",
                channel.mail,
                "webhook, slack",
                "cannot be sent to: the control plane has no mail server",
                hint="Have the operator set RINGLEADER_SMTP_HOST and RINGLEADER_SMTP_FROM.",
                where=where,
            )

    def _check_address(self, webhook: str, hosts: Hosts, pointer: str, where: str) -> str:
        refused, warning = self._look_at(webhook, hosts)
        if refused:
            raise wrong_key(
                f"{pointer}/webhook",
                webhook,
                "an address outside",
                refused,
                hint="Have the operator name the host in RINGLEADER_ALERT_HOSTS if it may be reached.",
                where=where,
            )
        return warning

    def _check_secrets(self, project: str, channel: AlertChannel, pointer: str, where: str) -> None:
        named = {key: name for key in ("secret", "slack") if (name := getattr(channel, key)) is not None}
        if not named:
            return
        with self._store.read() as session:
            absent = self._secrets.missing(session, project, named)
        for key in absent:
            raise self._missing(project, f"{pointer}/{key}", named[key], where)

    def _missing(self, project: str, pointer: str, name: str, where: str) -> Unprocessable:
        return wrong_key(
            pointer,
            name,
            "the name of a secret of this project",
            f"is not a secret of project {project}",
            hint=f"Set it with `ringleader secret set {name} --project {project}`.",
            where=where,
        )

    def _look_at(self, webhook: str, hosts: Hosts) -> tuple[str, str]:
        """Why the address may not be used now, and else why nothing arrives there now; empty where nothing speaks
        against it."""
        try:
            url = httpx.URL(webhook)
        except httpx.InvalidURL:
            return "is no address", ""
        # As it is looked up: a name with other letters has an ASCII form, which the resolver and the operator's list
        # know.
        host = url.raw_host.decode("ascii")
        found = parsed(hosts.addresses(host, url.port or 80))
        # All of them, as when an alert is sent: which one a look-up names first is its owner's choice.
        if not all(self._allowed.takes(host, one) for one in found):
            return "leads to an internal address, to which no alerts are sent", ""
        # It may have one later.
        return "", "" if found else f"The host {host} has no address now. Alerts to it fail until it has one."
