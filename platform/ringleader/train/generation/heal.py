"""A member's whole committed state: its way from a peer or a checkpoint, and what of it goes into one."""

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Parameter

from ringleader.checkpoint.parts import CheckpointPart
from ringleader.comm.communicator import end_process
from ringleader.elastic import Plan
from ringleader.train.generation.checkpointing import joined
from ringleader.train.generation.environment_check import EnvironmentCheck
from ringleader.train.generation.generation import Generation
from ringleader.train.generation.server_handover import hand_over, lacks

if TYPE_CHECKING:
    from ringleader.train.generation.member import Member


class Healing:
    """One member's exchange of state with peers and checkpoints. Called from the training thread."""

    def __init__(self, group: "Member") -> None:
        self._group = group
        self.machines = EnvironmentCheck(group.spec, group.device)

    def heal(self) -> None:
        """Send committed state as a donor and take it as a receiver, in the plan's order."""
        group = self._group
        plan, me = group.generation.plan, group.generation.plan.members[group.generation.rank]
        group.beginning.begin(group, plan)
        self._resume(plan, me)
        payloads: dict[int, torch.Tensor] = {}
        for receiver, donor in plan.heals:
            if donor == me:
                since = self._lacks_since(receiver)
                # Packed once for all receivers that lack the same: it copies the whole state.
                payloads[since] = payloads[since] if since in payloads else self.payload(since)
                group.generation.exchange.send_state(plan.rank_of(receiver), payloads[since])
            elif receiver == me:
                received = group.generation.exchange.receive_state(plan.rank_of(donor))
                keep = self._own_part(plan, donor)
                rest = self.receive(received, keep)
                updated = rest["changed"] or plan.start_step > 0
                if not keep and lacks(plan, group.generation.rank, donor, updated=updated):
                    group.progress.lack_part()
        if group.spec.sync.leased and me not in [receiver for receiver, _ in plan.heals]:
            group.progress.update_to(group.progress.step)
        # Rounds are laid before the first of them: a joiner's program has yet to make the optimisers they go by.
        if not group.outer:
            group.laying.lay()
        if plan.servers > 1 and not (group.spec.sync.servers_are_copies or group.spec.sync.circulates):
            if plan.backups:
                hand_over(group, lacking=group.progress.lacks_part)
                group.progress.hold_part()
            self._level()
        # Behind the heal, which brings what earlier generations have found.
        self.machines.meet(group.generation.exchange, plan, group.generation.rank)

    def payload(self, since: int) -> torch.Tensor:
        """(n,) uint8 of all committed state, sealed for a peer that has the boundaries of calls before `since`."""
        group = self._group
        return group.held.payload(
            self.rest(self._inside(group.generation.plan), since), group.generation.exchange.seal
        )

    def receive(self, payload: torch.Tensor, keep: list[Parameter]) -> dict[str, Any]:
        """Take over a peer's committed state, all but the parameters in `keep` with their optimiser states.

        Returns what no registered object holds."""
        group = self._group
        rest = group.held.restore(payload, group.generation.exchange.seal, keep)
        self.restore(rest, whole=not keep)
        return rest

    def _lacks_since(self, receiver: str) -> int:
        """The call from which on a receiver lacks boundaries: a member of the generation before is behind by a
        transaction at most, and by a loop that this member has left and that is not over yet."""
        group = self._group
        return max(0, group.sections.count - 2) if receiver in group.former else 0

    def _inside(self, plan: Plan) -> dict[str, Any]:
        """The position inside the running loop, for a receiver of this member's whole state."""
        inside = {} if plan.start_step else self._group.inside
        return (self._group.keeps() if plan.backups else {}) or inside

    def part_to_save(self, generation: Generation) -> CheckpointPart | None:
        """The part that this member writes: equals share out one state, servers write their own; of a token ring's
        members, whose optimisers differ, one writes all. None: it writes none."""
        group = self._group
        plan, server = generation.plan, generation.server
        if group.spec.sync.circulates:
            writer = plan.world if plan.servers and group.spec.sync.servers_are_copies else 0
            return CheckpointPart() if generation.rank == writer else None
        if not plan.servers:
            return CheckpointPart(writer=generation.rank, writers=plan.world)
        if server < 0:
            return None
        if group.generation.exchange.part is None:
            return CheckpointPart(writer=server, writers=plan.servers)
        return CheckpointPart(state=server, states=plan.servers)  # what two servers hold is written by both

    def state_of(self, part: CheckpointPart) -> dict[str, Any]:
        """The state that this member writes: all, or the part that it alone updates."""
        group = self._group
        if part.state == 0:
            # A server that took over another one's state has begun no loop of its own yet: `keeps` is empty.
            state = group.held.state(self.rest(group.keeps() or group.inside))
            return state | {"names": group.held.optimized_names()}
        return group.held.state_of(group.part or []) | {"boundaries": group.sections.states()}

    def rest(self, inside: dict[str, Any], since: int = 0) -> dict[str, Any]:
        """The position of this member, and all else that no registered object holds.

        Args:
            since: boundaries of calls from this number on are included.
        """
        group = self._group
        return {
            "inside": inside,
            "place": group.sections.place,
            "boundaries": group.sections.state(since),
            "variables": group.sections.variables.state(since),
            **group.progress.state(),
            "costs": group.costs,
            "records": group.reporter.state(),
            "trained": group.trained.state(),
            "outer": group.outer.state_dict() if group.outer else {},
            "scaling": group.scaling.state_dict() if group.scaling else {},
            "machines": self.machines.state(),
            "unkept": group.unkept.state(),
            "draws": group.draws.state(),
            "comparison": group.comparison.state(),
        }

    def restore(self, rest: dict[str, Any], *, whole: bool) -> None:
        """Take a peer's position; not `whole` where this server kept the part that it alone updates."""
        group = self._group
        if group.laying.coding is not None:
            # The step that the peers applied holds this worker's coded gradients: what they lost is owed.
            group.laying.coding.heal(steps=rest["step"] - group.progress.step)
        new, leased = group.progress.lacks_part, group.spec.sync.leased
        group.progress.restore(rest, whole=whole, leased=leased)
        group.sections.restore(rest.get("boundaries", (0, [])))  # checkpoints of before have none
        group.sections.variables.restore(rest.get("variables", {}))
        group.sections.healed(rest.get("place", -1))
        group.costs = rest["costs"]
        if new or not (group.serves and leased):  # there server 0's records are nowhere else
            group.reporter.restore(rest["records"])
        if "trained" in rest:  # checkpoints of before have none, nor this
            group.trained.restore(rest["trained"])
        if group.outer:
            group.outer.load_state_dict(rest["outer"], group.trained.numbers)
        if group.scaling:
            group.scaling.load_state_dict(rest["scaling"])
        self.machines.restore(rest.get("machines", []))  # nor this
        group.unkept.restore(rest.get("unkept", []))
        group.draws.restore(rest.get("draws", False))
        if "comparison" in rest:
            group.comparison.restore(rest["comparison"])
        group.inside = rest["inside"]
        group.buffers.adopt()

    def _resume(self, plan: Plan, me: str) -> None:
        """Begin a later attempt with the newest checkpoint, on the member that the others heal from."""
        group = self._group
        receivers = {receiver for receiver, _ in plan.heals}
        if plan.start_step or group.progress.transactions or group.progress.changed or me in receivers:
            return
        if group.shadowing.stale:
            end_process("the attempt starts from step 0, but this process holds weights of a lost member")
        found = group.saver.newest() if plan.attempt > 1 else None
        if found is not None:
            rest = group.held.take(joined(found.states))
            # Without the costs: they are of the links of an earlier attempt, and are measured again.
            self.restore(rest | {"costs": None}, whole=True)
            group.reporter.restore(rest["records"])  # the last of them may have been told nowhere
            group.saver.tell_start(found, plan.generation, len(group.progress.calls.finished))
            return
        if plan.attempt > 1:
            group.saver.tell_nothing(plan.generation)
        group.beginning.tell(group, plan.generation)

    def _own_part(self, plan: Plan, donor: str) -> list[Parameter]:
        """The parameters of which the donor lacks the newest state: a server's own share, once it has applied a step,
        and all where the donor is a worker, which is ahead by an evaluation at most and has no optimiser state."""
        group = self._group
        if group.progress.updated <= 0 and not group.progress.changed:
            return []
        served = group.generation.rank >= plan.world > plan.rank_of(donor)
        return group.part or (group.held.ever_trained(group.parameters) if served else [])

    def _level(self) -> None:
        """Publish the servers' weights to everybody where all servers are at the same step: each is certain to have the
        newest of its own part only. Where one is ahead, everybody else has all the weights of the step before."""
        group = self._group
        ahead = torch.zeros(len(group.generation.plan.members), dtype=torch.float64)
        ahead[group.generation.rank] = group.ahead
        if not bool(group.generation.exchange.all_reduce(ahead).any()):
            group.generation.exchange.publish()
            group.call_back()
