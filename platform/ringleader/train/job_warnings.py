"""Warnings of a job: requests that are not met and failures that are foreseen, each sent once as an event, whoever is
lost and whoever joins."""

from collections.abc import Sequence
from math import isfinite

from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.exchange_layout import ExchangeLayout
from ringleader.train.unmet_requests import unmet

WARNING = "warning"
FINITE = "Look at what session.step is given; a logarithm of 0 or a division by it has no finite value."
NO_CUDA = "the worker has no CUDA device and trains on the CPU, as workers.device is auto."


class JobWarnings:
    """One member's warnings. All members find the same ones, but for some, and one of them reports.

    A warning found before a generation is under way is reported once it is.
    """

    def __init__(self, context: MemberContext, laying: ExchangeLayout) -> None:
        self._context = context
        self._laying = laying
        self._known: set[tuple[str, str]] = set()
        self._unsaid: list[dict[str, str]] = []
        if context.spec.workers.gpus and context.device.type == "cpu":
            self.add("device", NO_CUDA, "Set workers.device: cuda to fail instead.")

    def add(self, about: str, message: str, hint: str) -> None:
        """Report a warning, unless it was reported before.

        Args:
            about: its subject, in a word: `codec`, `batch_norm`.
            message: a sentence that says what happens.
            hint: what to do.
        """
        if (about, message) in self._known:
            return
        self._known.add((about, message))
        self._unsaid.append({"about": about, "message": message, "hint": hint})
        if self._context.reporter.in_generation:
            self.tell()

    def note_metrics(self, names: Sequence[str], values: Sequence[float]) -> None:
        """Warn of metrics of the program without a finite value: records leave them out."""
        # Not strict: a report has room for as many values as a step may have.
        for name, value in zip(names, values, strict=False):
            if not isfinite(value):
                self.add(
                    "metric",
                    f"the metric {name!r} is nan or infinite in a step, and is left out there.",
                    FINITE,
                )

    def say(self, about: str, message: str, hint: str) -> None:
        """Report a warning that only this member finds, which takes part in a generation; otherwise as `add`."""
        if (about, message) not in self._known:
            self._known.add((about, message))
            warning = {"about": about, "message": message, "hint": hint}
            self._context.reporter.say(WARNING, self._context.generation.number, warning)
            print(f"ringleader: {message} {hint}")

    def state(self) -> list[tuple[str, str]]:
        """The warnings that are reported, for who joins later, and for later attempts."""
        unsaid = {(each["about"], each["message"]) for each in self._unsaid}
        return sorted(self._known - unsaid)

    def restore(self, state: list[tuple[str, str]], /) -> None:
        """Take over what was reported: this member may have found the same, and may be the one that reports now."""
        told = {(about, message) for about, message in state}
        self._known |= told
        self._unsaid = [each for each in self._unsaid if (each["about"], each["message"]) not in told]

    def look(self) -> None:
        """Warn of requests that the new generation cannot use, and report what was found before it."""
        context = self._context
        workers, tables = context.spec.workers, self._laying.named_tables
        devices = bool(workers.gpus) and (workers.device != "auto" or context.device.type == "cuda")
        summed = [parameter for parameter in self._laying.exchanged if parameter not in tables]
        for found in unmet(
            context.spec.sync, context.rules, summed, context.generation.transport, on_devices=devices
        ):
            self.add(*found)
        self.tell()

    def tell(self) -> None:
        """Report the warnings found so far."""
        generation, unsaid, self._unsaid = self._context.generation, self._unsaid, []
        for warning in unsaid:
            if self._context.reporter.tell(WARNING, generation.number, warning):
                print(f"ringleader: {warning['message']} {warning['hint']}")
