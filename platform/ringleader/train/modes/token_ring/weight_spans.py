"""The weights W as one flat tensor, cut into spans, and what this member knows of the token of each.

    local W = newest copy of the token + what is pending for it at this member

The training thread alone reads and writes the local weights; it takes newer copies over between two slices. Tokens come
and go on a communication thread, which writes into memory of its own until a whole span is there.
"""

import threading
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import Parameter

from ringleader.comm.schedules.schedule import Span, even_spans
from ringleader.errors import ExchangeBroken, StepMisuse
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.token_ring.regeneration import RegeneratedToken, TokenCopy

ALIGNED = 16
"""Parameters begin at multiples of this many elements."""


@dataclass(slots=True)
class WeightSpan:
    """One span at this member. Tensors are (length,) on the CPU.

    Attributes:
        place: [start, stop) in W.
        local: the live weights, which the parameters are views into.
        before: the same between two slices; it stays while a slice changes `local`.
        weights: the newest copy of the token that was here; `version` items were added to it in all loops, and `items`
            are those of the running loop.
        everywhere: items that the copies of all members hold.
        passed: the list as this member last passed the token on in this generation; None: it has not yet.
        owed: items of this member whose moves are in `pending` and in no token yet.
        fresh: `weights` has changed since the training thread took it over.
    """

    place: Span
    local: Tensor
    before: Tensor
    memory: Tensor
    weights: Tensor
    pending: Tensor
    version: int = 0
    items: ItemSet = field(default_factory=ItemSet)
    everywhere: ItemSet = field(default_factory=ItemSet)
    passed: ItemSet | None = None
    owed: set[int] = field(default_factory=set)
    fresh: bool = False


class WeightSpans:
    """All spans of W. Methods of the training thread first, then those of the communication thread.

    Args:
        count: how many spans, fewer where there are not so many elements.

    Attributes:
        changed: guards everything that both threads touch, and is notified of what is pending.
        generation: grows with each `open`; changes by a thread of an older one are refused.
    """

    def __init__(self, parameters: Sequence[Parameter], count: int) -> None:
        like = _like(parameters)
        starts = [0]
        for parameter in parameters:
            starts.append(starts[-1] + -(-parameter.numel() // ALIGNED) * ALIGNED)
        self.changed = threading.Condition()
        self._parameters = list(parameters)
        self._starts = starts
        self._local = torch.zeros(starts[-1], dtype=like.dtype, device=like.device)
        for parameter, start in zip(parameters, starts, strict=False):
            view = self._local[start : start + parameter.numel()].view(parameter.shape)
            view.copy_(parameter.detach())
            # By `.data`: optimisers and the program keep their parameter objects.
            parameter.data = view
        places = even_spans(starts[-1], max(1, min(count, starts[-1])))
        self._longest = max(stop - start for start, stop in places)
        self._dtype = like.dtype
        self.held = [self._held(place) for place in places]
        self._spare = self._memory()
        self.generation = 0

    def __len__(self) -> int:
        return len(self.held)

    @property
    def nbytes(self) -> int:
        return self._local.nbytes

    @property
    def sizes(self) -> list[int]:
        """Bytes of each span."""
        return [span.weights.nbytes for span in self.held]

    @torch.no_grad()
    def begin(self, absent: Sequence[int]) -> None:
        """Begin a loop: lists are empty but for items without rows; the tokens are W as it is."""
        for span in self.held:
            span.items, span.everywhere = ItemSet(0, absent), ItemSet(0, absent)
            span.weights.copy_(span.local)
            span.before.copy_(span.local)
            span.pending.zero_()
            span.owed.clear()
            span.fresh = False

    def forget(self, but: Container[int] = ()) -> None:
        """Drop this member's copies and what is pending: it was healed, or its copies are not those that count.

        Args:
            but: spans of which it keeps its copy.
        """
        for number, span in enumerate(self.held):
            if number not in but:
                span.version = -1
                span.owed.clear()
                span.pending.zero_()

    def stand(self, items: Sequence[ItemSet]) -> None:
        """Make this member's weights the tokens, which hold these items, by span."""
        for span, listed in zip(self.held, items, strict=True):
            span.version, span.items, span.everywhere = 0, listed.copy(), listed.copy()

    @property
    def known(self) -> bool:
        """Whether this member has a copy of every token."""
        return all(span.version >= 0 for span in self.held)

    def open(self) -> None:
        """Begin a meeting of the members; a thread that served the one before can no longer change anything."""
        with self.changed:
            self.generation += 1
            # New memory: a thread of the meeting before may still receive into the old.
            self._spare = self._memory()
            for span in self.held:
                span.passed = None

    def copies(self) -> list[TokenCopy]:
        with self.changed:
            return [TokenCopy(s.version, s.items.copy(), frozenset(s.owed)) for s in self.held]

    def adopt(self, number: int, token: RegeneratedToken, *, brought: bool) -> None:
        """Take over the regenerated token; where it was `brought`, its weights are in `incoming`."""
        span = self.held[number]
        with self.changed:
            if brought:
                self._swap(span)
            span.version, span.items = token.version, token.items.copy()

    @torch.no_grad()
    def take_over(self) -> None:
        """Make the local weights, before a slice, the newest copies and what is pending for them."""
        for span in self.held:
            # Looked at without the lock: a copy that comes just now is taken over before the next slice.
            if span.fresh:
                with self.changed:
                    torch.add(span.weights, span.pending, out=span.before)
                    span.fresh = False
                span.local.copy_(span.before)

    @torch.no_grad()
    def show(self) -> None:
        """Make the local weights the newest copies alone, until the next `take_over`."""
        for span in self.held:
            with self.changed:
                span.local.copy_(span.weights)
                span.fresh = True

    @property
    def local(self) -> Tensor:
        """(elements,) the live weights."""
        return self._local

    @torch.no_grad()
    def put(self, weights: Tensor) -> None:
        """Make the conductor's (elements,) weights those to compute with, until the next `take_over`."""
        self._local.copy_(weights)
        for span in self.held:
            span.fresh = True

    @torch.no_grad()
    def gradients(self, *, void: bool) -> Tensor:
        """(elements + parameters + 1,) the gradients, which parameters the backward reached, and whether it is void."""
        size = self._local.numel()
        sent = torch.zeros(size + len(self._parameters) + 1, dtype=self._dtype)
        for number, (parameter, start) in enumerate(zip(self._parameters, self._starts, strict=False)):
            if parameter.grad is not None:
                sent[start : start + parameter.numel()].copy_(parameter.grad.reshape(-1))
                sent[size + number] = 1
        sent[-1] = void
        return sent

    def take_gradients(self, added: Tensor) -> bool:
        """Make sums of `gradients` the parameters' own, None where no member's backward came. Returns whether any of
        them was void."""
        size, here = self._local.numel(), added.to(self._local.device)
        for number, (parameter, start) in enumerate(zip(self._parameters, self._starts, strict=False)):
            used = bool(added[size + number])
            parameter.grad = here[start : start + parameter.numel()].view(parameter.shape) if used else None
        return bool(added[-1])

    def heard(self, settled: ItemSet) -> None:
        """Record the items that nothing can take back, as the conductor tells them."""
        for span in self.held:
            span.everywhere = settled.copy()

    def close(self, items: ItemSet) -> None:
        """Record the items that all tokens hold, as the conductor tells them."""
        for span in self.held:
            span.items = items.copy()
        self.heard(items)

    @torch.no_grad()
    def owe(self, items: Sequence[int], share: float, spans: Sequence[int]) -> None:
        """Add `share` of the move of an optimiser step on these items to what is pending for these spans."""
        for number, span in enumerate(self.held):
            # Without the lock: `local` and `before` are the training thread's alone.
            # On the CPU this is `local` itself, which may be spoilt here: it is set anew below.
            move = span.local.cpu()
            move.sub_(span.before)
            with self.changed:
                if number in spans:
                    span.pending.add_(move, alpha=share)
                    span.owed.update(items)
                torch.add(span.weights, span.pending, out=span.before)
                span.fresh = False
                self.changed.notify_all()
            span.local.copy_(span.before)

    @property
    def num_owed(self) -> int:
        """The number of this member's items that are not in all tokens."""
        with self.changed:
            return len(set().union(*(span.owed for span in self.held)))

    def wait(self, patience_s: float) -> None:
        """Wait until more is pending, or less, at most that long."""
        with self.changed:
            self.changed.wait(patience_s)

    def everywhere(self) -> ItemSet:
        """Items that are in all tokens at all members: nothing can take them back."""
        with self.changed:
            common = self.held[0].everywhere.copy()
            for span in self.held[1:]:
                common &= span.everywhere
        return common

    def settle(self) -> ItemSet:
        """Record that all members hold the same copies. Returns the items that are in all of them."""
        with self.changed:
            for span in self.held:
                span.everywhere = span.items.copy()
        return self.everywhere()

    # --- the communication thread ---------------------------------------------------------------------------------

    def incoming(self, number: int) -> Tensor:
        """(length,) memory that a copy of the span can be received into."""
        start, stop = self.held[number].place
        return self._spare[: stop - start]

    def arrive(self, number: int, version: int, items: ItemSet | None, generation: int) -> bool:
        """Take in the token; with `items`, its weights are in `incoming`. Returns whether it brought anything new."""
        span = self.held[number]
        with self.changed:
            self._check(generation)
            if span.passed is not None:
                # It has been round since: every member holds a copy with that list.
                span.everywhere = span.passed
            if items is not None:
                self._swap(span)
                span.version, span.items = version, items
            elif version != span.version:
                raise _broken(
                    f"token {number} came at version {version} without its weights, {span.version} is here"
                )
            return items is not None

    @torch.no_grad()
    def add(self, number: int, generation: int) -> bool:
        """Add what is pending to the token that is here. Returns whether anything was."""
        span = self.held[number]
        with self.changed:
            self._check(generation)
            if not span.owed:
                return False
            span.weights.add_(span.pending)
            span.pending.zero_()
            for item in sorted(span.owed):
                if not span.items.add(item):
                    raise _broken(f"item {item} came to token {number} twice")
            span.version += len(span.owed)
            span.owed.clear()
            self.changed.notify_all()
            return True

    def moved(self, number: int, since: Tensor, listed: ItemSet) -> tuple[Tensor, list[int]]:
        """The token's gain since those weights with that list: the moves, and their items. Moves of no item are not
        computed."""
        span = self.held[number]
        if not span.items.beyond(listed):
            return since, []
        moves = span.weights - since
        return moves, span.items.beyond(listed)

    def renew(self, number: int, version: int, items: ItemSet, generation: int) -> None:
        """Make the server's copy, which is in `incoming`, the token."""
        span = self.held[number]
        with self.changed:
            self._check(generation)
            self._swap(span)
            span.version, span.items = version, items

    def pass_by(self, number: int) -> None:
        """Record that the server has all that the token holds, which comes back to this member at once."""
        span = self.held[number]
        with self.changed:
            span.everywhere = span.items.copy()

    @torch.no_grad()
    def merge(self, number: int, moves: Tensor, items: Sequence[int], generation: int) -> None:
        """Add a push to a server's own span: nothing can take it back."""
        span = self.held[number]
        with self.changed:
            self._check(generation)
            for item in items:
                if not span.items.add(item):
                    raise _broken(f"item {item} was pushed to span {number} twice")
            span.weights.add_(moves)
            span.version += len(items)
            span.everywhere, span.fresh = span.items.copy(), True
            self.changed.notify_all()

    def copy_out(self, number: int, into: Tensor) -> tuple[int, ItemSet]:
        """Copy the newest weights of a span `into` (length,). Returns their version and list."""
        span = self.held[number]
        with self.changed:
            into.copy_(span.weights)
            return span.version, span.items.copy()

    def passing(self, number: int) -> ItemSet:
        """Record the list with which the token leaves, and return it."""
        span = self.held[number]
        with self.changed:
            span.passed = span.items.copy()
            return span.passed

    def _swap(self, span: WeightSpan) -> None:
        """Make the received memory the span's copy."""
        span.memory, self._spare = self._spare, span.memory
        start, stop = span.place
        span.weights, span.fresh = span.memory[: stop - start], True

    def _check(self, generation: int) -> None:
        if generation != self.generation:
            raise _broken("the generation is over")

    def _held(self, place: Span) -> WeightSpan:
        start, stop = place
        local = self._local[start:stop]
        memory, pending = self._memory(), torch.zeros(stop - start, dtype=self._dtype)
        weights = memory[: stop - start]
        weights.copy_(local)
        return WeightSpan(place, local, weights.clone(), memory, weights, pending)

    def _memory(self) -> Tensor:
        return torch.empty(self._longest, dtype=self._dtype)


def _like(parameters: Sequence[Parameter]) -> Parameter:
    """One of them: all have the same type and device.

    Raises:
        StepMisuse: they have not.
    """
    kinds = sorted({f"{p.dtype} on {p.device}" for p in parameters})
    if len(kinds) == 1:
        return parameters[0]
    raise StepMisuse(
        f"the trainable parameters are {', '.join(kinds) or 'none'}.",
        hint="With sync: token_ring the weights travel as one vector: give all of them one type and one device.",
    )


def _broken(why: str) -> ExchangeBroken:
    return ExchangeBroken(rank=-1, phase="token", bucket=None, why=why)
