"""A member's whole committed state: its way from a peer or a checkpoint, and what of it goes into one."""

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Parameter

from ringleader.checkpoint.parts import CheckpointPart
from ringleader.comm.communicator import end_process
from ringleader.elastic import Plan
from ringleader.train.generation.environment_check import EnvironmentCheck
from ringleader.train.generation.saving.saver import joined
from ringleader.train.generation.server_handover import hand_over, lacks

if TYPE_CHECKING:
    from ringleader.train.generation.member import Member


class Healing:
    """One member's exchange of state with peers and checkpoints. Called from the training thread."""

    def __init__(self, member: "Member") -> None:
        self._member = member
        self.machines = EnvironmentCheck(member.spec, member.device)

    def heal(self) -> None:
        """Send committed state as a donor and take it as a receiver, in the plan's order."""
        member, generation = self._member, self._member.generation
        plan, me = generation.plan, generation.plan.members[generation.rank]
        member.beginning.begin(member, plan)
        self._resume(plan, me)
        payloads: dict[int, torch.Tensor] = {}
        for receiver, donor in plan.heals:
            if donor == me:
                since = self._lacks_since(receiver)
                # Packed once for all receivers that lack the same: it copies the whole state.
                payloads[since] = payloads[since] if since in payloads else self.payload(since)
                generation.exchange.send_state(plan.rank_of(receiver), payloads[since])
            elif receiver == me:
                received = generation.exchange.receive_state(plan.rank_of(donor))
                keep = self._own_part(plan, donor)
                rest = self.receive(received, keep)
                updated = rest["changed"] or plan.start_transaction > 0
                if not keep and lacks(plan, generation.rank, donor, updated=updated):
                    member.progress.lack_part()
        if member.spec.sync.leased and me not in [receiver for receiver, _ in plan.heals]:
            member.progress.update_to(member.progress.step)
        # Rounds are laid before the first of them: a joiner's program has yet to make the optimisers they go by.
        if not member.outer:
            member.laying.lay()
        if plan.servers > 1 and not (member.spec.sync.servers_are_copies or member.spec.sync.circulates):
            if plan.backups:
                hand_over(member, lacking=member.progress.lacks_part)
                member.progress.hold_part()
            self._publish_if_lacking()
        # Behind the heal, which brings what earlier generations have found.
        self.machines.meet(generation.exchange, plan, generation.rank)

    def payload(self, since: int) -> torch.Tensor:
        """(n,) uint8 of all committed state, sealed for a peer that has the boundaries of calls before `since`."""
        member = self._member
        return member.held.payload(
            self.rest(self._inside(member.generation.plan), since), member.generation.exchange.seal
        )

    def receive(self, payload: torch.Tensor, keep: list[Parameter]) -> dict[str, Any]:
        """Take over a peer's committed state, all but the parameters in `keep` with their optimiser states.

        Returns what no registered object holds."""
        member = self._member
        rest = member.held.restore(payload, member.generation.exchange.seal, keep)
        self.restore(rest, whole=not keep)
        return rest

    def _lacks_since(self, receiver: str) -> int:
        """The call from which on a receiver lacks boundaries: a member of the generation before is behind by a
        transaction at most, and by a loop that this member has left and that is not over yet."""
        member = self._member
        return max(0, member.sections.count - 2) if receiver in member.former else 0

    def _inside(self, plan: Plan) -> dict[str, Any]:
        """The position inside the running loop, for a receiver of this member's whole state."""
        inside = {} if plan.start_transaction else self._member.saved_loop_state
        return (self._member.loop_state() if plan.backups else {}) or inside

    def part_to_save(self) -> CheckpointPart | None:
        """The part that this member writes: equals share out one state, servers write their own; of a token ring's
        members, whose optimisers differ, one writes all. None: it writes none."""
        member, generation = self._member, self._member.generation
        plan, server = generation.plan, generation.server
        if member.spec.sync.circulates:
            writer = plan.world if plan.servers and member.spec.sync.servers_are_copies else 0
            return CheckpointPart() if generation.rank == writer else None
        if not plan.servers:
            return CheckpointPart(writer=generation.rank, writers=plan.world)
        if server < 0:
            return None
        if generation.exchange.part is None:
            return CheckpointPart(writer=server, writers=plan.servers)
        return CheckpointPart(state=server, states=plan.servers)  # what two servers hold is written by both

    def state_of(self, part: CheckpointPart) -> dict[str, Any]:
        """The state that this member writes: all, or the part that it alone updates."""
        member = self._member
        if part.state == 0:
            # A server that took over another one's state has begun no loop of its own yet: `loop_state` is empty.
            state = member.held.state(self.rest(member.loop_state() or member.saved_loop_state))
            return state | {"names": member.held.optimized_names()}
        return member.held.state_of(member.part or []) | {"boundaries": member.sections.states()}

    def rest(self, inside: dict[str, Any], since: int = 0) -> dict[str, Any]:
        """The position of this member, and all else that no registered object holds.

        Args:
            since: boundaries of calls from this number on are included.
        """
        member = self._member
        return {
            "inside": inside,
            "place": member.sections.place,
            "boundaries": member.sections.state(since),
            "variables": member.sections.variables.state(since),
            **member.progress.state(),
            "costs": member.costs,
            "records": member.reporter.state(),
            "trained": member.trained.state(),
            "outer": member.outer.state_dict() if member.outer else {},
            "scaling": member.scaling.state_dict() if member.scaling else {},
            "machines": self.machines.state(),
            "unkept": member.unkept.state(),
            "draws": member.draws.state(),
            "comparison": member.comparison.state(),
        }

    def restore(self, rest: dict[str, Any], *, whole: bool) -> None:
        """Take a peer's position; not `whole` where this server kept the part that it alone updates."""
        member = self._member
        if member.laying.coding is not None:
            # The step that the peers applied holds this worker's coded gradients: what they lost is owed.
            member.laying.coding.heal(steps=rest["step"] - member.progress.step)
        new, leased = member.progress.lacks_part, member.spec.sync.leased
        member.progress.restore(rest, whole=whole, leased=leased)
        member.sections.restore(rest.get("boundaries", (0, [])))  # checkpoints of before have none
        member.sections.variables.restore(rest.get("variables", {}))
        member.sections.healed(rest.get("place", -1))
        member.costs = rest["costs"]
        if new or not (member.serves and leased):  # there server 0's records are nowhere else
            member.reporter.restore(rest["records"])
        if "trained" in rest:  # checkpoints of before have none, nor this
            member.trained.restore(rest["trained"])
        if member.outer:
            member.outer.load_state_dict(rest["outer"], member.trained.numbers)
        if member.scaling:
            member.scaling.load_state_dict(rest["scaling"])
        self.machines.restore(rest.get("machines", []))  # nor this
        member.unkept.restore(rest.get("unkept", []))
        member.draws.restore(rest.get("draws", False))
        if "comparison" in rest:
            member.comparison.restore(rest["comparison"])
        member.saved_loop_state = rest["inside"]
        member.buffers.adopt()

    def _resume(self, plan: Plan, me: str) -> None:
        """Begin a later attempt with the newest checkpoint, on the member that the others heal from."""
        member = self._member
        receivers = {receiver for receiver, _ in plan.heals}
        if (
            plan.start_transaction
            or member.progress.transactions
            or member.progress.changed
            or me in receivers
        ):
            return
        if member.join_follower.stale:
            end_process("the attempt starts from step 0, but this process holds weights of a lost member")
        found = member.saver.newest() if plan.attempt > 1 else None
        if found is not None:
            rest = member.held.take(joined(found.states))
            # Without the costs: they are of the links of an earlier attempt, and are measured again.
            self.restore(rest | {"costs": None, "lacks_weights": False}, whole=True)
            member.reporter.restore(rest["records"])  # the last of them may have been told nowhere
            member.saver.tell_start(found, plan.generation, len(member.progress.calls.finished))
            return
        if plan.attempt > 1:
            member.saver.tell_nothing(plan.generation)
        member.beginning.tell(member, plan.generation)

    def _own_part(self, plan: Plan, donor: str) -> list[Parameter]:
        """The parameters of which the donor lacks the newest state: a server's own share, once it has applied a step,
        and all where the donor is a worker, which is ahead by an evaluation at most and has no optimiser state."""
        member = self._member
        if member.progress.updated <= 0 and not member.progress.changed:
            return []
        served = member.generation.serves and plan.rank_of(donor) < plan.world
        return member.part or (member.held.ever_trained(member.parameters) if served else [])

    def _publish_if_lacking(self) -> None:
        """Publish the servers' weights to everybody where a member lacks some and all servers are at the same step.

        Where a server is ahead, everybody else has all the weights of the step before. Where nobody lacks any, what
        servers hold is not sent: lines of the program may have changed it on one of them, which the comparison of
        members finds only where the others still have their own.
        """
        member, plan = self._member, self._member.generation.plan
        # Inside a loop of leased items servers make steps of their own.
        apart = member.spec.sync.leased and (member.spec.sync.order_free or member.progress.calls.offset > 0)
        said = torch.zeros(2, len(plan.members), dtype=torch.float64)
        said[:, member.generation.rank] = torch.tensor([member.ahead, member.progress.lacks_weights or apart])
        ahead, lacking = member.generation.exchange.all_reduce(said.view(-1)).view(2, -1)
        if lacking.any() and not ahead.any():
            member.publish()
            member.call_back()
