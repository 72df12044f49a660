"""Turns of systems: all sides stay up, and one block of steps after the other is measured, ours and theirs by turns."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ringleader.bench.broken import PeerFailed
from ringleader.bench.processes.children import Child

LOOPBACK = "127.0.0.1"
END, GO = "end", "go"
POLL_S = 0.02
WARM_STEPS = 2
"""The first steps after a pause find cold caches; they are not counted."""


class Turnstile:
    """A worker's side: `at(step)` at the start of every step waits for this side's turn."""

    def __init__(self, store: TCPStore, side: str, rank: int, block_steps: int) -> None:
        self._store = store
        self._prefix = f"{side}/{rank}"
        self._side = side
        self._block_steps = block_steps
        self._block = 0
        self._step = -1
        self._starts: list[float] = []

    def at(self, step: int) -> bool:
        """Wait for this side's turn. Returns whether the measurement is over, and this step the last."""
        # A step's body runs for each of this worker's slices; only the first one begins a step.
        if step == self._step:
            return False
        self._step = step
        self._starts.append(time.perf_counter())
        if 0 < len(self._starts) <= self._block_steps:
            return False
        return self._next_block()

    def ready(self) -> None:
        """Report that everything is built and warm; the next call of `at` waits. A repetition changes nothing: a step's
        body runs for each of its slices."""
        if self._starts:
            return
        self._store.set(f"{self._prefix}/ready", "1")
        # As after a full block, so that the next call of `at` waits for a turn; block 0 is not reported.
        self._starts = [0.0] * self._block_steps

    def _next_block(self) -> bool:
        """Report the steps of the block that has ended, wait for the next."""
        starts = self._starts[WARM_STEPS:]
        if self._block:
            steps = [b - a for a, b in pairwise(starts)]
            self._store.set(f"{self._prefix}/done/{self._block}", json.dumps(steps))
        self._block += 1
        word = self._store.get(f"{self._side}/turn/{self._block}")
        self._starts = [time.perf_counter()]
        return bool(word.decode() == END)


@dataclass(frozen=True, slots=True)
class Side:
    """One system: its name, and the module and arguments of each of its workers.

    Attributes:
        servers: processes behind the workers, which take no turns.
    """

    name: str
    module: str
    arguments: Sequence[str]
    servers: int = 0


class Court:
    """The parent's side: starts the workers of every side and lets them measure by turns."""

    def __init__(self, store: TCPStore, world: int, children: dict[str, list[Child]]) -> None:
        self._store = store
        self._world = world
        self._children = children
        self._block = dict.fromkeys(children, 0)

    def block(self, side: str, deadline_s: float) -> list[float]:
        """One block of one side: seconds of each counted step, as rank 0 saw them."""
        self._block[side] += 1
        number = self._block[side]
        self._store.set(f"{side}/turn/{number}", GO)
        for rank in range(self._world):
            self._await(side, f"{side}/{rank}/done/{number}", deadline_s)
        steps: list[float] = json.loads(self._store.get(f"{side}/0/done/{number}"))
        return steps

    def ready(self, deadline_s: float) -> None:
        for side in self._children:
            for rank in range(self._world):
                self._await(side, f"{side}/{rank}/ready", deadline_s)

    def finish(self, deadline_s: float) -> dict[str, list[dict[str, object]]]:
        """Let every side end by itself. Returns the answers of each one's rank 0."""
        for side in self._children:
            self._store.set(f"{side}/turn/{self._block[side] + 1}", END)
        ended = {
            side: [child.answers(deadline_s) for child in children]
            for side, children in self._children.items()
        }
        return {side: answers[0] for side, answers in ended.items()}

    def _await(self, side: str, key: str, deadline_s: float) -> None:
        until = time.monotonic() + deadline_s
        # Polled: a blocking `get` would wait out its deadline where a worker has died.
        while not self._store.check([key]):
            for child in self._children[side]:
                child.check()
            if time.monotonic() > until:
                tails = "\n".join(child.tail() for child in self._children[side])
                raise PeerFailed(f"{side} did not reach {key} within {deadline_s:g} s:\n{tails}")
            time.sleep(POLL_S)


@contextmanager
def court(sides: Sequence[Side], world: int, deadline_s: float) -> Iterator[Court]:
    """Start `world` workers a side, each one thread; all are ended when the block is left."""
    # Without waiting: those that connect are started below, and by default the constructor waits for them.
    store = TCPStore(
        LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=deadline_s)
    )
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with ExitStack() as stack:
        children: dict[str, list[Child]] = {}
        for side in sides:
            common = [f"--side={side.name}", f"--port={store.port}", f"--world={world}", *side.arguments]
            children[side.name] = [
                stack.enter_context(Child(side.module, [*common, f"--rank={rank}"], threads))
                for rank in range(world + side.servers)
            ]
        opened = Court(store, world, children)
        opened.ready(deadline_s)
        yield opened
