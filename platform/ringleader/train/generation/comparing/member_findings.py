"""What members have found to make other bits: by this one itself, or by another one, which may be lost by the end.

What one member finds it knows alone, until the program is over and all tell each other. So the word of each step says
whether anybody has found something.
"""

from typing import Protocol

import torch

from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.control_word import KnownFindings
from ringleader.wire.findings import ELSEWHERE

SENTENCE_BYTES = 400


class FindingPart(Protocol):
    """A part of a member that finds what makes other bits."""

    @property
    def why_other_bits(self) -> str:
        """What was found, in a sentence; empty where nothing was."""
        ...


class BesideCheck(Protocol):
    """The check beside the job, see `BackgroundCheck`."""

    @property
    def checked(self) -> int:
        """How far the program was checked, as `KnownFindings` has it."""
        ...

    def hear(self, checked: int) -> None:
        """Note how far any member's check has come."""
        ...


class MemberFindings:
    """One member's findings. That there are any is healed and checkpointed.

    Args:
        beside: the check beside the job.
        common: the part whose findings all members have alike.
        parts: those that one member may find something by alone.
    """

    def __init__(
        self, context: MemberContext, beside: BesideCheck, common: FindingPart, *parts: FindingPart
    ) -> None:
        self._context = context
        self._on = context.same_bits
        self._beside = beside
        self._common = common
        self._parts = parts
        self._anywhere = False
        self._told_by_others = ""

    @property
    def why_other_bits(self) -> str:
        """All that was found here, or else that others have found something; empty where nobody has."""
        return self._here or self._told_by_others or (ELSEWHERE if self._anywhere else "")

    @property
    def known(self) -> KnownFindings:
        """What this member knows of the program, for the word of a step."""
        self._anywhere = self._anywhere or (self._on and any(part.why_other_bits for part in self._parts))
        return KnownFindings(self._anywhere, self._beside.checked)

    def tell(self) -> None:
        """Tell all members, who call this together, what one has found. Raises ExchangeBroken."""
        if self._on:
            self._told_by_others = told_together(self._context, self._here)

    def hear(self, known: KnownFindings) -> None:
        """Note what any of the members knows."""
        self._anywhere |= known.found
        self._beside.hear(known.checked)

    def state(self) -> bool:
        return self._anywhere

    def restore(self, state: bool, /) -> None:
        """Take over what a peer has heard of."""
        self._anywhere |= state

    @property
    def _here(self) -> str:
        parts = (self._common, *self._parts)
        return "; ".join(filter(None, (part.why_other_bits for part in parts)))


def told_together(context: MemberContext, sentence: str) -> str:
    """The first of the members' sentences, cut to some length; empty where none has any. All members call it together.
    Raises ExchangeBroken."""
    generation = context.generation
    said = torch.zeros(len(generation.plan.members), SENTENCE_BYTES, dtype=torch.float64)
    mine = sentence.encode()[:SENTENCE_BYTES]
    said[generation.rank, : len(mine)] = torch.tensor(list(mine), dtype=torch.float64)
    rows = generation.exchange.all_reduce(said).to(torch.uint8)
    # The cut may have split a character.
    told = [bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore") for row in rows]
    return next(filter(None, told), "")
