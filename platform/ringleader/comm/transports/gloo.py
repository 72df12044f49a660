"""Transfers over torch's gloo (TCP): a process group of its own for every generation, made and dropped in milliseconds.

gloo ends a wait only when the connection breaks or the deadline passes; its own `abort` and `shutdown` leave a blocked
thread blocked and the sockets open (torch 2.13). So the transport keeps duplicates of its generation's sockets and
shuts them down itself: that ends the waits on both sides at once, also those of peers that wait for this member.

All but one kind: of a message that has partly been written, or read, gloo tells nobody that its connection broke (its
`Pair::signalException` goes through the messages that have not begun). Whoever waits for that one is left behind, see
`Communicator.close`; gloo has closed the socket and touches no memory any more.
"""

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo

from ringleader.comm.seal import TAG_BYTES, Seal, nonce
from ringleader.comm.transports import sockets
from ringleader.comm.transports.transport import Work
from ringleader.comm.transports.words import MemberStore
from ringleader.errors import ExchangeBroken, WordRefused

PEER = b"peer"


@dataclass(frozen=True, slots=True)
class _Listens:
    """A member's announcement before anybody connects: its ports, and the nonce over which everybody has to give
    proof."""

    ports: list[int]
    asked: bytes

    @staticmethod
    def decode(told: bytes) -> "_Listens":
        ports, asked = told.decode().split(" ")
        return _Listens([int(port) for port in ports.split(",") if port], bytes.fromhex(asked))

    def encode(self) -> str:
        return f"{','.join(map(str, self.ports))} {self.asked.hex()}"


@dataclass(slots=True)
class _GlooWork:
    """A transfer of a gloo group; an error or a missed deadline counts as the loss of the peer."""

    owner: "GlooTransport"
    work: Any
    peer: int
    tensor: Tensor

    def wait(self) -> None:
        try:
            self.work.wait(self.owner.deadline)
            return
        except RuntimeError as error:
            why = first_line(error)
        # Raised outside the handler: a chained traceback would keep the broken group's sockets open.
        raise self.owner.broken(self.peer, why)


class GlooTransport:
    """One member's end of one generation. Made by `join`. Implements Transport."""

    shared = False
    together = None

    def __init__(
        self,
        group: ProcessGroupGloo,
        duplicates: list[socket.socket],
        deadline_s: float,
        rank: int,
        size: int,
        *,
        seal: Seal,
        groups: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        self.groups = groups
        self.rank = rank
        self.size = size
        self.seal = seal
        self.deadline = timedelta(seconds=deadline_s)
        self._group: Any = group
        self._duplicates = duplicates
        self._closing = threading.Lock()
        self.over = ""

    @staticmethod
    def join(
        words: MemberStore,
        rank: int,
        size: int,
        deadline_s: float,
        host: str,
        *,
        groups: tuple[tuple[int, ...], ...] = (),
    ) -> "GlooTransport":
        """Connect to every other member; all of them call this.

        Args:
            words: the generation's part of the store.
            host: the address of this node that the others can reach.
            groups: the ranks of each node; empty where they are not known.

        Raises:
            RuntimeError, OSError: a member did not come within the store's deadline.
            WordRefused: a peer that connected is no member.
        """
        gloo: Any = ProcessGroupGloo  # its stubs know neither the options nor send and recv
        # Taken before gloo opens anything: sockets that are new afterwards are this generation's.
        before = sockets.descriptors()
        device = gloo.create_device(hostname=host)
        own, asked = sockets.listening_ports(before), nonce()
        words.set(f"listens/{rank}", _Listens(own, asked).encode())
        told = _told(words, [r for r in range(size) if r != rank])
        foreign = {port for peer in told.values() for port in peer.ports}
        # On the device made above: the others have been told its ports.
        group = gloo(words, rank, size, _options(device, deadline_s))
        # The constructor has waited for everybody: all connections of this generation are there now.
        duplicates = sockets.connections(before, set(own), foreign)
        transport = GlooTransport(group, duplicates, deadline_s, rank, size, seal=words.seal, groups=groups)
        try:
            # Before all else: gloo accepts whoever connects to its port with the number that it waits for.
            transport.prove(asked, {peer: listens.asked for peer, listens in told.items()})
        except BaseException:
            transport.close()
            raise
        return transport

    def prove(self, asked: bytes, theirs: Mapping[int, bytes]) -> None:
        """Send every peer the proof that it asked for, and check theirs.

        Args:
            asked: this member's nonce.
            theirs: those of its peers.

        Raises:
            WordRefused: one of them does not have the secret.
            OSError: one of them is gone.
        """
        proofs = [_tensor(self.seal.tag(PEER, _way(self.rank, peer), theirs[peer])) for peer in theirs]
        came = [torch.empty(TAG_BYTES, dtype=torch.uint8) for _ in theirs]
        why = ""
        try:
            works = [self.isend(proof, peer, 0) for proof, peer in zip(proofs, theirs, strict=True)]
            works += [self.irecv(tensor, peer, 0) for tensor, peer in zip(came, theirs, strict=True)]
            for work in works:
                work.wait()
        except ExchangeBroken as error:
            why = error.why
        # Outside the handler, for the same reason as in `_GlooWork.wait`.
        if why:
            raise OSError(why)
        for peer, proof in zip(theirs, came, strict=True):
            if not self.seal.fits(proof.numpy().tobytes(), PEER, _way(peer, self.rank), asked):
                raise WordRefused(f"peer/{peer}")

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._begin(lambda group: group.send([tensor], peer, tag), peer, tensor)

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._begin(lambda group: group.recv([tensor], peer, tag), peer, tensor)

    def native_all_reduce(self, tensor: Tensor) -> Work:
        return self._begin(lambda group: group.allreduce([tensor]), -1, tensor)

    def board(self, slots: int, rows: int) -> None:
        return None

    def broken(self, peer: int, why: str) -> ExchangeBroken:
        # The own reason first: after `abort` the library only says that a connection was closed.
        return ExchangeBroken(rank=peer, phase="transfer", bucket=None, why=self.over or why)

    def abort(self) -> None:
        self._end("the generation was given up")

    def close(self) -> None:
        self._end("the transport is closed")

    def _begin(self, start: Callable[[Any], Any], peer: int, tensor: Tensor) -> Work:
        # A local reference: another thread may drop the group meanwhile.
        group = self._group
        if group is None:
            raise self.broken(peer, self.over)
        try:
            return _GlooWork(self, start(group), peer, tensor)
        except RuntimeError as error:
            why = first_line(error)
        # The error's traceback holds this frame, and through it would hold the group's sockets.
        del group
        raise self.broken(peer, why)

    def _end(self, why: str) -> None:
        with self._closing:
            self.over = self.over or why
            duplicates, self._duplicates = self._duplicates, []
            self._group = None
        for duplicate in duplicates:
            sockets.hang_up(duplicate)


def _told(words: MemberStore, others: Sequence[int]) -> dict[int, _Listens]:
    said = words.read([f"listens/{r}" for r in others])
    return dict(zip(others, map(_Listens.decode, said), strict=True))


def _options(device: Any, deadline_s: float) -> Any:
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [device]
    options._timeout = timedelta(seconds=deadline_s)
    return options


def _way(sender: int, receiver: int) -> bytes:
    # The direction is under the tag, so that nobody can send a member's proof back to it as its own.
    return f"{sender} to {receiver}".encode()


def _tensor(proof: bytes) -> Tensor:
    return torch.frombuffer(bytearray(proof), dtype=torch.uint8)


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
