"""Whose alerts are sent next."""

from typing import Any

import anyio

from ringleader_api.alerting.posting import NotDelivered
from ringleader_api.alerting.sender import Alerting
from ringleader_api.store.alerts import AlertRow


class Receivers:
    """Channels of which those called `hangs` have no answer in time."""

    hang = True

    async def send(self, alert: AlertRow) -> None:
        if self.hang and alert.target.startswith("hangs"):
            raise NotDelivered("no answer within 10 s.", late=True)


class Notes:
    """An outbox that takes what became of alerts."""

    def sent(self, alert: AlertRow) -> None: ...

    def not_sent(self, alert: AlertRow, error: str, *, final: bool) -> None: ...


def alert(project: str, target: str, place: int = 0) -> AlertRow:
    return AlertRow(id=f"{project}/{target}/{place}", project=project, target=target)


async def deliver(alerting: Alerting, alerts: list[AlertRow]) -> None:
    for one in alerts:
        await alerting._deliver(one)


def test_targets_that_hang_leave_places_for_the_others() -> None:
    outbox: Any = Notes()
    channels: Any = Receivers()
    unused: Any = None
    alerting = Alerting(unused, outbox, channels, unused)
    hanging = [alert(f"p{n % 8}", f"hangs{n // 8}", place) for n in range(64) for place in range(2)]
    assert len(alerting._choice(hanging)) == 32, "nobody knows yet"
    anyio.run(deliver, alerting, hanging)
    others = [alert("other", f"works{n}") for n in range(8)]
    chosen = alerting._choice([*hanging, *others])
    assert len({(one.project, one.target) for one in chosen}) == len(chosen) == 32, "one to each target"
    assert [one for one in chosen if one.project == "other"] == others
    channels.hang = False
    anyio.run(deliver, alerting, hanging)
    assert len(alerting._choice(hanging)) == 32, "they answer again"
