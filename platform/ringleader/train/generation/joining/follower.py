"""A joiner's way to the newest state beside the running group: the program's lines up to the call of a member, then,
where that member can be followed, a copy of its state and every step applied after it.

The same gradients go through the same optimizers, schedules and callbacks as on every member, so the bits are the same.
The training function does not run here meanwhile: what it sets in the optimizers' parameter groups or changes in kept
objects comes with each step, and where it changes weights the member gives its followers up. What it changes unseen,
through `.data`, shows at the boundary in fingerprints that differ: then this worker is healed.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ringleader.checkpoint.pieces import put_together
from ringleader.comm.buckets import laid_out_as
from ringleader.comm.communicator import Communicator
from ringleader.comm.objects import packed, unpacked_of_any_type
from ringleader.elastic import ParkReport
from ringleader.errors import ExchangeBroken
from ringleader.exchange.side_channel import SideChannel
from ringleader.train.generation.committed_state import CommittedState
from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.joining.briefing import CatchUp
from ringleader.train.generation.joining.donor import BOUNDARY, DONOR, STATE, views
from ringleader.train.ports import FollowTask
from ringleader.train.state.fingerprints import first_difference, prints
from ringleader.train.state.norms import scale_by
from ringleader.train.state.update_randomness import UpdateRandomness


class JoinFollower:
    """One worker's part, before its first generation. Called from its training thread.

    Attributes:
        stale: this worker took a state over and lost its donor, or has run lines on recorded states: it must not begin
            a job from that.
        catching: the catching up of its program with that of the others.
    """

    def __init__(
        self, context: MemberContext, state: CommittedState, catching: CatchUp, draws: UpdateRandomness
    ) -> None:
        self.stale = False
        self._context = context
        self._state = state
        self._draws = draws
        self._in_sync = self._caught_up = False
        self.catching = catching

    def follow(self, task: FollowTask) -> ParkReport | None:
        """Follow the donor until both stand at a boundary, or it is gone. None: calls are over that the program has not
        come to here, and their lines run first."""
        context = self._context
        # Before anything is taken over: with it this worker parks as the newcomer that it was.
        fresh = self._state.rest({})
        communicator = Communicator(task.transport)
        self._in_sync = self._caught_up = False
        astray = why = ""
        try:
            astray = self._follow(task, SideChannel(communicator))
        except ExchangeBroken as error:
            why = str(error)
        finally:
            communicator.close()
        if self.catching.runs:
            self.stale = True
            return None
        if why or astray:
            # It parks as a newcomer again: the next plan heals it whole.
            self._state.restore(fresh, whole=True)
        self.stale = bool(why or astray) or self.catching.begun
        parked = ParkReport(
            0,
            context.progress.transactions,
            context.progress.step,
            why,
            astray=astray,
            call=context.progress.calls.next - 1,
            phases=context.progress.phases,
        )
        return replace(parked, caught_up=self._caught_up)

    def _follow(self, task: FollowTask, side: SideChannel) -> str:
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
            # The donor has nothing more to send: all that it has applied is applied here, too.
            if not head["behind"] and not self._in_sync:
                self._in_sync = True
                task.in_sync()

    def _ask(self, side: SideChannel) -> bool:
        """Ask for the calls that are over for all members. Returns whether this worker follows now."""
        side.send_state(DONOR, packed(len(self._context.progress.calls.finished), side.seal))
        told = unpacked_of_any_type(side.receive_state(DONOR), side.seal)
        stays = self.catching.hear(told)
        if stays:
            # Before it answers: until then nothing is copied for it, and nobody waits for it.
            for own, met in zip(self._context.held.compiled, told["compiled"], strict=False):
                own.compile(met)
        side.all_reduce(torch.tensor([float(stays)], dtype=torch.float64))
        self._caught_up = stays and not told["followed"]
        return stays and not self._caught_up

    def _take(self, head: dict[str, Any], memory: Tensor) -> None:
        state = put_together(head["skeleton"], views(memory, head["kinds"]))
        self._state.restore(self._context.transfer.take(state), whole=True)

    @torch.no_grad()
    def _apply(self, head: dict[str, Any], memory: Tensor) -> None:
        """Apply the sums of a step as every member does. Raises ExchangeBroken where the followed member's program has
        come to lines that register or unfreeze something, which have not run here."""
        context = self._context
        if not (
            len(head["used"]) == len(context.parameters)
            and context.held.knows(head["settings"], head["kept"])
        ):
            why = "the followed member has registered or unfrozen something since"
            raise ExchangeBroken(rank=-1, phase="follow", bucket=None, why=why)
        used = [p for p, reached in zip(context.parameters, head["used"], strict=True) if reached]
        context.held.forget_gradients()
        grads = views(memory, [(p.dtype, tuple(p.shape)) for p in used])
        for parameter, grad in zip(used, grads, strict=True):
            parameter.grad = laid_out_as(parameter, grad)
            if head["factor"] != 1:
                scale_by(parameter.grad, head["factor"])
        self._draws.begin(*context.progress.update_key)
        # Before the update and the callbacks: no program runs here that would have set them.
        context.held.set(head["settings"])
        context.held.kept.put(head["kept"])
        if not head["skipped"]:
            context.held.update(only=head["only"])
        if head["buffers"] is not None:
            context.buffers.commit(head["buffers"])
        if head["phase"] is not None:
            context.progress.commit_phase(head["phase"])
            context.held.kept.commit()
        else:
            context.progress.replay_step(head["loss"])
            context.held.after_update(context.spec.seed, context.progress.step, skipped=head["skipped"])
            if context.held.callbacks:
                context.buffers.adopt()  # as members do
        if context.scaling is not None:
            context.scaling.commit(overflowed=head["skipped"])
        context.held.forget_gradients()

    def _joins(self, side: SideChannel) -> bool:
        """Tell the donor whether this worker had been level: then the plan of this boundary is made with it."""
        return bool(side.all_reduce(torch.tensor([float(self._in_sync)], dtype=torch.float64)))

    def _stand(self, state: dict[str, Any]) -> str:
        """Take, at the boundary, everything that no gradient tells. Returns what differs all the same."""
        held = self._context.held
        for scheduler, saved in zip(held.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        held.set(state["settings"])
        held.kept.put(state["kept"])
        held.kept.commit()
        self._state.restore(state["rest"], whole=True)
        kept = {name: own.state_dict() for name, own in held.kept.items() if name not in state["kept"]}
        return first_difference(prints(held, kept), state["prints"])
