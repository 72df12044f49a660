"""Whether members differed already where a call ended.

Lines between calls that differ by member do no harm: the members are made alike before the next step. What differs at
the end of a call comes of its steps: an `on_commit` callback, a hook, a schedule's function that goes by state of its
own. Gradients were computed on it by then, and are in the weights of all.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ringleader.train.between_calls.boundaries import (
    KEPT,
    MODELS,
    OPTIMIZERS,
    CallBoundary,
    live_tensors,
)
from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.generation.comparing.fingerprint_vote import EXACT_BYTES, differ, number_of
from ringleader.train.generation.context import MemberContext
from ringleader.train.state.parameters.tensor_fingerprint import fingerprint


class EndedCalls:
    """One member's ended calls."""

    def __init__(self, context: MemberContext, sections: ProgramSections) -> None:
        self._context = context
        self._sections = sections

    def differed(self, call: int, *, within: bool) -> bool:
        """Whether members differed at the end of the call before `call`, or have come to differ in it. All call this
        together, where they differ now. Raises ExchangeBroken.

        Args:
            within: this member was like the others in `call` itself, and has made steps of it since.
        """
        generation = self._context.generation
        said = torch.zeros(2, len(generation.plan.members), dtype=torch.float64)
        boundary = self._sections.before(call)
        said[0, generation.rank] = 0 if boundary is None else self._print(boundary)
        said[1, generation.rank] = within
        ends, inside = generation.exchange.all_reduce(said.view(-1)).view(2, -1).tolist()
        return any(inside) or differ([int(value) for value in ends], but=0)

    def _print(self, boundary: CallBoundary) -> int:
        """The fingerprint of a call's end; 0 where it is not known. What lines since then have not touched is as it
        was."""
        if boundary.line:
            return 0
        kinds = (MODELS, KEPT) if self._context.rules.has_servers else (MODELS, KEPT, OPTIMIZERS)
        tensors = live_tensors(self._context.held) | boundary.tensors
        recorded = (boundary.settings, boundary.schedulers, boundary.kept)
        digest = hashlib.blake2b(digest_size=EXACT_BYTES)
        for word in _words((recorded, [tensors[kind] for kind in kinds])):
            digest.update(word)
        return number_of(digest.digest(), again=False)


def _words(state: Any) -> Iterator[bytes]:
    """Fingerprints of the numbers, texts and tensors in a state, whose dicts may have been filled in any order."""
    match state:
        case Tensor() if state.layout is torch.strided:
            yield fingerprint(state.detach().cpu())
        case Mapping():
            for key in sorted(state, key=repr):
                yield repr(key).encode()
                yield from _words(state[key])
        case list() | tuple():
            for part in state:
                yield from _words(part)
        case str() | int() | float() | None:
            yield repr(state).encode(errors="surrogatepass")
