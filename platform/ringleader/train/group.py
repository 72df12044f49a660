"""This worker's place among the members: its seat, its exchange, and the way from one generation to the next."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ringleader.checkpoint.manifest import CheckpointUnreadable, Position
from ringleader.checkpoint.parts import Part
from ringleader.checkpoint.snapshot import checkpoint_at
from ringleader.comm.buckets import Buckets as GradientBuckets
from ringleader.comm.simulator import Costs
from ringleader.elastic import Plan
from ringleader.elastic.state import PAUSE
from ringleader.errors import ExchangeBroken
from ringleader.spec import JobSpec
from ringleader.sync import Coding, Exchange, open_exchange
from ringleader.train.agreement import agreed
from ringleader.train.buffers import Buffers
from ringleader.train.calls import Calls, Ended
from ringleader.train.clock import Split
from ringleader.train.handover import hand_over, lacks
from ringleader.train.held import Held
from ringleader.train.outer import Outer
from ringleader.train.reporter import Reporter
from ringleader.train.saving import Saver, joined
from ringleader.train.seams import Coordinator, Parked, Seat
from ringleader.train.tables import ROWS_TRAVEL, make_dense, refuse_optimizers, tables_of
from ringleader.train.word import WordLayout


class Group:
    """Committed position, current seat and exchange. `enter` brings a worker into the next generation.

    Attributes:
        step: global steps applied.
        applied: transactions applied: steps and finished evaluations.
        epoch: the index of the last batches loop, for what people read.
        loss: the global loss of the newest committed step, None before the first.
        costs: what links and adds cost, as measured once; None where nothing has been chosen by it yet.
        heals: how often this member took over a peer's whole state.
        opened: the call number of the loop that all members have begun together, where that is a transaction.
        ticked: global steps for which schedules and callbacks have run, where members are at different steps.
        updated: global steps that the parameters which this member updates have applied; a server of several may be a
            step ahead of all others after a failure. -1 on a new server that has not got them yet.
        changed: this server has made an update, if only a part of a step.
        staleness: where items are leased: gradients by the versions between pull and update.
        level: called when a generation's exchange is open, before anybody heals.
        keeps: what a running loop's transaction knows beyond whole steps, at a boundary, for a checkpoint.
        inside: the same of the checkpoint that this attempt began with.
    """

    def __init__(
        self,
        *,
        spec: JobSpec,
        held: Held,
        calls: Calls,
        reporter: Reporter,
        coordinator: Coordinator,
        split: Split,
        saver: Saver,
    ) -> None:
        self.spec = spec
        self.held = held
        self.calls = calls
        self.reporter = reporter
        self.coordinator = coordinator
        self.split = split
        self.timeline = split.timeline
        self.saver = saver
        self.step = 0
        self.applied = 0
        self.samples = 0
        self.epoch = 0
        self.loss: float | None = None
        self.costs: Costs | None = None
        self.updated = 0
        self.changed = False
        self.staleness: list[int] = []
        self.level: Callable[[], None] = lambda: None
        self.keeps: Callable[[], dict[str, Any]] = dict
        self.inside: dict[str, Any] = {}
        self._boundary = 0
        self.heals = 0
        self.opened = -1
        self.ticked = 0
        self.seat: Seat | None = None
        self.exchange: Exchange | None = None
        self.same_bits = spec.sync.same_bits
        self._leaving = ""
        self._must_park = True
        self._buckets: GradientBuckets | None = None
        self._buffers: Buffers | None = None
        self._parameters: list[Parameter] | None = None
        self._tables: dict[int, str] | None = None
        self._layout: WordLayout | None = None
        self._coding: Coding | None = None
        self._counted_bytes = 0
        self._outer: Outer | None = None
        self._told: dict[str, Any] | None = None

    @property
    def buffers(self) -> Buffers:
        if self._buffers is None:
            self._buffers = Buffers(self.held.models)
        return self._buffers

    @property
    def parameters(self) -> list[Parameter]:
        """Every trainable parameter, as they were at the first exchange."""
        if self._parameters is None:
            self._parameters = self.held.parameters
        return self._parameters

    @property
    def tables(self) -> dict[Parameter, str]:
        """The names of the parameters whose gradients travel as rows."""
        return {self.parameters[number]: name for number, name in self._table_names.items()}

    @property
    def _table_names(self) -> dict[int, str]:
        if self._tables is None:
            travel = self.spec.sync.architecture in ROWS_TRAVEL
            held = self.held
            self._tables = tables_of(held.models, held.spoken_parameters) if travel else {}
            if not travel:
                make_dense(self.parameters)
        return self._tables

    @property
    def outer(self) -> Outer | None:
        """The outer step, where a round of several batches is the transaction."""
        kind = self.spec.sync.outer_step
        if self._outer is None and kind is not None and self.parameters:
            self._outer = Outer(self.held, self.parameters, self.spec.shards, kind)
        return self._outer

    @property
    def layout(self) -> WordLayout:
        if self._layout is None:
            self._layout = WordLayout(
                members=self.spec.shards + self.spec.sync.server_count,
                shards=self.spec.shards * self.spec.sync.round_steps,
                parameters=len(self.parameters),
                buffers=self.buffers.word_length,
            )
        return self._layout

    @property
    def lanes(self) -> int:
        """Terms of the gradient's sum: logical shards, or workers where a worker's slices run as one."""
        if self.same_bits:
            return self.spec.shards
        assert self.seat is not None
        return self.seat.plan.world

    @property
    def ahead(self) -> bool:
        """Whether this server has applied the running step before: it takes part again, and does not update again."""
        return self.updated > self.step and not self.spec.sync.leased

    @property
    def serves(self) -> bool:
        """Whether this member is a server."""
        return self.seat is not None and self.seat.rank >= self.seat.plan.world

    def enter(self) -> Exchange:
        """The exchange to use for the next transaction; waits for the next plan first where one is due."""
        while self._must_park or self.exchange is None:
            first = self.seat is None
            with self.split.idle() if first else self.split.recovery():
                self._change_generation()
        return self.exchange

    @property
    def due(self) -> bool:
        """Whether a checkpoint is due at the next boundary."""
        return self.saver.due(self._boundary, self.step)

    def committed(self) -> None:
        """All that is applied is committed and published: copy it for a checkpoint where one is due."""
        if self.due:
            self._save()
        self._boundary = self.step

    def leave_at_boundary(self) -> None:
        """The reduced word named a newer plan: this generation is over."""
        self._must_park = True
        self._leaving = ""

    def broke(self, error: ExchangeBroken) -> None:
        """The running transaction did not happen; the next plan says where to go on."""
        self._must_park = True
        self._leaving = str(error)
        if self.timeline is not None:
            self.timeline.unwind(self._leaving)
        self.held.rewind_kept()
        self.buffers.forget()

    def traffic(self) -> dict[str, float]:
        """Where there are any, the bytes of coded gradients and of rows that this worker sent since the last call."""
        if self._coding is None and not self._table_names:
            return {}
        coded = self._coding.wire_bytes if self._coding is not None else 0
        rows = self._buckets.tables.wire_bytes if self._buckets is not None else 0
        before, self._counted_bytes = self._counted_bytes, coded + rows
        return {"comm_bytes": float(self._counted_bytes - before)}

    def leave_call(self, number: int) -> None:
        """The loop of that call was left at this committed step: a transaction, and who misses it is healed.

        The weights are published as they are.
        """
        exchange = self.exchange
        assert exchange is not None
        if not exchange.updates:
            exchange.publish()
        self.buffers.forget()
        self.finish_call(number)
        self.applied += 1
        if exchange.updates:
            exchange.publish()

    def finish_call(self, number: int, result: Any = None) -> None:
        """The call is over for everybody at this committed step."""
        self.calls.finish(number, Ended(result, self.step, self.loss))

    def close(self) -> None:
        """Leave the group for good; weights stay."""
        self.saver.close()
        if self.exchange is not None:
            self.split.exposed_s += self.exchange.exposed_s
            self.exchange.close()
            self.exchange = None
        if self._buckets is not None:
            self._buckets.release()
            self._buckets = None

    def check(self, reduced: Tensor) -> bool:
        """Whether the step happens, and nobody left the loop before it. Raises CallMismatch where members differ."""
        assert self.seat is not None
        return agreed(self.layout, reduced, self.seat.plan, self.seat.rank)

    def _change_generation(self) -> None:
        generation = self.seat.plan.generation if self.seat else 0
        if self.exchange is not None:
            self.split.exposed_s += self.exchange.exposed_s
            self.exchange.close()
            self.exchange = None
        if self.timeline is not None:
            self.timeline.begin("regroup", left=generation)
        step = self.updated if self.updated < 0 else max(self.step, self.updated)
        self.seat = self.coordinator.next_seat(Parked(generation, self.applied, step, self._leaving))
        self._must_park = False
        self._leaving = ""
        if not generation and self.seat.plan.start_step and self.serves and not self.spec.sync.leased:
            self.updated = -1
        if self.timeline is not None:
            self.timeline.end()
            self.timeline.begin("heal", generation=self.seat.plan.generation)
        try:
            self._open()
            self.level()
            self._heal()
            self._calibrate()
        except ExchangeBroken as error:
            self.broke(error)
            return
        if self.timeline is not None:
            self.timeline.end()
        plan = self.seat.plan
        if plan.cause == PAUSE:
            self._pause()
            return
        # Where items are leased server 0 counts them, and so it speaks.
        speaker = plan.world if self.spec.sync.leased and plan.servers else 0
        self.reporter.take_office(speaks=self.seat.rank == speaker, recorded_step=plan.recorded_step)
        self._tell_choice()

    def _pause(self) -> None:
        """The generation has no other purpose than to save the boundary at which it begins."""
        assert self.exchange is not None
        try:
            if self.saver.on:
                self._save()
                self.saver.written()
            self.exchange.all_reduce(torch.zeros(1, dtype=torch.float64))
        except ExchangeBroken as error:
            self.broke(error)
            return
        self.reporter.settle()
        self._must_park = True

    def _save(self) -> None:
        assert self.seat is not None
        plan = self.seat.plan
        part = self._part_to_save(self.seat)
        if part is not None:
            position = Position(self.step, self.applied, plan.attempt, plan.generation)
            self.saver.save(self._state_of(part), part, position)

    def _open(self) -> None:
        assert self.seat is not None
        if self._buckets is None:
            refuse_optimizers(self.held.optimizers, self.tables, self.spec.sync.architecture)
            self.held.commit_kept()
            self._coding = self._agree_coding()
        self.exchange = open_exchange(
            architecture=self.spec.sync.architecture,
            algorithm=self.spec.sync.algorithm or "auto",
            same_bits=self.same_bits,
            plan=self.seat.plan,
            rank=self.seat.rank,
            transport=self.seat.transport,
            parameters=self._exchanged(),
            word_length=self.layout.length,
            buckets=self._buckets,
            coding=self._coding,
            tables=self._table_names,
            timeline=self.timeline,
            leased=self.spec.sync.leased,
        )
        self._buckets = self.exchange.buckets

    def _exchanged(self) -> list[Parameter]:
        """What has gradients that are summed."""
        if self.spec.sync.circulates:
            return []
        return self.outer.carriers if self.outer else self.parameters

    def _agree_coding(self) -> Coding | None:
        codec = self.spec.sync.codec
        return None if codec == "none" else Coding(codec, list(self.held.named_parameters))

    def _heal(self) -> None:
        """Donors send their committed state, receivers take it, in the plan's order."""
        assert self.seat is not None
        assert self.exchange is not None
        plan, me = self.seat.plan, self.seat.plan.members[self.seat.rank]
        self._resume(plan, me)
        payload = None
        for receiver, donor in plan.heals:
            if donor == me:
                rest = self._rest({} if plan.start_step else self.inside)
                payload = self.held.payload(rest) if payload is None else payload
                self.exchange.send_state(plan.rank_of(receiver), payload)
            elif receiver == me:
                received = self.exchange.receive_state(plan.rank_of(donor))
                keep = self._own_part(plan, donor)
                self._restore(self.held.restore(received, keep), whole=not keep)
                if not keep and lacks(plan, self.seat.rank, donor):
                    self.updated = -1
        if plan.servers > 1 and not (self.spec.sync.servers_are_copies or self.spec.sync.circulates):
            if plan.backups:
                hand_over(self.seat, self.exchange, self.held, lacking=self.updated < 0)
                self.updated = self.step if self.updated < 0 else self.updated
            self._level()

    def _resume(self, plan: Plan, me: str) -> None:
        """A later attempt begins with the newest checkpoint: whom the others heal from takes it."""
        receivers = {receiver for receiver, _ in plan.heals}
        if plan.start_step or self.applied or me in receivers:
            return
        found = self.saver.newest() if plan.attempt > 1 else None
        if found is not None:
            rest = self.held.take(joined(found.states))
            self._restore(rest | {"costs": None}, whole=True)
            self.saver.tell_start(found, plan.generation)
        elif self.spec.init_from is not None:
            self._begin_with(self.spec.init_from, plan.generation)

    def _begin_with(self, uri: str, generation: int) -> None:
        """The first state has the weights of another job's checkpoint."""
        found = checkpoint_at(uri)
        matched = self.held.begin_with(joined(found.states)["models"])
        if not matched.taken:
            raise CheckpointUnreadable(
                found.place, "no entry of this job's models has its name and shape there"
            )
        self.buffers.adopt()
        self.saver.tell_weights(found, matched.told(), generation)

    def _part_to_save(self, seat: Seat) -> Part | None:
        """What a member writes: equals share out one state, servers write their own; of a token ring's members, whose
        optimisers differ, one writes all."""
        plan, server = seat.plan, seat.rank - seat.plan.world
        if self.spec.sync.circulates:
            writer = plan.world if plan.servers and self.spec.sync.servers_are_copies else 0
            return Part() if seat.rank == writer else None
        if not plan.servers:
            return Part(writer=seat.rank, writers=plan.world)
        if server < 0:
            return None
        assert self.exchange is not None
        if self.exchange.part is None:
            return Part(writer=server, writers=plan.servers)
        return Part(state=server, states=plan.servers)  # what two servers hold is written by both

    def _state_of(self, part: Part) -> dict[str, Any]:
        """What this member writes: all, or the part that it alone updates."""
        assert self.exchange is not None
        if part.state == 0:
            return self.held.state(self._rest(self.keeps()))
        return self.held.state_of(self.exchange.part or [])

    def _own_part(self, plan: Plan, donor: str) -> list[Parameter]:
        """What the donor has not the newest of: a server's own share, once it has applied a step, and all of it where
        the donor is a worker, who is ahead by an evaluation at most and has no optimiser state."""
        assert self.exchange is not None
        assert self.seat is not None
        if self.updated <= 0 and not self.changed:
            return []
        served = self.seat.rank >= plan.world > plan.rank_of(donor)
        return self.exchange.part or (self.parameters if served else [])

    def _level(self) -> None:
        """Where all servers are at the same step their weights go to everybody: a server has the newest ones of its own
        part for certain. Where one is ahead, everybody else has all the weights of the step before."""
        assert self.seat is not None
        assert self.exchange is not None
        ahead = torch.zeros(len(self.seat.plan.members), dtype=torch.float64)
        ahead[self.seat.rank] = self.ahead
        if not bool(self.exchange.all_reduce(ahead).any()):
            self.exchange.publish()

    def _calibrate(self) -> None:
        """The first generation that sends over links measures them; who joins later heals what it found."""
        assert self.exchange is not None
        self.costs = self.exchange.measure(self.costs)
        self.exchange.go_by(self.costs)

    def _tell_choice(self) -> None:
        """Which schedules sum the buckets, where that is not what this worker said last."""
        assert self.seat is not None
        assert self.exchange is not None
        chosen = self.exchange.chosen() if self.seat.rank == 0 else None
        if chosen is not None and chosen != self._told:
            self._told = chosen
            self.reporter.tell("exchange.chosen", self.seat.plan.generation, chosen)

    def _rest(self, inside: dict[str, Any]) -> dict[str, Any]:
        return {
            "inside": inside,
            "calls": self.calls.state(),
            "step": self.step,
            "applied": self.applied,
            "samples": self.samples,
            "loss": self.loss,
            "costs": self.costs,
            "records": self.reporter.state(),
            "outer": self.outer.state_dict() if self.outer else {},
            "opened": self.opened,
            "ticked": self.ticked,
        }

    def _restore(self, rest: dict[str, Any], *, whole: bool) -> None:
        """Take a peer's position; not `whole` where this server kept the part that it alone updates."""
        if self._coding is not None:
            # The step that the peers applied holds this worker's coded gradients: what they lost is owed.
            self._coding.heal(steps=rest["step"] - self.step)
        self.calls.restore(rest["calls"])
        self.step = rest["step"]
        self.applied = rest["applied"]
        self.samples = rest["samples"]
        self.loss = rest["loss"]
        self.costs = rest["costs"]
        self.updated = self.step if whole else self.updated
        if not (self.serves and self.spec.sync.leased):  # server 0's records are nowhere else
            self.reporter.restore(rest["records"])
        if self.outer:
            self.outer.load_state_dict(rest["outer"])
        self.opened, self.ticked = rest["opened"], rest["ticked"]
        self.inside, self._boundary = rest["inside"], self.step
        self.heals += 1
        self.buffers.adopt()
