"""The skeleton of modes in which all members commit together: a batch, or a round of several, is a transaction."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ringleader.errors import ExchangeBroken
from ringleader.train.generation.control_word import SliceReport
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.loop_exit import LoopExit
from ringleader.train.modes.mode import Mode
from ringleader.train.ports import RecordSink
from ringleader.train.rows.slices import Prefetched


class SteppedMode(Mode):
    """Runs transactions until the loop is over: members begin one, give their slices to the body, and commit together
    or not at all; a broken one is done again in the next generation."""

    def __init__(self, group: Member, outlet: RecordSink, device: torch.device) -> None:
        super().__init__(group, outlet, device)
        self._leaving = LoopExit(group)
        self._reports: dict[int, SliceReport] = {}
        self._failed = False
        self._pieces: Prefetched | None = None

    @property
    def mid_batch(self) -> bool:
        """Whether slices of the running transaction are computed, but not all of them committed.

        A worker that has just joined sees only behind its first slice what the others saw behind their last: it leaves
        with them.
        """
        return bool(self._reports) and not self._failed and self._leaving.saw

    def run(self, loop: BatchLoop) -> Iterator[Any]:
        group = self._group
        self._begin_loop(loop)
        self._pieces, loaded_in = None, -1
        while not loop.over(group):
            if group.trained.due(loop.number):
                self._try(lambda: self._pass(loop))
                continue
            # A new generation may give this worker other shards, and a failure makes the transaction start over.
            if self._pieces is None or self._failed or loaded_in != group.generation.number:
                self._pieces, loaded_in, self._failed = self._load(loop), group.generation.number, False
            self._try(
                lambda: self._begin_transaction(loop)
            )  # who has no slice sends its part of the sums at once
            if not self._failed:
                yield from self._slices(loop, self._pieces)

    def end(self, number: int) -> None:
        loop = self._running
        assert loop.number == number
        self.turns.leave()
        self._leaving.ask()
        self.undo()
        while not loop.over(self._group):
            self._try(lambda: self._pass(loop))

    def _begin_loop(self, loop: BatchLoop) -> None:
        super()._begin_loop(loop)
        self._failed = False
        self._group.trained.begin()
        self._group.laying.make_dense()
        self._leaving.begin()

    @abstractmethod
    def _begin_transaction(self, loop: BatchLoop) -> None:
        """Begin a transaction on the exchange. Raises ExchangeBroken."""

    @abstractmethod
    def _slices(self, loop: BatchLoop, pieces: Prefetched) -> Iterator[Any]:
        """The turns of one transaction."""

    @abstractmethod
    def _load(self, loop: BatchLoop) -> Prefetched:
        """The batches of all owned slices from the committed offset on."""

    @abstractmethod
    def _pass(self, loop: BatchLoop) -> None:
        """Take part in the next transaction with nothing but the control word. Raises ExchangeBroken."""

    @abstractmethod
    def _give_up(self) -> None:
        """Forget what this member has computed of the broken transaction."""

    def _try(self, act: Callable[[], Any]) -> None:
        """Run a part of the transaction; a broken exchange means that it did not happen."""
        try:
            act()
        except ExchangeBroken as error:
            self._failed = True
            self._give_up()
            self._group.broke(error)
            self._outlet.replayed()
