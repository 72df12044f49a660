"""A program's way through its session calls: which one is next, and how the lines between two of them begin and end."""

from collections.abc import Callable
from functools import partial
from threading import current_thread, get_ident
from typing import Any

import torch

from ringleader.errors import NonFiniteLoss, RingleaderError, StepMisuse
from ringleader.train.between_calls.session_calls import FinishedCall
from ringleader.train.generation.member import Member
from ringleader.train.modes.mode import Mode
from ringleader.train.ports import RecordSink
from ringleader.train.rows.random_streams import seed_all
from ringleader.train.state.optimizers.served_state import ServedOptimizerStates
from ringleader.train.state.training_state import note_stepped


class CallSequence:
    """One session's calls, in program order.

    Attributes:
        shown: the finished call whose step and loss the program sees; None: it sees those of the committed state.
        running: the number of the loop that ran last here, until the next call begins.
    """

    def __init__(self, member: Member, sink: RecordSink, steps: Mode, states: ServedOptimizerStates) -> None:
        """`states` are the optimizers', which the program's lines cannot see where servers keep them."""
        self.shown: FinishedCall | None = None
        self.running: int | None = None
        self._member = member
        self._sink = sink
        self._steps = steps
        self._states = states
        self._calls = member.progress.calls
        self._inside = ""  # the call whose loop runs, as the program writes it
        self._thread: int | None = None
        self._refusal: Callable[[], RingleaderError] | None = None

    def begin(self, dataset: Any = None) -> int:
        """Number the next call; a loop that was left by `break` is finished at its committed step.

        Args:
            dataset: whose rows the call goes over; None where it has none.
        """
        if self._inside:
            raise StepMisuse(
                f"a session call was made inside a loop over {self._inside}.",
                hint="Evaluate after the loop, or leave it first with break or session.stop(). A loop stays open "
                "while a "
                "variable or a generator holds its iterator: write for batch in session.batches(…), or in "
                "tqdm(session.batches(…)), directly.",
            )
        if self._refusal is not None:
            raise self._refusal()
        self.check_thread()
        _check_default_device()
        self._states.show()
        member = self._member
        member.sections.end()
        member.settings.check_left()
        self._end_left_loop()
        member.lines.forget()
        self.running = None
        self._steps.turns.leave()
        self._sink.within()
        number = self._calls.begin()
        member.variables.look(number, dataset)
        member.sections.arrive(number)
        member.functions.begin_call()
        if self._calls.is_finished(number):
            # A worker without a seat may pass many finished calls: if it is wanted, it asks for a seat here.
            member.heed()
        else:
            member.take_over(buffers=self._steps.in_step)
        return number

    def open_loop(self, number: int, call: str) -> None:
        """Begin the turns of a loop over `call`: its iterator is alive until `close_loop`."""
        self.running, self._inside, self.shown = number, call, None

    def open_dry(self, shown: FinishedCall, call: str) -> None:
        """Begin a dry turn of a loop over `call`, which sees this."""
        self._inside, self.shown = call, shown
        # Nothing of this turn is committed, so what it prints belongs to no step.
        self._sink.within(told=False)

    def close_loop(self) -> None:
        """End the turns of a loop."""
        self._inside, self.shown = "", None

    def close_dry(self) -> None:
        """End a dry turn."""
        self._inside = ""

    def show(self, ended: FinishedCall | None) -> None:
        """Show the program what this call ended with."""
        self.shown = ended

    def after(self, number: int) -> None:
        """Begin the lines behind a call: random streams start anew, and what is shown is what the call ended with."""
        self.shown = self._calls.finished[number]
        self._begin_section(number)

    def left(self, number: int) -> None:
        """Go back to the committed state after a `break` or an exception: the lines behind the loop begin on it."""
        self._member.trained.left()
        self._member.settings.left()
        if self._calls.is_finished(number):
            self.after(number)
            return
        self._steps.undo()
        self._member.take_back()
        # Behind both: the boundary is of the committed state.
        self._member.sections.finished(number)
        self._begin_section(number)

    def raise_again(self, error: NonFiniteLoss) -> None:
        """Raise the error anew at the next session call, if the program catches it: no step can be made with that
        loss."""
        # Anew: the one that is raised holds, by its traceback, the loop's iterator.
        self._refusal = partial(NonFiniteLoss, error.message, hint=error.hint)

    def raise_later(self, error: Exception) -> None:
        """Refuse the next session call, if the program catches the error that its score raised: on workers that score
        other rows there may be none, and they wait for this one's scores."""
        self._refusal = partial(
            StepMisuse,
            f"an evaluation was left by an exception of its score that the program has caught "
            f"({type(error).__name__}: {error}): other workers score other rows, and wait for this one's.",
            hint="Catch exceptions inside the score function, and return a value for each row.",
        )

    def check_thread(self) -> None:
        """Check that this is the thread that has made the first call of the session. Raises StepMisuse."""
        self._thread = self._thread or get_ident()
        if self._thread != get_ident():
            raise StepMisuse(
                f"the session is used in the thread {current_thread().name!r}, too: what runs between two of its calls "
                "is recorded in the thread of the training function.",
                hint="Iterate over session.batches, step and evaluate in the training function's own thread. "
                "loader_workers=2 loads batches ahead.",
            )

    def tell_between(self) -> None:
        """Report that the program's own lines run, after a call in which this worker took part."""
        if self._member.seating.seated:
            self.report_phase("between")

    def report_phase(self, phase: str) -> None:
        """Report a phase in which no slice of a loop is computed."""
        progress = self._member.progress
        self._sink.progress(step=progress.step, total_steps=None, epoch=progress.epoch, phase=phase, rows=0)

    def check_between(self, what: str, *, first: bool = True) -> None:
        """Refuse `what` inside a loop. Where optimizers step whenever an item comes, allow it only before the first
        call, unless `first` is off."""
        if self._inside:
            raise StepMisuse(
                f"session.{what} was called inside a loop over {self._inside}.",
                hint="Register objects at the top of the training function, or between two loops.",
            )
        if self._member.trained.settled and first:
            self.check_first(what)

    def check_outside(self, what: str) -> None:
        """Refuse `what` in a loop's body, of which each worker runs other turns."""
        if self._inside:
            raise StepMisuse(
                f"session.{what} was called inside a loop over {self._inside}.",
                hint="Call it between two loops, or after a step of a loop over session.steps.",
            )

    def check_first(self, what: str) -> None:
        """Refuse `what` behind the first call."""
        self.check_thread()
        if self._calls.next:
            raise StepMisuse(
                f"session.{what} was called after the first batches or evaluate call.",
                hint="Register models, optimizers, schedulers and kept objects at the top of the training function.",
            )

    def _begin_section(self, number: int) -> None:
        member = self._member
        # The lines behind draw the same on all members, whatever each drew before.
        seed_all(member.spec.seed, "after", number)
        if self._steps.in_step:
            # What is left there differs by worker.
            member.held.forget_gradients()
        # A state dict that the program took without a copy has to show the weights: they go back into its memory.
        member.laying.bring_back()
        member.sections.begin(number)
        if self.shown.step if self.shown is not None else member.progress.step:
            for optimizer, _ in member.held.optimizers:
                note_stepped(optimizer)
        self._sink.between(number + 1)
        self._states.hide()

    def _end_left_loop(self) -> None:
        """Agree on the end of a loop that was left by `break`, if the last one was."""
        if self.running is None or self._calls.is_finished(self.running):
            return
        if self._steps.mid_batch:
            raise StepMisuse(
                "the loop over session.batches was left in the middle of a batch.",
                hint="A worker computes several slices of a batch, and global_step and loss change after the "
                "last one. "
                "Leave just after they change, or call session.stop(), which ends the loop after the batch.",
            )
        # The lines behind a loop that was left have run before all agree on its end: what they made is
        # taken up again after.
        sections = self._member.sections
        sections.put_aside(self.running)
        self._steps.end(self.running)
        sections.take_up()


def _check_default_device() -> None:
    """Check that tensors are made in host memory unless they are asked for elsewhere, as the session makes its own.
    Raises StepMisuse."""
    device = torch.get_default_device()
    if device.type != "cpu":
        raise StepMisuse(
            f"torch's default device is {device} at a session call, which makes tensors of its own in host memory.",
            hint="Write device=session.device where tensors are made, or make them inside `with session.device:`, and "
            "leave torch.set_default_device out.",
        )
