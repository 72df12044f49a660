"""Transfers among processes of one node through shared memory: no socket, no lock between processes.

Every member owns a control segment: a queue of posts to each other member, and marks that tell each other member which
of its posts have been taken. A message is copied into a segment of its sender, where it lies until it is taken; so a
send is done at once, and `close` waits for the takers. Sums of buckets need no message at all: see `board`.
"""

import json
import os
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ringleader.comm.seal import WITHIN, Seal
from ringleader.comm.segments import WORD_BYTES, Address, Arena, Key, Segment
from ringleader.comm.transports.board import Board
from ringleader.comm.transports.flags import Peers
from ringleader.comm.transports.transport import Work
from ringleader.errors import ExchangeBroken

NONCE, BOARD, BOARD_DESCRIPTOR, BOARDS, HEAD_WORDS = 0, 2, 3, 4, 8
"""The head of a control segment: the member's nonce, `Peers.OVER`, the board's key once there is one, and the number of
boards so far."""

POSTS = 1024
"""The most posts to one member that may wait to be taken; a further one waits for the oldest."""

POST_WORDS = 8
SEQUENCE, TAG, NBYTES, ADDRESS = 0, 1, 2, 3
LEAST_BYTES = 4096
LINGER_S = 2.0
"""Seconds that a closing sender waits for a message that was not taken yet."""


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """The address of a member's process and of its control segment.

    Attributes:
        node: equal for processes that can map each other's memory.
    """

    node: str
    pid: int
    control: int
    nonce: int

    @staticmethod
    def decode(told: bytes) -> "SharedPlace":
        return SharedPlace(**json.loads(told))

    def encode(self) -> str:
        return json.dumps({"node": self.node, "pid": self.pid, "control": self.control, "nonce": self.nonce})


def this_node(host: str) -> str:
    """This node's identity: its address in the cluster, the running kernel, the process ids' namespace and the user."""
    # `/proc/<pid>/fd` must name the same process for both, and open: so the namespace and the user count too.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{host}|{boot}|{Path('/proc/self/ns/pid').readlink()}|{os.getuid()}"


class SharedTransport:
    """One member's end of one generation. Made in three moves, see `meeting`. Implements Transport."""

    shared = True
    together = None
    groups: tuple[tuple[int, ...], ...] = ()

    def __init__(self, rank: int, size: int, host: str, deadline_s: float, seal: Seal = WITHIN) -> None:
        self.rank = rank
        self.size = size
        self.seal = seal
        self._deadline_s = deadline_s
        self._layout = _Layout(size)
        self._control = Segment.create(self._layout.words * WORD_BYTES)
        nonce = int.from_bytes(os.urandom(7))  # fits a signed word
        self._control.words()[NONCE] = nonce
        self.place = SharedPlace(this_node(host), os.getpid(), self._control.descriptor, nonce)
        self._words: list[memoryview] = []
        self._peers: Any = None
        self._pids: list[int] = []
        self._segments: dict[tuple[int, Key], Segment] = {}
        self._board: Board | None = None
        self._boards = 0
        self._lock = threading.Lock()
        self._outbox = _Outbox()
        self._posted = [0] * size
        self._on_their_way: list[deque[tuple[int, int, Tensor]]] = [deque() for _ in range(size)]
        self._seen = [0] * size
        self._asked: dict[tuple[int, int], int] = defaultdict(int)
        self._came: dict[tuple[int, int], int] = defaultdict(int)
        self._posts: dict[tuple[int, int, int], int] = {}
        self._shelf: dict[tuple[int, int, int], Tensor] = {}

    def attach(self, places: Sequence[SharedPlace | None]) -> frozenset[int]:
        """Map the control segments of the members on this node. Returns their ranks, this one among them."""
        near = []
        for rank, place in enumerate(places):
            words = self._map_control(rank, place)
            self._words.append(memoryview(b"") if words is None else words)
            if words is not None:
                near.append(rank)
        self._pids = [
            place.pid if place is not None and rank in near else 0 for rank, place in enumerate(places)
        ]
        try:
            self._peers = Peers(self.rank, self._words, self._pids, self._deadline_s)
        except OSError:  # one of them has ended meanwhile
            return frozenset()
        return frozenset(near)

    def _map_control(self, rank: int, place: SharedPlace | None) -> memoryview | None:
        if place is None or place.node != self.place.node:
            return None
        try:
            segment = self._control if rank == self.rank else Segment.of(place.pid, place.control)
        except OSError:
            return None
        words = segment.words()
        # The process id may belong to another process by now, which has another nonce.
        return words if words[NONCE] == place.nonce else None

    @property
    def over(self) -> str:
        return self._peers.why if self._peers is not None else ""

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        while (full := self._post(tensor, peer, tag)) is not None:
            self._peers.wait(self._words[peer], *full, peer, meanwhile=self._shelve)
        return _DONE

    def _post(self, tensor: Tensor, peer: int, tag: int) -> tuple[int, int] | None:
        """Post a message. Where the queue is full nothing is done; returns the peer's word and the value of it that
        mean that there is room again."""
        with self._lock:
            self._peers.check()
            number = self._posted[peer]
            # Posts and marks are reused in turn: the last post in this slot must have been taken.
            mark = self._layout.mark(self.rank, number)
            if number >= POSTS and self._words[peer][mark] < number - POSTS + 1:
                return mark, number - POSTS + 1
            self._reclaim(peer)
            memory, address = self._outbox.take(tensor.nbytes)
            if tensor.nbytes:
                memory[: tensor.nbytes].copy_(_bytes(tensor))
            self._posted[peer] = number + 1
            words, at = self._words[self.rank], self._layout.post(peer, number)
            words[at + TAG], words[at + NBYTES] = tag, tensor.nbytes
            for k, word in enumerate(address):
                words[at + ADDRESS + k] = word
            # Last: whoever sees the number may read the rest of the post.
            words[at + SEQUENCE] = number + 1
            self._on_their_way[peer].append((mark, number + 1, memory))
        return None

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        self._peers.check()
        with self._lock:
            # Counted here and not in `wait`: transfers match in the order in which they were begun.
            order = self._asked[peer, tag]
            self._asked[peer, tag] = order + 1
        return _Awaited(self, peer, tag, order, tensor)

    def native_all_reduce(self, tensor: Tensor) -> Work:
        raise ValueError("shared memory has no library underneath: meet over gloo for `algorithm: native`")

    def board(self, slots: int, rows: int) -> Board:
        if self._board is not None:
            self._board.close()
        self._boards += 1
        self._board = Board(
            self.rank,
            self._peers,
            slots=slots,
            rows=rows,
            publish=self._publish_board,
            find=self._find,
        )
        return self._board

    def abort(self) -> None:
        self._peers.leave("the generation was given up")

    def close(self) -> None:
        if self._peers is not None:
            # Before `leave`, which would end the waits of peers that are a moment behind.
            self._linger()
            # Before any descriptor is closed: peers look at this word after they have mapped something.
            self._peers.leave("the transport is closed")
            self._peers.close()
        self._control.close()
        # Mappings are dropped now and not when the collector finds the reference cycle of board and transport.
        if self._board is not None:
            self._board.close()
            self._board = None
        self._segments.clear()
        self._outbox = _Outbox()
        for sent in self._on_their_way:
            sent.clear()

    def _linger(self) -> None:
        """Wait for peers that are a moment behind to take what was sent, unless the generation is broken."""
        for peer, sent in enumerate(self._on_their_way):
            with suppress(ExchangeBroken):
                while sent:
                    mark, value, _ = sent[0]
                    self._peers.check()
                    self._peers.wait(self._words[peer], mark, value, peer, LINGER_S)
                    sent.popleft()

    def _reclaim(self, peer: int) -> None:
        marks, sent = self._words[peer], self._on_their_way[peer]
        # In the order of posts: one that was taken out of turn waits for those before it.
        while sent and marks[sent[0][0]] >= sent[0][1]:
            self._outbox.give_back(sent.popleft()[2])

    def receive(self, peer: int, tag: int, order: int, tensor: Tensor) -> None:
        """Copy the peer's message number `order` under that tag into `tensor`."""
        post = self._message(peer, tag, order)
        # `_message` has taken it out of `_posts`, so that no other thread shelves it from now on.
        shelved = self._shelf.pop((peer, tag, order), None)
        came = self._content(peer, post) if shelved is None else shelved
        if came.nbytes != tensor.nbytes:
            why = f"{came.nbytes} bytes came for tag {tag} where {tensor.nbytes} are due"
            raise self._peers.broken(peer, why)
        if came.nbytes:
            _bytes(tensor).copy_(came)
        if shelved is None:
            # Behind the copy: once it is marked, the sender uses the memory again.
            self._taken(peer, post)

    def _content(self, peer: int, post: int) -> Tensor:
        """The bytes of a message, in the peer's memory."""
        words, at = self._words[peer], self._layout.post(self.rank, post)
        if not words[at + NBYTES]:
            return torch.empty(0, dtype=torch.uint8)
        number, descriptor, offset = words[at + ADDRESS : at + POST_WORDS].tolist()[:3]
        return self._find(peer, (number, descriptor)).tensor(offset, words[at + NBYTES], torch.uint8)

    def _taken(self, peer: int, post: int) -> None:
        self._words[self.rank][self._layout.mark(peer, post)] = post + 1

    def _shelve(self) -> None:
        """Copy what has come out of the queue."""
        with self._lock:
            for peer, life in enumerate(self._pids):
                if life and peer != self.rank:
                    self._take_in(peer)
            for key in [key for key in self._posts if key not in self._shelf]:
                peer, post = key[0], self._posts[key]
                # Two members that send each other more than a queue holds before they receive would otherwise wait for
                # each other.
                self._shelf[key] = self._content(peer, post).clone()
                self._taken(peer, post)

    def _message(self, peer: int, tag: int, order: int) -> int:
        """The number of the post with that order under its tag. Waits until it is there."""
        while True:
            with self._lock:
                number, at = self._take_in(peer)
                if (peer, tag, order) in self._posts:
                    return self._posts.pop((peer, tag, order))
            self._peers.wait(self._words[peer], at + SEQUENCE, number + 1, peer)

    def _take_in(self, peer: int) -> tuple[int, int]:
        """Note every post that has come; returns the number of the next one and the index of its first word."""
        words = self._words[peer]
        while True:
            number = self._seen[peer]
            at = self._layout.post(self.rank, number)
            # Posts carry their number plus one: a fresh segment holds zeros.
            if words[at + SEQUENCE] < number + 1:
                return number, at
            tag = words[at + TAG]
            self._posts[peer, tag, self._came[peer, tag]] = number
            self._came[peer, tag] += 1
            self._seen[peer] = number + 1

    def _publish_board(self, key: Key) -> None:
        head = self._words[self.rank]
        head[BOARD_DESCRIPTOR] = key[1]
        head[BOARD] = key[0]
        # Last, because `_find` waits for it before it reads the key.
        head[BOARDS] = self._boards

    def _find(self, rank: int, key: Key | None) -> Segment:
        """A segment of `rank`; key None: its board, the one made along with this member's newest."""
        if key is None:
            head = self._words[rank]
            self._peers.wait(head, BOARDS, self._boards, rank)
            key = head[BOARD], head[BOARD_DESCRIPTOR]
        known = self._segments.get((rank, key))
        if known is None:
            known = self._segments[rank, key] = self._map(rank, key[1])
        return known

    def _map(self, rank: int, descriptor: int) -> Segment:
        try:
            segment = Segment.of(self._pids[rank], descriptor)
        except OSError as error:
            why = f"its memory cannot be mapped: {error}"
        else:
            # A member says that it leaves before it closes anything: while it stays, the descriptor is its segment.
            self._peers.check_stays(rank)
            return segment
        raise self._peers.broken(rank, why)


class _Done:
    """A finished send: the message has been copied."""

    def wait(self) -> None:
        pass


_DONE = _Done()


@dataclass(frozen=True, slots=True)
class _Awaited:
    transport: SharedTransport
    peer: int
    tag: int
    order: int
    tensor: Tensor

    def wait(self) -> None:
        self.transport.receive(self.peer, self.tag, self.order, self.tensor)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The words of a control segment: the head, the posts to each rank, then the marks for each rank."""

    size: int

    @property
    def words(self) -> int:
        return HEAD_WORDS + self.size * POSTS * (POST_WORDS + 1)

    def post(self, peer: int, number: int) -> int:
        return HEAD_WORDS + (peer * POSTS + number % POSTS) * POST_WORDS

    def mark(self, sender: int, number: int) -> int:
        return HEAD_WORDS + self.size * POSTS * POST_WORDS + sender * POSTS + number % POSTS


class _Outbox:
    """Memory for messages in flight, by powers of two, reused once they are taken."""

    def __init__(self) -> None:
        self._arena = Arena()
        self._free: dict[int, list[Tensor]] = defaultdict(list)

    def take(self, nbytes: int) -> tuple[Tensor, Address]:
        size = max(LEAST_BYTES, 1 << max(0, nbytes - 1).bit_length())
        free = self._free[size]
        memory = free.pop() if free else self._arena.empty(size, torch.uint8)
        return memory, self._arena.address(memory)

    def give_back(self, memory: Tensor) -> None:
        self._free[memory.numel()].append(memory)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().view(-1).view(torch.uint8)
