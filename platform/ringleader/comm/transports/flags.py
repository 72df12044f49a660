"""Waits for another process's word in shared memory: spin, then sleep, and look whether the peer still lives.

Words are aligned int64 in shared memory. This relies on two things: a store of one is seen whole, and stores of one
process are seen by others in their order (x86-64's total store order). Elsewhere `SUPPORTED` is false and nothing is
shared.
"""

import os
import platform
import select
import time
from collections.abc import Callable, Iterable, Sequence

from ringleader.errors import ExchangeBroken

SUPPORTED = platform.machine() in {"x86_64", "AMD64"} and hasattr(os, "memfd_create")
SPINS = 200
"""Yields of the processor before the first sleep, about 100 µs. There may be fewer cores than waiting threads."""
FIRST_NAP_S, LONGEST_NAP_S = 20e-6, 1e-3


class Peers:
    """The other processes of a generation: whether one has left, and waits that end when it does.

    Args:
        rank: this member's.
        over: per rank, the words of its control segment, of which word `OVER` says that it has left.
        pids: per rank; 0 where that rank shares no memory with this one.

    Attributes:
        why: why this member has left; empty before.
    """

    OVER = 1

    def __init__(self, rank: int, over: Sequence[memoryview], pids: Sequence[int], deadline_s: float) -> None:
        self._rank = rank
        self._controls = over
        self._deadline_s = deadline_s
        self.why = ""
        self._closed = False
        self._lives: list[int] = []
        try:
            for peer, pid in enumerate(pids):
                # A pidfd stands for this very process: its number may be given to another one.
                self._lives.append(os.pidfd_open(pid) if pid and peer != rank else -1)
        except OSError:
            self.close()
            raise

    @property
    def over(self) -> bool:
        return bool(self.why)

    def leave(self, why: str) -> None:
        """End this member's waits and those of everybody who waits for it; from any thread, idempotent."""
        self.why = self.why or why
        self._controls[self._rank][self.OVER] = 1

    def close(self) -> None:
        """Close the handles of the peers' processes, once no thread waits any more; idempotent."""
        if not self._closed:
            self._closed = True
            for life in self._lives:
                if life >= 0:
                    os.close(life)

    def check(self) -> None:
        """Raise ExchangeBroken once this member has left."""
        if self.why:
            raise self.broken(self._rank, self.why)

    def check_all(self, peers: Iterable[int]) -> None:
        """Raise ExchangeBroken once this member or one of these has left, so that nothing of theirs is written to."""
        self.check()
        for peer in peers:
            self.check_stays(peer)

    def check_stays(self, peer: int) -> None:
        """Raise ExchangeBroken once `peer` has left."""
        # What it had open may be closed by now.
        if why := self._left(peer):
            raise self.broken(peer, why)

    def wait(
        self,
        words: memoryview,
        index: int,
        value: int,
        peer: int,
        patience_s: float | None = None,
        *,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Wait until words[index] >= value.

        Args:
            patience_s: seconds to wait instead of the generation's deadline.
            meanwhile: called again and again while the wait lasts.

        Raises:
            ExchangeBroken: `peer` left or died, `leave` was called, or the deadline passed.
        """
        for _ in range(SPINS):
            if words[index] >= value:
                return
            if self.why:  # on a crowded machine 200 turns take seconds
                break
            os.sched_yield()
        patience_s = self._deadline_s if patience_s is None else patience_s
        self._wait_asleep(words, index, value, peer, patience_s=patience_s, meanwhile=meanwhile)

    def _wait_asleep(
        self,
        words: memoryview,
        index: int,
        value: int,
        peer: int,
        *,
        patience_s: float,
        meanwhile: Callable[[], None] | None,
    ) -> None:
        """Go on with `wait` after the spins: sleep between looks, a little longer each time."""
        until = time.monotonic() + patience_s
        nap_s = FIRST_NAP_S
        while words[index] < value:
            self.check()
            # Whether a process has ended takes a system call, too dear between the shortest naps.
            why = self._gone(peer) if nap_s == LONGEST_NAP_S else self._left(peer)
            # Looked at again: what the peer wrote before it left counts.
            if words[index] >= value:
                return
            if why or time.monotonic() > until:
                raise self.broken(peer, why or f"no answer within {patience_s} s")
            if meanwhile is not None:
                meanwhile()
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, LONGEST_NAP_S)

    def broken(self, peer: int, why: str) -> ExchangeBroken:
        # The own reason first: a peer that looks gone may have left because this member did.
        return ExchangeBroken(rank=peer, phase="transfer", bucket=None, why=self.why or why)

    def _left(self, peer: int) -> str:
        return "the peer has left the generation" if self._controls[peer][self.OVER] else ""

    def _gone(self, peer: int) -> str:
        return "the peer's process has ended" if self._dead(peer) else self._left(peer)

    def _dead(self, peer: int) -> bool:
        death = select.poll()  # of this call alone: a poll object serves one thread at a time
        death.register(self._lives[peer], select.POLLIN)
        return bool(death.poll(0))
