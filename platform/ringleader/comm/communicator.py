"""The communication threads of one generation: exchanges run there while the training thread computes.

A communicator lives as long as its generation. The first error ends it: the transport is aborted at once, so that
peers waiting for this member learn of it in milliseconds, and every later call raises the same error.
"""

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from ringleader.comm.executor import Scratch, execute
from ringleader.comm.schedules import RankPart, Step
from ringleader.comm.segments import Arena
from ringleader.comm.timeline import BUCKETS, NO_TIMELINE, TRAINING, WORDS, Timeline
from ringleader.comm.transports import SharedSums, Transport
from ringleader.errors import ExchangeBroken

BULK, EXPRESS = 0, 1
"""The two lanes: BULK for buckets in their order, EXPRESS for words, small sums and state beside them."""

LANES = (BUCKETS, WORDS)
"""The lanes' names in a timeline."""

JOIN_S = 2.0
"""The patience with lanes that end, where they may be writing into memory that peers share."""
OWN_JOIN_S = 0.1
"""The same where they write into this process's memory alone, which is given up with them."""
LOOK_S = 0.05
"""How often a wait looks whether the transport has ended. One that is half done with a message may not say so."""
EX_SOFTWARE = 70  # as in sysexits.h


class Ticket:
    """A handle for one exchange on a lane."""

    __slots__ = ("bucket", "finished", "nbytes", "phase", "schedule")

    def __init__(self, phase: str, bucket: int | None, nbytes: int = 0, schedule: str = "") -> None:
        self.phase = phase
        self.bucket = bucket
        self.nbytes = nbytes
        self.schedule = schedule
        self.finished = False

    def finish(self) -> None:
        self.finished = True


Job = tuple[Ticket, Callable[[Scratch], None]]


class Communicator:
    """The lanes over one transport. `submit`, `wait`, `close` belong to the training thread, `abort` to any.

    Args:
        timeline: records what the lanes do and how long the training thread is blocked.
    """

    def __init__(self, transport: Transport, timeline: Timeline = NO_TIMELINE) -> None:
        self.rank = transport.rank
        self.size = transport.size
        self.seal = transport.seal
        self.blocked_s = 0.0
        self._transport = transport
        self._timeline = timeline
        self._changed = threading.Condition()
        self._error: ExchangeBroken | None = None
        self._unfinished = 0
        self._queues: list[queue.SimpleQueue[Job | None]] = [queue.SimpleQueue() for _ in (BULK, EXPRESS)]
        self._threads = [
            # Daemons: a lane that waits for a peer must not keep the process from ending.
            threading.Thread(target=self._serve, args=(q, lane), name=f"ringleader-comm-{lane}", daemon=True)
            for lane, q in enumerate(self._queues)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        steps: Sequence[Step],
        rows: Sequence[Tensor],
        *,
        tag: int,
        phase: str,
        bucket: int | None,
        lane: int,
        schedule: str = "",
    ) -> Ticket:
        """Start a schedule's steps on `rows`, which belong to the lane until `wait` returns."""

        def run(scratch: Scratch) -> None:
            execute(steps, rows, scratch, self._transport, tag)

        return self._submit(_behind(rows, run), Ticket(phase, bucket, rows[0].nbytes, schedule), lane)

    def submit_call(
        self,
        act: Callable[[Scratch, Transport], None],
        rows: Sequence[Tensor],
        *,
        phase: str,
        bucket: int | None,
        schedule: str = "",
        lane: int = BULK,
    ) -> Ticket:
        """Start an exchange other than a schedule on `rows`, which belong to the lane until `wait` returns."""

        def run(scratch: Scratch) -> None:
            act(scratch, self._transport)

        size_bytes = sum(row.nbytes for row in rows)
        return self._submit(_behind(rows, run), Ticket(phase, bucket, size_bytes, schedule), lane)

    def beside(self, act: Callable[[Transport], None], *, phase: str) -> Ticket:
        """Start an exchange of any length on a thread of its own, where its waits block no lane."""
        self.check()
        ticket = Ticket(phase, None)
        with self._changed:
            self._unfinished += 1
        thread = threading.Thread(
            target=self._run_beside, args=(ticket, act), name=f"ringleader-{phase}", daemon=True
        )
        # Threads that have ended are dropped, or a long generation would collect them.
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()
        return ticket

    def check(self) -> None:
        """Raise ExchangeBroken once this generation is over."""
        # Read without the lock: an error is set once and never taken back.
        if self._error is not None:
            raise _again(self._error)

    def submit_native(self, row: Tensor, *, phase: str, bucket: int) -> Ticket:
        """Start the library's own all-reduce on `row`."""

        def run(_: Scratch) -> None:
            self._transport.native_all_reduce(row).wait()

        return self._submit(_behind([row], run), Ticket(phase, bucket, row.nbytes, "native"), BULK)

    def submit_in_place(
        self,
        board: SharedSums,
        part: RankPart,
        moves: Sequence[tuple[Tensor, Tensor]],
        arena: Arena,
        *,
        bucket: int,
    ) -> Ticket:
        """Start a sum in shared memory.

        Args:
            moves: (row, its home in the arena) of every row; the result will lie in the first home.
        """
        homes = [home for _, home in moves]
        addresses = [arena.address(home) for home in homes]

        def run(_: Scratch) -> None:
            for row, home in moves:
                if row is not home:
                    home.copy_(row)
            board.reduce(bucket, part, homes, addresses)

        return self._submit(run, Ticket("reduce", bucket, homes[0].nbytes, "in_place"), BULK)

    def submit_act(self, act: Callable[[], None], *, phase: str, bucket: int | None) -> Ticket:
        """Start any call that waits for peers, in its order among the buckets."""
        return self._submit(lambda _: act(), Ticket(phase, bucket), BULK)

    def wait(self, tickets: Sequence[Ticket]) -> None:
        """Block until all tickets are done.

        Raises:
            ExchangeBroken: a peer is lost, a deadline passed, or `abort` was called; without delay.
        """
        since = time.perf_counter()
        try:
            with self._changed:
                while self._error is None and not all(t.finished for t in tickets):
                    self._changed.wait(LOOK_S)
                    self._look()
                error = self._error
        finally:
            until = time.perf_counter()
            self.blocked_s += until - since
            self._timeline.add(TRAINING, "exposed", since, until)
        if error is not None:
            raise _again(error)

    @contextmanager
    def as_one(self, name: str) -> Iterator[None]:
        """Record everything exchanged meanwhile as one span of the timeline."""
        # One by one, thousands of transfers would leave no room for those of the steps.
        timeline, self._timeline = self._timeline, NO_TIMELINE
        since, blocked_s = time.perf_counter(), self.blocked_s
        try:
            yield
        finally:
            self._timeline, until = timeline, time.perf_counter()
            timeline.add(TRAINING, name, since, until)
            # In one piece at the end: of the single waits only the sum is known here.
            timeline.add(TRAINING, "exposed", until - (self.blocked_s - blocked_s), until)

    def done(self, ticket: Ticket, patience_s: float = 0.0) -> bool:
        """Whether an exchange is done, after waiting up to `patience_s` for it. Raises ExchangeBroken like `wait`."""
        since = time.perf_counter()
        with self._changed:
            if not ticket.finished and self._error is None and patience_s > 0:
                # Once, not in a loop: woken for another ticket it returns early, and callers ask again.
                self._changed.wait(patience_s)
                self.blocked_s += time.perf_counter() - since
                self._look()
            error, finished = self._error, ticket.finished
        if error is not None:
            raise _again(error)
        return finished

    def abort(self) -> None:
        self._break(
            ExchangeBroken(rank=self.rank, phase="abort", bucket=None, why="the generation was given up")
        )

    def close(self) -> bool:
        """End the lanes and the connections; idempotent.

        Returns:
            whether the lanes have ended, so that no transfer can touch the memory that was handed to them.
        """
        # Behind all jobs: a lane in good order finishes what it has before it ends.
        for lane in self._queues:
            lane.put(None)
        if self._error is not None or self._unfinished:
            # Left in the middle of a step: a lane may be waiting for a peer.
            self._transport.abort()
        # For all threads together, so that more of them do not make closing take longer.
        until = time.monotonic() + (JOIN_S if self._transport.shared else OWN_JOIN_S)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        # Behind the join: until then lanes that finish their jobs need the connections.
        self._transport.close()
        return not any(thread.is_alive() for thread in self._threads)

    def _submit(self, run: Callable[[Scratch], None], ticket: Ticket, lane: int) -> Ticket:
        self.check()
        with self._changed:
            self._unfinished += 1
        # Behind the count: the lane may be done with it at once.
        self._queues[lane].put((ticket, run))
        return ticket

    def _serve(self, jobs: "queue.SimpleQueue[Job | None]", lane: int) -> None:
        scratch = Scratch()
        # After a break the jobs that are left are not begun: the transport has ended for both lanes.
        while (job := jobs.get()) is not None and self._error is None:
            ticket, run = job
            since = time.perf_counter()
            error = _attempt(ticket, run, scratch, self.rank)
            # Otherwise they would hold a bucket's tensors while this thread waits for the next job.
            del job, run
            # Read once: `as_one` takes the timeline away meanwhile.
            if (timeline := self._timeline).on:
                _write_down(timeline, lane, ticket, since, error)
            if error is not None:
                self._break(error)
                return
            self._finished(ticket)

    def _run_beside(self, ticket: Ticket, act: Callable[[Transport], None]) -> None:
        error = _attempt(ticket, lambda _: act(self._transport), Scratch(), self.rank)
        if error is not None:
            self._break(error)
        else:
            self._finished(ticket)

    def _finished(self, ticket: Ticket) -> None:
        with self._changed:
            ticket.finish()
            self._unfinished -= 1
            self._changed.notify_all()

    def _look(self) -> None:
        """End this communicator with its transport, whose lanes may wait on. Called with the lock held."""
        # Whoever gave the generation up has ended the transport; the lanes are not told where gloo tells nobody.
        if self._error is None and (why := self._transport.over):
            self._error = ExchangeBroken(rank=self.rank, phase="abort", bucket=None, why=why)

    def _break(self, error: ExchangeBroken) -> None:
        with self._changed:
            # The first error counts: those that follow are its consequences.
            if self._error is None:
                self._error = error
            self._changed.notify_all()
        # Behind the notice and outside its lock: nobody who waits for a ticket waits for the sockets to end.
        self._transport.abort()


def end_process(why: str) -> NoReturn:
    """End this process, which could harm the others by staying: the member is lost, and a loss costs nothing."""
    print(f"ringleader: this process exits: {why}", file=sys.stderr, flush=True)
    # Without exit handlers, at once: the thread that did not end may be writing into peers' memory.
    os._exit(EX_SOFTWARE)


def _attempt(
    ticket: Ticket, run: Callable[[Scratch], None], scratch: Scratch, rank: int
) -> ExchangeBroken | None:
    """Run a job; returns its error, made anew."""
    try:
        run(scratch)
        return None
    except ExchangeBroken as error:
        # Not the error itself: its traceback would keep the transfers' memory and sockets alive.
        rank, why = error.rank, error.why
    # Of any kind: a lane that ended without notice would leave the training thread waiting.
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    return ExchangeBroken(rank=rank, phase=ticket.phase, bucket=ticket.bucket, why=why)


def _write_down(
    timeline: Timeline, lane: int, ticket: Ticket, since: float, error: ExchangeBroken | None
) -> None:
    facts: dict[str, Any] = {"phase": ticket.phase, "bytes": ticket.nbytes}
    facts |= {"schedule": ticket.schedule} if ticket.schedule else {}
    facts |= {"broken": error.why} if error is not None else {}
    name = ticket.phase if ticket.bucket is None else f"bucket {ticket.bucket}"
    timeline.add(LANES[lane], name, since, time.perf_counter(), **facts)


def _again(error: ExchangeBroken) -> ExchangeBroken:
    # Anew for each raise, which adds its frames, and the tensors in them, to an error's traceback.
    return ExchangeBroken(rank=error.rank, phase=error.phase, bucket=error.bucket, why=error.why)


def _behind(rows: Sequence[Tensor], run: Callable[[Scratch], None]) -> Callable[[Scratch], None]:
    """`run` behind the device's pending work on `rows`; on the CPU `run` itself."""
    if not rows or not rows[0].is_cuda:
        return run
    made: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    # On the caller's thread: the event stands behind the kernels that its stream has been given so far.
    made.record()

    def run_behind(scratch: Scratch) -> None:
        made.synchronize()
        # One of its own: on the caller's it would wait for all that this is given meanwhile, as the rest of a backward.
        stream = scratch.stream(rows[0].device)
        try:
            with torch.cuda.stream(stream):
                run(scratch)
        finally:
            # Whoever waits for the ticket may use the rows on any stream, and one that breaks may use them again.
            stream.synchronize()

    return run_behind
