"""A turn that counts for nothing, where no turn of a loop took place: on servers, and on members that joined behind it.

The training function runs in them too, and lines behind the loop may use names that only its body sets: the body runs
once, on the first rows of the first batch, with the weights that the loop ended with.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ringleader.program_text.current_line import CodeLine
from ringleader.train.body.turn_state.collecting_turns import CollectingTurns
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.rows.order.batch_sizes import present_shards
from ringleader.train.rows.random_streams import seed_all
from ringleader.train.rows.slices import Slice, load, to_device


class DryTurn:
    """The dry turns of one member; knows which loops of the program have run here.

    Attributes:
        runs: whether the loop body is at such a turn; its `step` does nothing.
    """

    def __init__(self, member: Member, device: torch.device) -> None:
        self._member = member
        self._device = device
        self._known: set[tuple[CodeLine, int]] = set()
        self._newest = -1
        self._collecting = CollectingTurns()
        self.runs = self._later = False

    def use_later_rows(self) -> None:
        """Take rows of a later batch from now on, for a check: what the body keeps of its first rows is then not what
        the first worker keeps."""
        self._later = True

    def needs(self, place: CodeLine, number: int, phase: int = 0) -> bool:
        """Whether the finished loop of call `number` has a turn to make up for: none took place here so far, or the
        others' bodies left it, and lines behind it may depend on how (an exception that the program catches), or they
        may need what its own turns leave: a mean by a count that is still 0 would raise."""
        known, left = (place, phase) in self._known, number in self._member.progress.calls.left
        return not known or left or (number != self._newest and self._collecting.leave_needed(place))

    def watch(self, place: CodeLine, number: int, turns: Iterator[Any], phase: int = 0) -> Iterator[Any]:
        """The turns themselves; once there was one, the loop, or that phase of its steps, needs no dry turn."""
        for batch in turns:
            self._known.add((place, phase))
            self._newest = number
            yield batch

    def turns(self, place: CodeLine, loop: BatchLoop, phase: int = 0) -> Iterator[Any]:
        """Run one turn of a finished loop if it needs one; behind it the member's state is as before."""
        if not (self.needs(place, loop.number, phase) and loop.epoch.steps):
            return
        self._known.add((place, phase))
        self._newest = loop.number
        self.runs = True
        self._member.buffers.rewind()
        # The name that these turns had first: streams go by it, and what they draw stays the same.
        seed_all(self._member.spec.seed, "rehearsal", loop.number)
        try:
            with self._put_back():
                yield self._batch(loop)
        finally:
            self.runs = False
            self._member.buffers.rewind()

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        """Put back weights, optimizers and kept objects that the block changes: the loop's real turns ran elsewhere.

        Tables stay as the block leaves them: they are too large for a second copy. Optimizers have no state in the
        block, as before a first step.
        """
        held = self._member.held
        # The body may change them in place, and peers may be reading them in shared memory.
        self._member.laying.own_weights()
        weights = [(p, p.detach().clone()) for p in held.weights if p not in self._member.tables]
        settings, kept = held.settings(), held.kept.copies()
        optimizers = [optimizer for optimizer, _ in held.optimizers]
        states = [dict(optimizer.state) for optimizer in optimizers]
        for optimizer in optimizers:
            optimizer.state.clear()
        try:
            yield
        finally:
            for optimizer, state in zip(optimizers, states, strict=True):
                optimizer.state.clear()
                optimizer.state.update(state)
            held.set(settings)
            held.kept.put(kept)
            with torch.no_grad():
                for parameter, value in weights:
                    parameter.copy_(value)

    def _batch(self, loop: BatchLoop) -> Any:
        batch = loop.epoch.steps // 2 if self._later else 0
        shard = min(present_shards(loop.epoch.batch_rows(batch), loop.epoch.shards))
        piece = Slice(("rehearsal", loop.number), shard, loop.epoch.rows(batch, shard))
        loaded = load(loop.dataset, [piece], seed=self._member.spec.seed, collate=loop.collate)
        return to_device(next(iter(loaded)), self._device)
