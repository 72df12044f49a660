"""The weights W, cut into spans, and what this member knows of the token of each.

    local W = newest copy of the token + what is pending for it at this member

The training thread alone reads and writes the local weights; it takes newer copies over between two slices. Tokens come
and go on a communication thread, which writes into memory of its own until a whole span is there.
"""

import threading
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import Parameter

from ringleader.comm.schedules.schedule import Span, even_spans
from ringleader.errors import ExchangeBroken
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.token_ring.flat_weights import FlatWeights
from ringleader.train.modes.token_ring.regeneration import RegeneratedToken, TokenCopy


@dataclass(slots=True)
class WeightSpan:
    """One span at this member. Tensors are (length,), all but `local` on the CPU.

    Attributes:
        place: [start, stop) in W.
        local: the live weights, which the parameters are views into.
        before: the same between two slices; it stays while a slice changes `local`.
        weights: the newest copy of the token that was here, in the front of `memory`; `version` items were added to it
            in all loops, and `items` are those of the running loop.
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

    @classmethod
    def of(cls, place: Span, local: Tensor, memory: Tensor) -> "WeightSpan":
        """A span whose token is the weights as they are, kept in that memory."""
        weights = memory[: len(local)]
        weights.copy_(local)
        return cls(place, local, weights.clone(), memory, weights, torch.zeros_like(weights))

    def begin(self, absent: Sequence[int]) -> None:
        """Begin a loop: the token is the local weights, and lists the items without rows."""
        self.items, self.everywhere = ItemSet(0, absent), ItemSet(0, absent)
        self.weights.copy_(self.local)
        self.before.copy_(self.local)
        self.drop_pending()
        self.fresh = False

    def open(self) -> None:
        """Begin a generation, in which the token has not been passed on yet."""
        self.passed = None

    def renew(self) -> None:
        """Have the training thread take the copy over before its next slice."""
        self.fresh = True

    def forget(self) -> None:
        """Drop the copy and what is pending."""
        self.version = -1
        self.drop_pending()

    def drop_pending(self) -> None:
        self.pending.zero_()
        self.owed.clear()

    def hold(self, version: int, items: ItemSet) -> None:
        """Record what the copy that is here holds."""
        self.version, self.items = version, items

    def settle(self, items: ItemSet | None = None) -> None:
        """Record that all members' copies hold these items; None: all that this one holds."""
        self.everywhere = (self.items if items is None else items).copy()

    def swap(self, received: Tensor) -> Tensor:
        """Make the received memory the copy's. Returns what it was in before."""
        before, self.memory = self.memory, received
        self.weights, self.fresh = received[: len(self.local)], True
        return before

    def refresh(self) -> None:
        """Make `before` the newest copy and what is pending for it."""
        torch.add(self.weights, self.pending, out=self.before)
        self.fresh = False

    def show(self, weights: Tensor) -> None:
        """Make these the local weights, until they are set anew."""
        self.local.copy_(weights)
        self.fresh = True

    def add(self, moves: Tensor, items: Collection[int]) -> int | None:
        """Add moves to the token that is here. Returns an item that it holds already; None: there is none."""
        for item in sorted(items):
            if not self.items.add(item):
                return item
        self.weights.add_(moves)
        self.version += len(items)
        return None

    def pass_on(self) -> ItemSet:
        """Record the list with which the token leaves, and return it."""
        self.passed = self.items.copy()
        return self.passed


class WeightSpans:
    """All spans of W. Methods of the training thread first, then those of the communication thread.

    Args:
        count: how many spans, fewer where there are not so many elements.

    Attributes:
        flat: W as the parameters see it.
        changed: guards everything that both threads touch, and is notified of what is pending.
        generation: grows with each `open`; changes by a thread of an older one are refused.
    """

    def __init__(self, parameters: Sequence[Parameter], count: int) -> None:
        self.flat = FlatWeights(parameters)
        self.changed = threading.Condition()
        self.generation = 0
        local = self.flat.values
        places = even_spans(len(local), max(1, min(count, len(local))))
        self._longest = max(stop - start for start, stop in places)
        self.held = [
            WeightSpan.of((start, stop), local[start:stop], self._memory()) for start, stop in places
        ]
        self._spare = self._memory()

    def __len__(self) -> int:
        return len(self.held)

    @property
    def sizes(self) -> list[int]:
        """Bytes of each span."""
        return [span.weights.nbytes for span in self.held]

    @torch.no_grad()
    def begin(self, absent: Sequence[int]) -> None:
        """Begin a loop: lists are empty but for items without rows; the tokens are W as it is."""
        for span in self.held:
            span.begin(absent)

    def forget(self, but: Container[int] = ()) -> None:
        """Drop this member's copies and what is pending: it was healed, or its copies are not those that count.

        Args:
            but: spans of which it keeps its copy.
        """
        for number, span in enumerate(self.held):
            if number not in but:
                span.forget()

    def stand(self, items: Sequence[ItemSet]) -> None:
        """Make this member's weights the tokens, which hold these items, by span."""
        for span, listed in zip(self.held, items, strict=True):
            span.hold(0, listed.copy())
            span.settle()

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
                span.open()

    def copies(self) -> list[TokenCopy]:
        with self.changed:
            return [TokenCopy(s.version, s.items.copy(), frozenset(s.owed)) for s in self.held]

    def adopt(self, number: int, token: RegeneratedToken, *, brought: bool) -> None:
        """Take over the regenerated token; where it was `brought`, its weights are in `incoming`."""
        with self.changed:
            if brought:
                self._swap(number)
            self.held[number].hold(token.version, token.items.copy())

    @torch.no_grad()
    def take_over(self) -> None:
        """Make the local weights, before a slice, the newest copies and what is pending for them."""
        for span in self.held:
            # Looked at without the lock: a copy that comes just now is taken over before the next slice.
            if span.fresh:
                with self.changed:
                    span.refresh()
                span.local.copy_(span.before)

    @torch.no_grad()
    def show(self) -> None:
        """Make the local weights the newest copies alone, until the next `take_over`."""
        for span in self.held:
            with self.changed:
                span.show(span.weights)

    @torch.no_grad()
    def put(self, weights: Tensor) -> None:
        """Make the conductor's (elements,) weights those to compute with, until the next `take_over`."""
        for span in self.held:
            span.show(weights[span.place[0] : span.place[1]])

    def heard(self, settled: ItemSet) -> None:
        """Record the items that nothing can take back, as the conductor tells them."""
        for span in self.held:
            span.settle(settled)

    def close(self, items: ItemSet) -> None:
        """Record the items that all tokens hold, as the conductor tells them."""
        for span in self.held:
            span.hold(span.version, items.copy())
            span.settle()

    @torch.no_grad()
    def owe(self, items: Sequence[int], share: float, spans: Sequence[int]) -> None:
        """Add `share` of the move of an optimizer step on these items to what is pending for these spans."""
        for number, span in enumerate(self.held):
            # Without the lock: `local` and `before` are the training thread's alone.
            # On the CPU this is `local` itself, which may be spoilt here: it is set anew below.
            move = span.local.cpu()
            move.sub_(span.before)
            with self.changed:
                if number in spans:
                    span.pending.add_(move, alpha=share)
                    span.owed.update(items)
                span.refresh()
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
                span.settle()
        return self.everywhere()

    # --- the communication thread ---------------------------------------------------------------------------------

    def incoming(self, number: int) -> Tensor:
        """(length,) memory that a copy of the span can be received into."""
        return self._spare[: len(self.held[number].local)]

    def arrive(self, number: int, version: int, items: ItemSet | None, generation: int) -> bool:
        """Take in the token; with `items`, its weights are in `incoming`. Returns whether it brought anything new."""
        span = self.held[number]
        with self.changed:
            self._check(generation)
            if span.passed is not None:
                # It has been round since: every member holds a copy with that list.
                span.settle(span.passed)
            if items is not None:
                self._swap(number)
                span.hold(version, items)
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
            if (twice := span.add(span.pending, span.owed)) is not None:
                raise _broken(f"item {twice} came to token {number} twice")
            span.drop_pending()
            self.changed.notify_all()
            return True

    def moved(self, number: int, since: Tensor, listed: ItemSet) -> tuple[Tensor, list[int]]:
        """The token's gain since those weights with that list: the moves, and their items. Moves of no item are not
        computed."""
        span = self.held[number]
        items = span.items.beyond(listed)
        return (span.weights - since if items else since), items

    def renew(self, number: int, version: int, items: ItemSet, generation: int) -> None:
        """Make the server's copy, which is in `incoming`, the token."""
        with self.changed:
            self._check(generation)
            self._swap(number)
            self.held[number].hold(version, items)

    def pass_by(self, number: int) -> None:
        """Record that the server has all that the token holds, which comes back to this member at once."""
        with self.changed:
            self.held[number].settle()

    @torch.no_grad()
    def merge(self, number: int, moves: Tensor, items: Sequence[int], generation: int) -> None:
        """Add a push to a server's own span: nothing can take it back."""
        span = self.held[number]
        with self.changed:
            self._check(generation)
            if (twice := span.add(moves, items)) is not None:
                raise _broken(f"item {twice} was pushed to span {number} twice")
            span.settle()
            span.renew()
            self.changed.notify_all()

    def copy_out(self, number: int, into: Tensor) -> tuple[int, ItemSet]:
        """Copy the newest weights of a span `into` (length,). Returns their version and list."""
        span = self.held[number]
        with self.changed:
            into.copy_(span.weights)
            return span.version, span.items.copy()

    def passing(self, number: int) -> ItemSet:
        """Record the list with which the token leaves, and return it."""
        with self.changed:
            return self.held[number].pass_on()

    def _swap(self, number: int) -> None:
        """Make the received memory the span's copy."""
        self._spare = self.held[number].swap(self._spare)

    def _check(self, generation: int) -> None:
        if generation != self.generation:
            raise _broken("the generation is over")

    def _memory(self) -> Tensor:
        return torch.empty(self._longest, dtype=self.flat.values.dtype)


def _broken(why: str) -> ExchangeBroken:
    return ExchangeBroken(rank=-1, phase="token", bucket=None, why=why)
