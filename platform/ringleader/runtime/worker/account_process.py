"""The process of a member under another account: started by `account_actor.py`, it trains and runs the user's program.

It is of this account from its first instruction, with nothing of its parent's but one socket. From its actor, which it
trusts, it takes pickled calls; it answers in plain values (`plain_values.py`). Without its actor it ends.
"""

import os
import queue
import resource
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ringleader.lifeline import end_with_parent, renounce_rights
from ringleader.runtime.messages import (
    GONE_S,
    WORKER_THREADS,
    Heartbeat,
    IndexAnswer,
    MemberTask,
    ParkMessage,
    ProcessIdentity,
    RunEnded,
    SecretsAnswer,
)
from ringleader.runtime.worker import plain_values

if TYPE_CHECKING:
    from ringleader.runtime.worker.member import MemberProcess

ANSWER_S = 2 * GONE_S
"""Longer than the actor itself waits, which is `GONE_S`."""
WITHOUT_ACTOR = 71


def main(descriptor: int, parent: int) -> None:
    """Be the member that comes over the socket, until the actor ends this process."""
    _bind(parent)
    from ringleader.runtime.nodes.imports import import_all_but_ray

    import_all_but_ray()
    line = _Line(Connection(descriptor))
    line.say("ready")
    task, package, identity = line.first()
    line.say("ended", _ended(line, task, package, identity))
    threading.Event().wait()  # others may still be in memory of this process; the actor ends it


def _bind(parent: int) -> None:
    """Renounce more rights than this process has, whichever program it runs, and have it die with its parent."""
    if not renounce_rights():
        raise OSError("the kernel does not let this process give up its rights")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end_with_parent()
    if os.getppid() != parent:
        os._exit(WITHOUT_ACTOR)  # lost before it could be asked for the signal


def _ended(line: "_Line", task: MemberTask, package: bytes | None, identity: ProcessIdentity) -> RunEnded:
    from ringleader.runtime.nodes.notices import on_sigterm
    from ringleader.runtime.worker.heartbeat import HeartbeatThread
    from ringleader.runtime.worker.member import MemberProcess

    on_sigterm(lambda: None)  # who ends all processes of a node asks the actor too: it speaks for both
    heartbeat_thread = HeartbeatThread()
    member = MemberProcess(task, identity, line, heartbeat_thread)
    line.serve(member)
    return member.run(package)


class _Line:
    """The socket to the actor: the `SupervisorLink` of the member in here."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._number = 0
        self._open: dict[int, queue.SimpleQueue[Any]] = {}

    def say(self, kind: str, *values: Any) -> None:
        told = plain_values.frame(kind, *values)
        with self._sending:
            self._connection.send_bytes(told)

    def first(self) -> tuple[MemberTask, bytes | None, ProcessIdentity]:
        """The member's task, package and identity. Ends this process where the actor is gone."""
        try:
            found: tuple[MemberTask, bytes | None, ProcessIdentity] = self._connection.recv()
        except (OSError, EOFError):
            os._exit(WITHOUT_ACTOR)
        return found

    def serve(self, member: "MemberProcess") -> None:
        """Take the actor's calls from now on."""
        threading.Thread(target=self._hear, args=(member,), name="actor", daemon=True).start()

    # --- SupervisorLink -------------------------------------------------------------------------------------------

    def parked(self, park_message: ParkMessage) -> None:
        self.say("parked", park_message)

    def seated(self, worker: str, generation: int) -> None:
        self.say("seated", generation)

    def in_sync(self, worker: str, pair: int) -> None:
        self.say("in_sync", pair)

    def beat(self, beat: Heartbeat) -> int | None:
        answer: int | None = self._ask("beat", beat)
        return answer

    def secrets(self) -> SecretsAnswer | None:
        answer: SecretsAnswer | None = self._ask("secrets")
        return answer

    def index(self, worker: str, name: str) -> IndexAnswer | None:
        answer: IndexAnswer | None = self._ask("index", name)
        return answer

    def index_made(self, worker: str, name: str, index: bytes | None) -> None:
        self.say("index_made", name, index)

    # --------------------------------------------------------------------------------------------------------------

    def _ask(self, kind: str, *values: Any) -> Any:
        """The actor's answer; None where it does not come in time."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._sending:
            self._number += 1
            number = self._number
        # Before the question: the answer comes on another thread.
        self._open[number] = answer
        try:
            self.say(kind, number, *values)
            return answer.get(timeout=ANSWER_S)
        except (queue.Empty, OSError):
            return None
        finally:
            del self._open[number]

    def _hear(self, member: "MemberProcess") -> None:
        words: dict[str, Callable[..., None]] = {
            "take": member.seats.take,
            "interrupt": member.seats.interrupt,
            "announce": member.seats.announce,
            "follow": member.seats.follow,
            "donate": member.seats.donate,
            "dismiss": member.seats.dismiss,
            "answer": self._answered,
            "attendance": lambda number: self.say("attendance", number, member.attendance()),
        }
        pool = ThreadPoolExecutor(WORKER_THREADS, "word")
        with suppress(OSError, EOFError):
            while True:  # as those of an actor: no call waits for another
                word, *values = self._connection.recv()
                pool.submit(words[word], *values)
        os._exit(WITHOUT_ACTOR)

    def _answered(self, number: int, answer: Any) -> None:
        if (waiting := self._open.get(number)) is not None:
            waiting.put(answer)
