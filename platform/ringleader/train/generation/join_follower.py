"""A joiner's way to the newest state beside the running group: the program's lines up to the call of a member, then,
where that member can be followed, a copy of its state and every step applied after it.

The same gradients go through the same optimisers, schedules and callbacks as on every member, so the bits are the same.
The training function does not run here meanwhile: what it sets in the optimisers' parameter groups or changes in kept
objects comes with each step, and where it changes weights the member gives its followers up. What it changes unseen,
through `.data`, shows at the boundary in fingerprints that differ: then this worker is healed.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ringleader.checkpoint.pieces import put_together
from ringleader.comm.buckets import laid_out_as
from ringleader.comm.communicator import Communicator
from ringleader.comm.objects import packed, unpacked_of_any_type
from ringleader.errors import ExchangeBroken
from ringleader.exchange.side_channel import SideChannel
from ringleader.train.generation.join_briefing import CatchUp
from ringleader.train.generation.join_donor import BOUNDARY, DONOR, STATE, views
from ringleader.train.ports import FollowTask, ParkReport
from ringleader.train.state.fingerprints import first_difference, prints
from ringleader.train.state.norms import scale_by

if TYPE_CHECKING:
    from ringleader.train.generation.member import Member


class JoinFollower:
    """One worker's part, before its first generation. Called from its training thread.

    Attributes:
        stale: this worker took a state over and lost its donor, or has run lines on recorded states: it must not begin
            a job from that.
        catching: the catching up of its program with that of the others.
    """

    def __init__(self, group: "Member") -> None:
        self.stale = False
        self._group = group
        self._level = self._caught_up = False
        self.catching = CatchUp(group)

    def follow(self, shadow: FollowTask) -> ParkReport | None:
        """Follow the donor until both stand at a boundary, or it is gone. None: calls are over that the program has not
        come to here, and their lines run first."""
        group = self._group
        fresh = group.healing.rest({})
        communicator = Communicator(shadow.transport)
        self._level = self._caught_up = False
        astray = why = ""
        try:
            astray = self._follow(shadow, SideChannel(communicator))
        except ExchangeBroken as error:
            why = str(error)
        finally:
            communicator.close()
        if self.catching.runs:
            self.stale = True
            return None
        if why or astray:
            # It parks as a newcomer again: the next plan heals it whole.
            group.healing.restore(fresh, whole=True)
        self.stale = bool(why or astray) or self.catching.begun
        parked = ParkReport(
            0,
            group.progress.transactions,
            group.progress.step,
            why,
            astray=astray,
            call=group.progress.calls.next - 1,
        )
        return replace(parked, caught_up=self._caught_up)

    def _follow(self, shadow: FollowTask, side: SideChannel) -> str:
        """Take what the donor sends, up to a boundary. Returns the first thing that differs there; empty for none."""
        if not self._ask(side):
            return ""
        while True:
            head = unpacked_of_any_type(side.receive_state(DONOR), side.seal)
            memory = side.receive_state(DONOR)
            if head["kind"] == STATE:
                self._take(head, memory)
            elif head["kind"] != BOUNDARY:
                self._apply(head, memory)
            elif self._joins(side):
                return self._stand(unpacked_of_any_type(memory, side.seal))
            if not head["behind"] and not self._level:
                self._level = True
                shadow.level()

    def _ask(self, side: SideChannel) -> bool:
        """Ask for the calls that are over for all members. Returns whether this worker follows now."""
        side.send_state(DONOR, packed(len(self._group.progress.calls.finished), side.seal))
        told = unpacked_of_any_type(side.receive_state(DONOR), side.seal)
        stays = self.catching.hear(told)
        side.all_reduce(torch.tensor([float(stays)], dtype=torch.float64))
        self._caught_up = stays and not told["followed"]
        return stays and not self._caught_up

    def _take(self, head: dict[str, Any], memory: Tensor) -> None:
        state = put_together(head["skeleton"], views(memory, head["kinds"]))
        self._group.healing.restore(self._group.held.take(state), whole=True)

    @torch.no_grad()
    def _apply(self, head: dict[str, Any], memory: Tensor) -> None:
        """Apply the sums of a step as every member does. Raises ExchangeBroken where the followed member's program has
        come to lines that register or unfreeze something, which have not run here."""
        group = self._group
        if not (
            len(head["used"]) == len(group.parameters) and group.held.knows(head["settings"], head["kept"])
        ):
            why = "the followed member has registered or unfrozen something since"
            raise ExchangeBroken(rank=-1, phase="follow", bucket=None, why=why)
        used = [p for p, reached in zip(group.parameters, head["used"], strict=True) if reached]
        for parameter in group.parameters:
            parameter.grad = None
        grads = views(memory, [(p.dtype, tuple(p.shape)) for p in used])
        for parameter, grad in zip(used, grads, strict=True):
            parameter.grad = laid_out_as(parameter, grad)
            if head["factor"] != 1:
                scale_by(parameter.grad, head["factor"])
        group.draws.begin(group.progress.step)
        # Before the update and the callbacks: no program runs here that would have set them.
        group.held.set(head["settings"])
        group.held.set_kept(head["kept"])
        if not head["skipped"]:
            group.held.update()
        if head["buffers"] is not None:
            group.buffers.commit(head["buffers"])
        group.progress.replay_step(head["loss"])
        group.held.after_update(group.spec.seed, group.progress.step, skipped=head["skipped"])
        if group.held.callbacks:
            group.buffers.adopt()  # as members do
        if group.scaling is not None:
            group.scaling.commit(overflowed=head["skipped"])
        for parameter in group.parameters:
            parameter.grad = None

    def _joins(self, side: SideChannel) -> bool:
        """Tell the donor whether this worker had been level: then the plan of this boundary is made with it."""
        return bool(side.all_reduce(torch.tensor([float(self._level)], dtype=torch.float64)))

    def _stand(self, state: dict[str, Any]) -> str:
        """Take, at the boundary, everything that no gradient tells. Returns what differs all the same."""
        held = self._group.held
        for scheduler, saved in zip(held.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        held.set(state["settings"])
        held.set_kept(state["kept"])
        held.commit_kept()
        self._group.healing.restore(state["rest"], whole=True)
        kept = {name: own.state_dict() for name, own in held.kept.items() if name not in state["kept"]}
        return first_difference(prints(held, kept), state["prints"])
