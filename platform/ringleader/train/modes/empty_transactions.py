"""Transactions that commit without a step, in place of the one whose word the members have just exchanged.

Members differ, a body has left the loop, other parameters are trained, or a body has to see the end of the transaction
before. What was computed is dropped: all make it again behind the empty transaction, or leave.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from ringleader.train.generation.control_word import StepReport
from ringleader.train.generation.member import Member
from ringleader.train.modes.loop_exit import LoopExit
from ringleader.train.program_check.repeated_step import RepeatedStep


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class EmptyTransaction:
    """A transaction without a step.

    Attributes:
        first: runs before weights are published.
        end: what is committed with it.
        behind: runs once it is over.
        leaves: it ends the loop.
        repeats: the step is computed once more, to be compared.
    """

    first: Callable[[], None] = _nothing
    end: Callable[[], None] = _nothing
    behind: Callable[[], None] = _nothing
    leaves: bool = False
    repeats: bool = False


class EmptyTransactions:
    """One member's, in loops of which members commit together."""

    def __init__(self, member: Member, leaving: LoopExit, twice: RepeatedStep) -> None:
        self._member = member
        self._leaving = leaving
        self._twice = twice

    def due(self, number: int, report: StepReport, reduced: Tensor) -> EmptyTransaction | None:
        """The one that comes before the step of that word, in the loop of call `number`; None where the step happens.

        Raises:
            ExchangeBroken: nothing has changed here.
        """
        comparison = self._member.comparison
        if comparison.differs(reduced):
            return EmptyTransaction(first=partial(comparison.correct, reduced))
        # Not at evaluations: who misses the end of one has nothing to redo, and there is no update to come.
        comparison.make_states_alike()
        comparison.agreed(number)
        if report.left:
            return self._leaving_call(number)
        if report.lays:
            return self._laying(number, report)
        if report.unseen:
            return EmptyTransaction()
        # A server that has made the step would publish what is behind it: the second time would begin there.
        if report.repeats and not self._leaving.server_is_ahead(reduced):
            return EmptyTransaction(repeats=True)
        return None

    def commit(self, empty: EmptyTransaction, *, sees: bool, pending: bool) -> None:
        """Commit an empty transaction. Raises ExchangeBroken.

        Args:
            sees: the loop's body sees the end of it here.
            pending: a plan waits for the end of a transaction.
        """
        member = self._member
        if empty.leaves:
            self._twice.left()
            empty.first()
            self._pass_over(empty.end)
        else:
            member.held.kept.rewind()
            member.lines.take_up()
            member.buffers.forget()
            empty.first()
            member.lines.take_over()
            self._pass_over(empty.end)
            self._leaving.committed(turns=sees)
        if pending:
            member.leave_at_planned_boundary()

    def _leaving_call(self, number: int) -> EmptyTransaction:
        """End the loop for all, before this step: the weights stay."""
        member = self._member
        return EmptyTransaction(
            first=partial(member.progress.leave_loop, number),
            end=partial(self._end_call, number),
            leaves=True,
        )

    def _end_call(self, number: int) -> None:
        if self._leaving.sees_all:
            self._member.held.kept.commit()  # with what the last lines have made of them
        self._member.finish_call(number)

    def _laying(self, number: int, report: StepReport) -> EmptyTransaction:
        """Agree on what is trained, and by which optimizers, since that has changed before this loop."""
        member, trained = self._member, self._member.trained
        # The next generation is laid so, where a plan waits.
        lay = _nothing if report.pending else member.lay_anew
        return EmptyTransaction(end=partial(trained.go_by, trained.agree(), number), behind=lay)

    def _pass_over(self, end: Callable[[], None]) -> None:
        """Publish the weights as they are and commit what `end` does; a member that misses it is healed."""
        member, exchange = self._member, self._member.generation.exchange
        # Whoever updates commits before it publishes, all others behind that: a member that has the weights then
        # knows that their owners have committed.
        if not exchange.updates:
            member.publish()
        member.buffers.forget()
        end()
        member.progress.commit_transaction()
        if exchange.updates:
            member.publish()
