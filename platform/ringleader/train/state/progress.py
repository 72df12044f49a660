"""The committed position of a member: steps, transactions, samples, loss and finished calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ringleader.train.between_calls.session_calls import FinishedCall, SessionCalls

NO_PART = -1
"""`updated` of a new server that does not have its parameters yet."""


@dataclass(slots=True)
class Progress:
    """How far a member has come. Its attributes are read everywhere and written by its methods alone.

    Attributes:
        step: global steps committed.
        transactions: steps (rounds of local SGD), finished evaluations and barriers committed.
        samples: rows that counted in the committed steps.
        loss: the global loss of the newest committed step, None before the first.
        values: the means of the newest step's metrics over all its rows, in the order of their names.
        norm: of the gradient of the newest update, () where it was computed here and is not read yet; None for none.
        epoch: the index of the last batches loop, for what people read.
        calls: the finished session calls, and the steps committed inside the running one.
        heals: the number of times this member took over a peer's whole state.
        boundary: the global step at the transaction before: a checkpoint due by then has been copied.
        opened: the call number of the loop that all members have begun together, where that is a transaction.
        ticked: global steps for which schedules and callbacks have run, where members are at different steps.
        phase_values: loss and metrics of each phase of the running step that is committed; empty between two steps.
        updated: global steps applied to the parameters that this member updates; a server of several may be a step
            ahead of all others after a failure. `NO_PART` on a new server that does not have them yet.
        updated_phases: phases of the next step that are applied to them, likewise.
        changed: this server has made an update, if only a part of a step.
        lacks_weights: others may hold newer weights of the parts that they update: a publication began and broke.
        staleness: where items are leased, the number of gradients by the versions between their pull and their update.
    """

    step: int = 0
    transactions: int = 0
    samples: int = 0
    loss: float | None = None
    values: Sequence[float] = ()
    norm: Tensor | float | None = None
    epoch: int = 0
    calls: SessionCalls = field(default_factory=SessionCalls)
    heals: int = 0
    boundary: int = 0
    opened: int = -1
    ticked: int = 0
    phase_values: list[list[float]] = field(default_factory=list)
    updated: int = 0
    updated_phases: int = 0
    changed: bool = False
    lacks_weights: bool = False
    staleness: list[int] = field(default_factory=list)

    # --- steps and transactions ---------------------------------------------------------------------------------------

    def begin_loop(self, index: int) -> None:
        self.epoch = index

    @property
    def phases(self) -> int:
        """The number of phases of the running step that are committed."""
        return len(self.phase_values)

    @property
    def stands(self) -> tuple[int, int]:
        """The committed steps, and phases of the next one."""
        return self.step, self.phases

    @property
    def update_key(self) -> tuple[int, ...]:
        """What names the running update, for the stream of its draws."""
        return self.stands if self.phases else (self.step,)

    def commit_phase(self, values: Sequence[float], norm: Tensor | None = None) -> None:
        """Count a phase of the running step that is not its last. `values`: its loss and metrics."""
        self.norm = norm
        self.phase_values.append(list(values))

    def commit_step(
        self, *, rows: int, loss: float, norm: Tensor | None = None, values: Sequence[float] = ()
    ) -> None:
        """Count a step of the running loop."""
        self.norm, self.values, self.phase_values = norm, values, []
        self.step += 1
        self.calls.count_step()
        self.samples += rows
        self.loss = loss

    def commit_transaction(self) -> None:
        self.transactions += 1

    def follow_step(self) -> None:
        """Count a step that server 0 has committed; its rows and its loss come with `take_counts`."""
        self.step += 1
        self.calls.count_step()

    def replay_step(self, loss: float) -> None:
        """Count a step on a follower. The call that it belongs to comes with the donor's state."""
        self.step += 1
        self.loss, self.phase_values = loss, []

    def skip_to(self, offset: int) -> None:
        """Pass over batches of the running loop that are no steps."""
        self.calls.skip_to(offset)

    def catch_up(self, offset: int, *, samples: int, loss: float | None) -> None:
        """Take over the position of a member that has settled more steps of the running loop."""
        self.step += offset - self.calls.offset
        self.calls.skip_to(offset)
        self.samples, self.loss = samples, loss

    def take_counts(self, *, samples: int, loss: float | None, staleness: Sequence[int]) -> None:
        """Take over what server 0 has counted."""
        self.samples, self.loss, self.staleness = samples, loss, list(staleness)

    def take_loss(self, loss: float | None) -> None:
        """Take over the loss that all members agree on."""
        self.loss = loss

    def pass_boundary(self) -> None:
        """Note that a checkpoint due at this step has been copied."""
        self.boundary = self.step

    def forfeit(self) -> None:
        """Stand behind all others, so that the next plan heals this member, and nobody from it."""
        self.transactions = 0

    # --- calls --------------------------------------------------------------------------------------------------------

    def open_loop(self, number: int) -> None:
        """Commit that all members have begun the loop of this call together."""
        self.opened = number
        self.commit_transaction()

    def leave_loop(self, number: int) -> None:
        """Note that the program's body left the loop of this call."""
        self.calls.left.add(number)

    def stop_loop(self) -> None:
        """Commit that the running loop over steps ends behind the lines of this step."""
        self.calls.stop()

    def evaluate(self, scores: dict[str, float]) -> None:
        """Commit an evaluation behind the newest step of the running loop."""
        self.calls.evaluate(self.step, self.loss, scores)

    def finish_call(self, number: int, result: Any = None) -> None:
        """Record that the call is over for all members at this committed step."""
        result = self.calls.evaluated if result is None else result
        self.calls.finish(number, FinishedCall(result, self.step, self.loss))

    def take_finished(self, finished: Sequence[FinishedCall]) -> None:
        """Append calls that are over for the others."""
        self.calls.take(finished)

    def tick(self) -> None:
        """Count a step for which schedules and callbacks run."""
        self.ticked += 1

    # --- a server's updates -------------------------------------------------------------------------------------------

    def commit_update(self) -> None:
        """Note that the parameters that this member updates stand at what is committed."""
        self.updated, self.updated_phases = self.stands

    def update_to(self, step: int) -> None:
        """Note that the parameters that this member updates stand at `step`, if they are not further."""
        self.updated = max(self.updated, step)

    def change(self) -> None:
        """Note that this server has made an update."""
        self.changed = True

    def lack_part(self) -> None:
        self.updated, self.updated_phases = NO_PART, 0

    @property
    def has_updates(self) -> bool:
        """Whether the parameters that this member updates have had an update."""
        return (self.updated, self.updated_phases) > (0, 0) or self.changed

    @property
    def is_ahead(self) -> bool:
        """Whether the parameters that this member updates stand further than what is committed."""
        return (self.updated, self.updated_phases) > self.stands

    @property
    def lacks_part(self) -> bool:
        return self.updated < 0

    def hold_part(self) -> None:
        """Note that the parameters that this server updates are here, if it lacked them."""
        if self.lacks_part:
            self.commit_update()

    # --- weights that others update -----------------------------------------------------------------------------------

    def begin_publication(self) -> None:
        """Note that others publish weights that are not here yet."""
        self.lacks_weights = True

    def end_publication(self) -> None:
        """Note that the newest weights of all parts are here."""
        self.lacks_weights = False

    # --- carried over -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The position for a peer or a checkpoint."""
        return {
            "calls": self.calls.state(),
            "step": self.step,
            "applied": self.transactions,
            "samples": self.samples,
            "loss": self.loss,
            "values": list(self.values),
            "norm": None if self.norm is None else float(self.norm),
            "changed": self.changed,
            "lacks_weights": self.lacks_weights,
            "opened": self.opened,
            "ticked": self.ticked,
            "staleness": self.staleness,
        } | ({"phases": self.phase_values} if self.phases else {})

    def restore(self, state: dict[str, Any], *, whole: bool, leased: bool) -> None:
        """Take over a peer's position, which `state` gave.

        Args:
            whole: with every parameter; not where this server kept the part that it alone updates.
            leased: the job leases items: a server that lacked its part made no update of its own.
        """
        self.calls.restore(state["calls"])
        self.step, self.transactions = state["step"], state["applied"]
        self.samples, self.loss = state["samples"], state["loss"]
        self.norm, self.values = state.get("norm"), state.get("values", ())  # checkpoints of 0.1 have none
        if leased and self.lacks_part:
            self.changed = state["changed"]
        self.phase_values = [list(values) for values in state.get("phases", ())]
        if whole:
            self.commit_update()
        self.opened, self.ticked = state["opened"], state["ticked"]
        self.lacks_weights = state.get("lacks_weights", False)  # checkpoints of 0.1 have none
        self.staleness = state.get("staleness", [])  # checkpoints of 0.1's first months have none
        self.boundary = self.step
        self.heals += 1
