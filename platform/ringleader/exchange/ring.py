"""Workers in a ring of equals: every worker gets the summed gradients and makes the same next weights."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from ringleader.comm.buckets import Bucket, Buckets
from ringleader.comm.communicator import BULK, Communicator, Ticket, end_process
from ringleader.comm.grouped import canonical_sum
from ringleader.comm.schedules.direct import DIRECT
from ringleader.comm.seal import Seal
from ringleader.comm.simulator import ClusterCosts
from ringleader.comm.timeline import NO_TIMELINE, Timeline
from ringleader.comm.transports import Transport
from ringleader.elastic import Plan
from ringleader.exchange.chosen import AUTO, IN_PLACE, NATIVE, ON_DEVICE, ScheduleChoice, told
from ringleader.exchange.coded_sums import CodedSums, Coding
from ringleader.exchange.exchange import Check, accept
from ringleader.exchange.local_sums import LocalSums
from ringleader.exchange.measured_costs import CostMeasurement
from ringleader.exchange.side_channel import BUCKETS, SideChannel
from ringleader.exchange.sparse_sums import SparseSums


class Ring:
    """The exchange of `sync: ring` over any schedule, or the library's own all-reduce. Alone it sends nothing.
    Implements Exchange.

    Args:
        algorithm: a registered schedule, `native`, or `auto`: in place where all members share memory, on the devices
            where each has its own, else for each bucket the schedule that is quickest by the measured costs.
        same_bits: one slice per logical shard, added in canonical order; else one merged slice per worker.
        transport: None for a world of one.
        coding: the codec of gradients; None: they are not coded.
        timeline: records what is exchanged and when.
    """

    updates = True
    part: list[Parameter] | None = None

    def __init__(
        self,
        *,
        plan: Plan,
        rank: int,
        algorithm: str,
        same_bits: bool,
        transport: Transport | None,
        buckets: Buckets,
        coding: Coding | None = None,
        timeline: Timeline = NO_TIMELINE,
    ) -> None:
        self._plan = plan
        self._algorithm = algorithm
        self._rank = rank
        self._same_bits = same_bits
        self._coding = coding
        self._transport = transport
        self._communicator = Communicator(transport, timeline) if transport is not None else None
        self._together = transport.together if transport is not None else None
        self._side = SideChannel(self._communicator)
        self._groups = transport.groups if transport is not None else ()
        self._tickets: list[Ticket] = []
        self._choice = ScheduleChoice(algorithm, same_bits=same_bits, on_devices=self._together is not None)
        self._closed = False
        self.lay(buckets)

    def lay(self, buckets: Buckets) -> None:
        self._buckets, transport = buckets, self._transport
        coding, world = self._coding, self._plan.world
        self._coded = CodedSums(coding, buckets, rank=self._rank, world=world) if coding else None
        self._mine = LocalSums(
            self._plan,
            self._rank,
            buckets,
            same_bits=self._same_bits,
            submit=self._submit,
            submit_rows=self._submit_rows,
            groups=self._groups,
        )
        self._board = (
            transport.board(len(buckets.buckets), self._mine.most_rows)
            if transport is not None and buckets.arena is not None and buckets.buckets
            else None
        )
        self._rows = SparseSums(
            self._communicator,
            buckets.tables,
            dict.fromkeys(buckets.tables.names, range(self._plan.world)),
            rank=self._rank,
            # Behind the tags of all buckets, which take two each.
            tag=BUCKETS + 2 * len(buckets.buckets),
            number=len(buckets.buckets),
        )
        self._choice.forget()

    @property
    def communicator(self) -> Communicator | None:
        return self._communicator

    @property
    def buckets(self) -> Buckets:
        return self._buckets

    @property
    def used(self) -> list[bool]:
        return self._buckets.used

    @property
    def exposed_s(self) -> float:
        return self._communicator.blocked_s if self._communicator else 0.0

    def begin_step(self, present: frozenset[int], stepped: Sequence[Parameter] | None = None) -> None:
        self._tickets = []
        if self._coded is not None:
            self._coded.begin_step()
        self._mine.begin_step(present, stepped)

    def begin_slice(self, shard: int) -> None:
        self._mine.begin_slice(shard)

    def end_slice(self) -> None:
        self._mine.end_slice()

    def meet(self, word: Tensor) -> Tensor:
        total, ticket = self._side.start_word(word)
        if self._communicator is not None and ticket is not None:
            self._communicator.wait([ticket])
        return total

    def finish(self, word: Tensor, check: Check = accept) -> Tensor:
        # The word first: a member elsewhere in the program sends no buckets, and `check` names it.
        total = self.meet(word)
        applied = check(total)
        if self._communicator is not None:
            self._communicator.wait(self._tickets)
        # A sum that is not applied has carried nothing over: what was owed is owed still.
        if self._coded is not None and applied:
            self._coded.end_step()
        self._buckets.expose()
        self._rows.expose()
        return total

    def complete(self, values: Tensor) -> Tensor:
        return values

    def publish(self) -> None:
        """Do nothing: everybody has made the weights already."""

    def all_reduce(self, values: Tensor) -> Tensor:
        return self._side.all_reduce(values)

    @property
    def seal(self) -> Seal:
        return self._side.seal

    def send_state(self, rank: int, payload: Tensor) -> None:
        self._side.send_state(rank, payload)

    def receive_state(self, rank: int) -> Tensor:
        return self._side.receive_state(rank)

    def measure(self, known: ClusterCosts | None = None) -> ClusterCosts | None:
        if self._communicator is None or self._algorithm != AUTO or not self._buckets.buckets:
            return known
        # Sums in place and on devices are not chosen by costs.
        if self._board is not None or self._together is not None:
            return known
        measurement = CostMeasurement(
            self._rank, self._groups, self._communicator, self._side, canonical=self._same_bits
        )
        return measurement.costs(known, self._buckets.buckets, self._mine.part)

    def go_by(self, costs: ClusterCosts | None) -> None:
        self._choice.go_by(costs)

    def chosen(self) -> dict[str, Any] | None:
        if self._communicator is None or not self._buckets.buckets:
            return None
        sized = [(self._way(b), b.length * b.like.element_size()) for b in self._buckets.buckets]
        return told(self._algorithm, sized, self._choice.costs if self._board is None else None)

    def abort(self) -> None:
        if self._communicator is not None:
            self._communicator.abort()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        ended = self._communicator is None or self._communicator.close()
        # This object is part of a reference cycle: what it holds is dropped now and not when the collector runs.
        self._communicator, self._transport, self._side = None, None, SideChannel(None)
        self._rows.close()
        in_place, self._board = self._board is not None, None
        if ended:
            return
        self._buckets.taint()
        if self._coded is not None:
            self._coded.abandon()
        # Own memory is given up above. What peers share with this process cannot be taken from it.
        if in_place:
            end_process(
                "a communication thread did not end; it may still write into the other members' memory"
            )

    def _submit(self, bucket: Bucket) -> None:
        if self._coded is not None and self._coded.takes(bucket):
            self._submit_coded(self._coded, bucket)
            return
        if self._communicator is None:
            return
        part = self._mine.part(bucket)
        # One at least: row 0 takes the result also where this rank brings no partial sum.
        count = max(1, len(part.rows[part.rank]))
        if self._board is not None and self._buckets.arena is not None:
            moves = bucket.move_home(count)
            ticket = self._communicator.submit_in_place(
                self._board, part, moves, self._buckets.arena, bucket=bucket.number
            )
            self._tickets.append(ticket)
            return
        rows = [bucket.row(k) for k in range(count)]
        on_device = self._choice.on_device(bucket)
        if on_device == ON_DEVICE and self._together is not None:
            together = self._together.exchange
            ticket = self._communicator.submit_call(
                lambda scratch, _: canonical_sum(part, rows, scratch, together),
                rows,
                phase="reduce",
                bucket=bucket.number,
                schedule=on_device,
            )
        elif NATIVE in {self._algorithm, on_device}:
            if not part.rows[part.rank]:
                # The library adds every rank's row, also that of a rank without a partial sum.
                rows[0].zero_()
            ticket = self._communicator.submit_native(rows[0], phase="reduce", bucket=bucket.number)
        else:
            tag = BUCKETS + 2 * bucket.number
            schedule, steps = self._choice.steps(part, bucket)
            ticket = self._communicator.submit(
                steps, rows, tag=tag, phase="reduce", bucket=bucket.number, lane=BULK, schedule=schedule
            )
        self._tickets.append(ticket)

    def _submit_rows(self) -> None:
        self._tickets += self._rows.push(self._mine)

    def _submit_coded(self, coded: CodedSums, bucket: Bucket) -> None:
        if self._communicator is None:
            coded.alone(bucket)
            return
        part = self._mine.part(bucket)
        row = bucket.row(0)
        if not part.rows[part.rank]:
            # Its message is added like all others, and the row has what an earlier step left.
            row.zero_()
        work = coded.work(bucket, BUCKETS + 2 * bucket.number)
        self._tickets.append(
            self._communicator.submit_call(
                work, [row], phase="reduce", bucket=bucket.number, schedule=self._way(bucket)
            )
        )

    def _way(self, bucket: Bucket) -> str:
        """The name of what will sum the bucket."""
        if self._coded is not None and self._coded.takes(bucket):
            return f"{DIRECT.name}, {self._coded.codec}"
        if self._board is not None:
            return IN_PLACE
        return self._choice.on_device(bucket) or self._choice.schedule(self._mine.part(bucket), bucket)
