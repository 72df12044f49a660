"""Somebody who is no member tries to be taken for one: by words in a store that takes everybody's, over gloo, and with
objects."""

import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from rooms import ROOM, SECRET, open_room
from torch.distributed import PrefixStore, TCPStore

from ringleader.comm.seal import TAG_BYTES, Seal, new_secret
from ringleader.comm.transports import Transport
from ringleader.comm.transports.gloo import GlooTransport
from ringleader.comm.transports.meeting import (
    GLOO,
    KINDS,
    NEAR_KINDS,
    SHARED,
    MeetingCall,
    StoreClients,
    library,
    meet,
)
from ringleader.comm.transports.shared import this_node
from ringleader.comm.transports.words import WORD, LibraryStore, MeetingStore, MemberStore
from ringleader.errors import ExchangeBroken, WordRefused

HOST = "127.0.0.1"
HANG_S = 30.0
PAIR = f"{ROOM}/pair/1"


@pytest.fixture
def store() -> Iterator[TCPStore]:
    """The worst store there is: everybody writes, reads, and removes what is there."""
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    yield store
    del store


def call(store: TCPStore, rank: int, kinds: tuple[str, ...] = KINDS, prefix: str = PAIR) -> MeetingCall:
    return MeetingCall(HOST, store.port, prefix, rank, 2, HANG_S, SECRET, kinds=kinds)


def joined(call: MeetingCall) -> Transport:
    return meet(call, clients=StoreClients(library))


class Stranger:
    """Somebody with an account on this machine, who has read how members meet, and listens where they shall come."""

    def __init__(self, store: TCPStore) -> None:
        self._store = PrefixStore(PAIR, store)
        self._listener = socket.create_server((HOST, 0))
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]

    def write(self, frame: bytes = b"") -> None:
        """As the donor of the next pair; `frame` is put before each word."""
        place = {"node": this_node(HOST), "pid": os.getpid(), "control": 0, "nonce": 1}
        words = {
            "place/0": json.dumps(place),
            "mapped/0": "0 1",
            "listens/0": str(self._port),
            "listens/1": "x",
            "0/0": f"{HOST}:{self._port}",
        }
        for key, word in words.items():
            self._store.set(key, frame + word.encode())

    @property
    def visited(self) -> bool:
        try:
            self._listener.accept()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("kinds", [KINDS, NEAR_KINDS, (GLOO,)], ids=["any", "near", "gloo"])
@pytest.mark.parametrize("frame", [b"", bytes(TAG_BYTES)], ids=["bare", "framed"])
def test_a_stranger_who_writes_itself_into_a_pair_is_not_believed_and_nobody_connects_to_it(
    store: TCPStore, kinds: tuple[str, ...], frame: bytes
):
    stranger = Stranger(store)
    stranger.write(frame)
    with pytest.raises(
        ExchangeBroken, match=r"the entry '\w+/0' of the rendezvous is not from a member of this attempt"
    ):
        joined(call(store, 1, kinds))
    assert not stranger.visited
    stranger.close()


def test_a_word_of_another_attempt_generation_key_or_member_is_refused(store: TCPStore):
    def words(prefix: str, secret: bytes = SECRET) -> MemberStore:
        return MemberStore(
            LibraryStore(HOST, store.port, HANG_S).corner(prefix, HANG_S), Seal(secret, prefix)
        )

    words("job/1.1").set("place/0", "here")
    sealed = store.get("job/1.1/place/0")
    assert words("job/1.1").get("place/0") == b"here"
    for copied in ("job/1.1/place/1", "job/1.2/place/0", "other/1.1/place/0"):
        store.set(copied, sealed)
        prefix, key = copied.rsplit("/", 2)[0], copied.split("/", 2)[2]
        with pytest.raises(WordRefused, match=key):
            words(prefix).get(key)
    with pytest.raises(WordRefused):
        words("job/1.1", new_secret()).get("place/0")
    for spoilt in (sealed + b"!", sealed[:-1], sealed[TAG_BYTES:], b""):
        store.set("job/1.1/place/0", spoilt)
        with pytest.raises(WordRefused):
            words("job/1.1").get("place/0")


class Raced(MemberStore):
    """The words of a member, of whom gloo's connections are somebody else's: it has been faster at a port."""

    def __init__(self, corner: MeetingStore, good: Seal, bad: Seal) -> None:
        super().__init__(corner, bad)
        self._good = good

    def set(self, key: str, value: str | bytes) -> None:
        word = value.encode() if isinstance(value, str) else bytes(value)
        self._corner.set(key, self._good.tag(WORD, key.encode(), word) + word)

    def _opened(self, key: str, found: bytes) -> bytes:
        return found[TAG_BYTES:]


def test_who_takes_the_place_of_a_peer_at_gloos_port_has_nothing_to_prove_it_with(store: TCPStore):
    good, bad = Seal(SECRET, PAIR), Seal(new_secret(), PAIR)

    def join(rank: int) -> str:
        corner = LibraryStore(HOST, store.port, HANG_S).corner(PAIR, HANG_S)
        words = Raced(corner, good, bad) if rank else MemberStore(corner, good)
        with pytest.raises((WordRefused, OSError)) as caught:
            GlooTransport.join(words, rank, 2, HANG_S, HOST)
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        member, _ = pool.map(join, range(2))
    assert "'peer/1' of the rendezvous is not from a member of this attempt" in member


def test_proofs_do_not_fit_the_other_way_round_nor_another_meeting():
    """A stranger that hands a member's challenge on to another member, or back, gains nothing."""
    store = open_room()

    def proof(rank: int, prefix: str) -> Transport:
        return meet(MeetingCall(HOST, store.port, prefix, rank, 2, HANG_S, SECRET, kinds=(GLOO,)))

    with ThreadPoolExecutor(2) as pool:
        first = list(pool.map(proof, range(2), [f"{ROOM}/1.1"] * 2))
        second = list(pool.map(proof, range(2), [f"{ROOM}/1.2"] * 2))
    asked = b"a nonce"
    tag = first[0].seal.tag(b"peer", b"0 to 1", asked, asked)
    assert first[1].seal.fits(tag, b"peer", b"0 to 1", asked, asked)
    assert not first[1].seal.fits(tag, b"peer", b"1 to 0", asked, asked)
    assert not second[1].seal.fits(tag, b"peer", b"0 to 1", asked, asked)
    for transport in (*first, *second):
        transport.close()
    store.close()


def test_members_that_are_known_to_be_on_one_node_never_use_a_socket(monkeypatch: pytest.MonkeyPatch):
    """Even where their memory cannot be mapped: somebody may have seen to that."""
    assert NEAR_KINDS == (SHARED,)
    store = open_room()
    opened: list[Any] = []
    monkeypatch.setattr(GlooTransport, "join", lambda *asked: opened.append(asked))

    def join(rank: int) -> ExchangeBroken:
        here = f"127.0.0.{rank + 1}"  # so that each takes the other for one of another node
        with pytest.raises(ExchangeBroken) as caught:
            meet(MeetingCall(HOST, store.port, PAIR, rank, 2, HANG_S, SECRET, here, NEAR_KINDS))
        return caught.value

    with ThreadPoolExecutor(2) as pool:
        whys = {error.why for error in pool.map(join, range(2))}
    assert whys == {"only shared may be used, which does not connect all of these members"}
    assert opened == []
    store.close()


def test_what_names_a_secret_does_not_show_it(tmp_path: Path):
    from ringleader.elastic import Meeting

    shown = (
        repr(Meeting("host:1", SECRET)),
        repr(MeetingCall(HOST, 1, PAIR, 0, 2, HANG_S, SECRET)),
        repr(Seal(SECRET, PAIR)),
    )
    for text in shown:
        assert repr(SECRET) not in text
        assert SECRET.hex() not in text


def test_the_sums_of_members_who_have_met_are_right(store: TCPStore):
    """Among words of strangers under other names."""
    PrefixStore(PAIR, store).set("place/7", "stranger")
    with ThreadPoolExecutor(2) as pool:
        members = list(pool.map(joined, [call(store, 0, (GLOO,)), call(store, 1, (GLOO,))]))
        values = [torch.full((3,), 1.0 + rank) for rank in range(2)]
        list(pool.map(lambda m: m.native_all_reduce(values[m.rank]).wait(), members))
    assert [v.tolist() for v in values] == [[3.0] * 3] * 2
    for member in members:
        member.close()
