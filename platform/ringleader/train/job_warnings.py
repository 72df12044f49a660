"""Warnings of a job: requests that are not met and failures that are foreseen, each sent once as an event."""

from typing import TYPE_CHECKING

from ringleader.train.unmet_requests import unmet

if TYPE_CHECKING:
    from ringleader.train.generation.member import Member

WARNING = "warning"


class JobWarnings:
    """One member's warnings. All members find the same ones, and one of them reports.

    A warning found before a generation is under way is reported once it is.
    """

    def __init__(self, member: "Member") -> None:
        self._member = member
        self._known: set[tuple[str, str]] = set()
        self._unsaid: list[dict[str, str]] = []

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
        if self._member.reporter.in_generation:
            self.tell()

    def look(self) -> None:
        """Warn of requests that the new generation cannot use, and report what was found before it."""
        member = self._member
        workers = member.spec.workers
        devices = bool(workers.gpus) and (workers.device != "auto" or member.device.type == "cuda")
        summed = [parameter for parameter in member.laying.exchanged if parameter not in member.tables]
        for found in unmet(member.spec, summed, member.generation.transport, on_devices=devices):
            self.add(*found)
        self.tell()

    def tell(self) -> None:
        """Report the warnings found so far."""
        generation, unsaid, self._unsaid = self._member.generation, self._unsaid, []
        for warning in unsaid:
            if self._member.reporter.tell(WARNING, generation.number, warning):
                print(f"ringleader: {warning['message']} {warning['hint']}")
