"""The one background task of alerts: it has the watch look at jobs, and sends what is due, a few at a time."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Self

import anyio
from anyio import create_task_group, to_thread

from ringleader_api.alerting.addresses import Allowed
from ringleader_api.alerting.channels import Channels
from ringleader_api.alerting.outbox import Outbox
from ringleader_api.alerting.posting import NotDelivered, Poster
from ringleader_api.alerting.watch import AlertWatch
from ringleader_api.clock import Clock
from ringleader_api.log import Log
from ringleader_api.services.secrets import Secrets
from ringleader_api.settings import Settings
from ringleader_api.store import Fenced, RoleLease, RoleLeaseLost, Store, lease_for, log_failure
from ringleader_api.store.alerts import AlertRow

log = Log("ringleader.alerts")
AT_ONCE, PER_PROJECT, PER_TARGET = 32, 8, 2
"""The most alerts on their way: together, of one project, and to one target of it. One that hangs keeps only those to
its own target waiting."""
TO_LATE, OF_LATE = 1, AT_ONCE - 8
"""The same for targets whose last try had no answer in time: to one of them, and to all together, so that those of
many projects leave places for the others."""
EVERY_S = 0.25
REST, LONGEST_REST_S = 4.0, 1.0
"""The rest after a round, as a multiple of the time it took, and at most in seconds."""


Target = tuple[str, str]
"""A project and what it calls a receiver."""


def target_of(alert: AlertRow) -> Target:
    return alert.project, alert.target


class Alerting:
    """Runs until stopped. `lease` is the role, which one of several control planes has."""

    def __init__(self, watch: AlertWatch, outbox: Outbox, channels: Channels, lease: RoleLease) -> None:
        self._watch = watch
        self._outbox = outbox
        self._channels = channels
        self.lease = lease
        self._on_the_way: dict[str, AlertRow] = {}
        self._late: set[Target] = set()
        """Targets whose last try had no answer in time."""
        self._stop = threading.Event()

    @classmethod
    def of(cls, settings: Settings, store: Store, secrets: Secrets, now: Clock) -> Self:
        lease = lease_for(store, settings.home, "alerts", settings.lease_s)
        # Its writes go through its lease: one that has lost the role notes nothing.
        ours = Fenced(store, lease)
        poster = Poster(Allowed.of(settings.alert_hosts))
        channels = Channels(ours, secrets, poster, now, url=settings.url, mail=settings.mail_server)
        outbox = Outbox(ours, now, timedelta(days=settings.alerts_kept_days), shared=store.shared)
        return cls(AlertWatch(ours, now, shared=store.shared), outbox, channels, lease)

    def run(self, every_s: float) -> None:
        anyio.run(self._serve, every_s)

    def stop(self) -> None:
        self._stop.set()

    def tick(self) -> None:
        """One round, and what it found due: sent, or not, when this returns."""
        anyio.run(self._once)

    async def _once(self) -> None:
        async with create_task_group() as tasks:
            for alert in self._round():
                tasks.start_soon(self._deliver, alert)

    async def _serve(self, every_s: float) -> None:
        async with create_task_group() as tasks:
            while not self._stop.is_set():
                began = time.monotonic()
                for alert in await to_thread.run_sync(self._guarded_round):
                    tasks.start_soon(self._deliver, alert)
                rest_s = max(every_s, min(LONGEST_REST_S, REST * (time.monotonic() - began)))
                await to_thread.run_sync(self._stop.wait, rest_s)
            # What is on its way may arrive without being noted: the next process sends it again.
            tasks.cancel_scope.cancel()

    def _guarded_round(self) -> Sequence[AlertRow]:
        try:
            return self._round()
        except RoleLeaseLost as lost:
            log.warning("alerts.relieved", why=lost.message)
        except Exception as error:  # the loop must outlive any round
            log_failure(log, "alerts.round_failed", error)
        return []

    def _round(self) -> Sequence[AlertRow]:
        """Look at jobs; returns the alerts to send now, noted as on their way."""
        if not self.lease.hold():
            return []
        self._watch.round()
        self._outbox.prune()
        chosen = self._choice(self._outbox.due(PER_TARGET, list(self._on_the_way)))
        self._on_the_way |= {alert.id: alert for alert in chosen}
        return chosen

    def _choice(self, due: Sequence[AlertRow]) -> list[AlertRow]:
        going = list(self._on_the_way.values())
        of_project = Counter(alert.project for alert in going)
        to_target = Counter(target_of(alert) for alert in going)
        of_late = sum(target_of(alert) in self._late for alert in going)
        chosen: list[AlertRow] = []
        for alert in due:
            target = target_of(alert)
            late = target in self._late
            if len(going) + len(chosen) >= AT_ONCE:
                break
            if late and of_late >= OF_LATE:
                continue
            most = TO_LATE if late else PER_TARGET
            if of_project[alert.project] < PER_PROJECT and to_target[target] < most:
                of_project[alert.project] += 1
                to_target[target] += 1
                of_late += late
                chosen.append(alert)
        return chosen

    async def _deliver(self, alert: AlertRow) -> None:
        late = False
        try:
            try:
                await self._channels.send(alert)
            except NotDelivered as error:
                late = error.late
                await to_thread.run_sync(self._not_sent, alert, error.message, error.final)
            except Exception as error:  # a mistake of ours must not end the others' deliveries
                log.exception("alert.broke", alert=alert.id)
                await to_thread.run_sync(self._not_sent, alert, f"internal error ({type(error).__name__}).")
            else:
                await to_thread.run_sync(self._outbox.sent, alert)
        except RoleLeaseLost as lost:
            log.warning("alerts.relieved", why=lost.message)
        except Exception as error:  # it is still due, and is sent again
            log_failure(log, "alert.not_noted", error, alert=alert.id)
        finally:
            (self._late.add if late else self._late.discard)(target_of(alert))
            self._on_the_way.pop(alert.id, None)

    def _not_sent(self, alert: AlertRow, why: str, final: bool = False) -> None:
        self._outbox.not_sent(alert, why, final=final)
