"""A member's whole committed state: how it comes from a peer or a checkpoint, and what of it goes into one."""

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Parameter

from ringleader.checkpoint.manifest import CheckpointUnreadable
from ringleader.checkpoint.parts import Part
from ringleader.checkpoint.snapshot import checkpoint_at
from ringleader.comm.communicator import end_process
from ringleader.elastic import Plan
from ringleader.train.handover import hand_over, lacks
from ringleader.train.machines import Machines
from ringleader.train.saving import joined
from ringleader.train.seams import Seat

if TYPE_CHECKING:
    from ringleader.train.group import Group


class Healing:
    """What one member gives to its peers and to checkpoints, and takes from them. Called from the training thread."""

    def __init__(self, group: "Group") -> None:
        self._group = group
        self.machines = Machines(group.spec)

    def heal(self) -> None:
        """Donors send their committed state, receivers take it, in the plan's order."""
        group = self._group
        assert group.seat is not None
        assert group.exchange is not None
        plan, me = group.seat.plan, group.seat.plan.members[group.seat.rank]
        self._resume(plan, me)
        payload = None
        for receiver, donor in plan.heals:
            if donor == me:
                rest = self.rest(self._inside(plan))
                payload = group.held.payload(rest) if payload is None else payload
                group.exchange.send_state(plan.rank_of(receiver), payload)
            elif receiver == me:
                received = group.exchange.receive_state(plan.rank_of(donor))
                keep = self._own_part(plan, donor)
                rest = group.held.restore(received, keep)
                self.restore(rest, whole=not keep)
                updated = rest["changed"] or plan.start_step > 0
                if not keep and lacks(plan, group.seat.rank, donor, updated=updated):
                    group.updated = -1
        if group.spec.sync.leased and me not in [receiver for receiver, _ in plan.heals]:
            group.updated = max(group.updated, group.step)
        if plan.servers > 1 and not (group.spec.sync.servers_are_copies or group.spec.sync.circulates):
            if plan.backups:
                hand_over(group.seat, group.exchange, group.held, lacking=group.updated < 0)
                group.updated = group.step if group.updated < 0 else group.updated
            self._level()
        self.machines.meet(group.exchange, plan, group.seat.rank)

    def _inside(self, plan: Plan) -> dict[str, Any]:
        """Where a running loop stands, for who takes this member's whole state."""
        inside = {} if plan.start_step else self._group.inside
        return (self._group.keeps() if plan.backups else {}) or inside

    def part_to_save(self, seat: Seat) -> Part | None:
        """What a member writes: equals share out one state, servers write their own; of a token ring's members, whose
        optimisers differ, one writes all."""
        group = self._group
        plan, server = seat.plan, seat.rank - seat.plan.world
        if group.spec.sync.circulates:
            writer = plan.world if plan.servers and group.spec.sync.servers_are_copies else 0
            return Part() if seat.rank == writer else None
        if not plan.servers:
            return Part(writer=seat.rank, writers=plan.world)
        if server < 0:
            return None
        assert group.exchange is not None
        if group.exchange.part is None:
            return Part(writer=server, writers=plan.servers)
        return Part(state=server, states=plan.servers)  # what two servers hold is written by both

    def state_of(self, part: Part) -> dict[str, Any]:
        """What this member writes: all, or the part that it alone updates."""
        group = self._group
        assert group.exchange is not None
        if part.state == 0:
            return group.held.state(self.rest(group.keeps()))
        return group.held.state_of(group.exchange.part or [])

    def rest(self, inside: dict[str, Any]) -> dict[str, Any]:
        """The position of this member, and all else that no registered object holds."""
        group = self._group
        return {
            "inside": inside,
            "calls": group.calls.state(),
            "step": group.step,
            "applied": group.applied,
            "samples": group.samples,
            "loss": group.loss,
            "costs": group.costs,
            "records": group.reporter.state(),
            "changed": group.changed,
            "outer": group.outer.state_dict() if group.outer else {},
            "opened": group.opened,
            "ticked": group.ticked,
            "scaling": group.scaling.state_dict() if group.scaling else {},
            "machines": self.machines.state(),
            "unkept": group.unkept.state(),
            "draws": group.draws.state(),
            "staleness": group.staleness,
        }

    def restore(self, rest: dict[str, Any], *, whole: bool) -> None:
        """Take a peer's position; not `whole` where this server kept the part that it alone updates."""
        group = self._group
        if group.coding is not None:
            # The step that the peers applied holds this worker's coded gradients: what they lost is owed.
            group.coding.heal(steps=rest["step"] - group.step)
        group.calls.restore(rest["calls"])
        group.step = rest["step"]
        group.applied = rest["applied"]
        group.samples = rest["samples"]
        group.loss = rest["loss"]
        group.costs = rest["costs"]
        new = group.updated < 0
        group.updated = group.step if whole else group.updated
        if new or not (group.serves and group.spec.sync.leased):  # there server 0's records are nowhere else
            group.reporter.restore(rest["records"])
        if new and group.spec.sync.leased:
            group.changed = rest["changed"]
        if group.outer:
            group.outer.load_state_dict(rest["outer"])
        group.opened, group.ticked = rest["opened"], rest["ticked"]
        if group.scaling:
            group.scaling.load_state_dict(rest["scaling"])
        self.machines.restore(rest.get("machines", []))  # checkpoints of before have none
        group.unkept.restore(rest.get("unkept", []))  # nor this
        group.draws.restore(rest.get("draws", False))
        group.staleness = rest.get("staleness", [])
        group.inside, group.boundary = rest["inside"], group.step
        group.heals += 1
        group.buffers.adopt()

    def _resume(self, plan: Plan, me: str) -> None:
        """A later attempt begins with the newest checkpoint: whom the others heal from takes it."""
        group = self._group
        receivers = {receiver for receiver, _ in plan.heals}
        if plan.start_step or group.applied or group.changed or me in receivers:
            return
        if group.shadowing.stale:
            end_process("it shall begin from nothing, and its weights are of a member that is gone")
        found = group.saver.newest() if plan.attempt > 1 else None
        if found is not None:
            rest = group.held.take(joined(found.states))
            self.restore(rest | {"costs": None}, whole=True)
            group.saver.tell_start(found, plan.generation)
        elif group.spec.init_from is not None:
            self._begin_with(group.spec.init_from, plan.generation)

    def _begin_with(self, uri: str, generation: int) -> None:
        """The first state has the weights of another job's checkpoint."""
        group = self._group
        found = checkpoint_at(uri)
        matched = group.held.begin_with(joined(found.states)["models"])
        if not matched.taken:
            raise CheckpointUnreadable(
                found.place, "no entry of this job's models has its name and shape there"
            )
        group.buffers.adopt()
        group.saver.tell_weights(found, matched.told(), generation)

    def _own_part(self, plan: Plan, donor: str) -> list[Parameter]:
        """What the donor has not the newest of: a server's own share, once it has applied a step, and all of it where
        the donor is a worker, who is ahead by an evaluation at most and has no optimiser state."""
        group = self._group
        assert group.exchange is not None
        assert group.seat is not None
        if group.updated <= 0 and not group.changed:
            return []
        served = group.seat.rank >= plan.world > plan.rank_of(donor)
        return group.exchange.part or (group.parameters if served else [])

    def _level(self) -> None:
        """Where all servers are at the same step their weights go to everybody: a server has the newest ones of its own
        part for certain. Where one is ahead, everybody else has all the weights of the step before."""
        group = self._group
        assert group.seat is not None
        assert group.exchange is not None
        ahead = torch.zeros(len(group.seat.plan.members), dtype=torch.float64)
        ahead[group.seat.rank] = group.ahead
        if not bool(group.exchange.all_reduce(ahead).any()):
            group.exchange.publish()
