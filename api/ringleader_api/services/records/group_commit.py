"""Group commit: calls that come while a transaction is on its way to the disk share the next one."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import sleep
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
LINGER_S = 0.002
"""The seconds a call waits for company where the one before had some: a transaction costs much, a row in it little."""


@dataclass(slots=True)
class _Entry(Generic[Asked, Answer]):
    asked: Asked
    done: bool = False
    answer: list[Answer] = field(default_factory=list)
    error: Exception | None = None

    def end(self, answer: Answer | Exception) -> None:
        if isinstance(answer, Exception):
            self.error = answer
        else:
            self.answer.append(answer)
        self.done = True


class GroupCommit(Generic[Asked, Answer]):
    """Calls `carry_out` with all calls that have gathered, one batch at a time.

    Args:
        carry_out: takes what was asked, in order; answers each with a value or an error of its own. An error that it
            raises is that of everybody: then each is tried alone.
    """

    def __init__(
        self, carry_out: Callable[[Sequence[Asked]], Sequence[Answer | Exception]], most: int
    ) -> None:
        self._carry_out = carry_out
        self._most = most
        self._turn = threading.Lock()
        self._gate = threading.Lock()
        self._waiting: list[_Entry[Asked, Answer]] = []
        self._crowded = False

    def __call__(self, asked: Asked) -> Answer:
        """The answer. Raises the error that is meant for this call."""
        mine: _Entry[Asked, Answer] = _Entry(asked)
        with self._gate:
            self._waiting.append(mine)
        # Whoever gets the turn answers for all that wait; the others find their answer there when they get it.
        # Again where more than `most` were waiting before it.
        while not mine.done:
            with self._turn:
                if not mine.done:
                    self._take_turn()
        if mine.error is not None:
            raise mine.error
        return mine.answer[0]

    def _take_turn(self) -> None:
        if self._crowded:
            sleep(LINGER_S)
        with self._gate:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        self._crowded = len(batch) > 1
        try:
            self._answer(batch)
        # Nobody knows whose row failed the batch, and nothing of it was committed: each is tried by itself.
        except Exception:
            for one in batch:
                self._alone(one)

    def _alone(self, one: _Entry[Asked, Answer]) -> None:
        try:
            self._answer([one])
        except Exception as error:
            one.end(error)

    def _answer(self, batch: Sequence[_Entry[Asked, Answer]]) -> None:
        answers = self._carry_out([one.asked for one in batch])
        for one, answer in zip(batch, answers, strict=True):
            one.end(answer)
