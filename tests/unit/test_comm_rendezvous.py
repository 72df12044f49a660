"""The store where members meet, and strangers at its door."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from accounts import NOBODY, as_nobody, needs_root, open_folder
from rooms import ROOM, SECRET, open_room
from waiting import wait_for

from ringleader.comm import rendezvous
from ringleader.comm.rendezvous import STRANGERS, Rendezvous
from ringleader.comm.seal import NONCE_BYTES, TAG_BYTES, new_secret
from ringleader.comm.store_connection import HELLO, StoreConnection, local_socket
from ringleader.comm.transports.meeting import MeetingCall, StoreClients, meet, visit
from ringleader.errors import WordRefused

HANG_S = 30.0
HOST = "127.0.0.1"


@pytest.fixture
def store() -> Iterator[Rendezvous]:
    store = open_room()
    yield store
    store.close()


def join_room(store: Rendezvous, room: str = ROOM, secret: bytes = SECRET) -> StoreConnection:
    return StoreConnection(HOST, store.port, HANG_S, room=room, secret=secret)


def stranger(store: Rendezvous) -> socket.socket:
    return socket.create_connection((HOST, store.port), timeout=HANG_S)


def ends(connection: socket.socket) -> bool:
    """Whether the other end hangs up, without another word."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def hello(room: str, tag: bytes) -> bytes:
    return HELLO.pack(len(room)) + room.encode() + bytes(NONCE_BYTES) + tag


@pytest.mark.parametrize("room", [ROOM, "another"])
def test_who_has_not_the_secret_of_a_room_hears_nothing_and_leaves_nothing(store: Rendezvous, room: str):
    with stranger(store) as connection:
        assert len(connection.recv(NONCE_BYTES)) == NONCE_BYTES
        connection.sendall(hello(room, bytes(TAG_BYTES)) + b"what a member would say next" * 100)
        assert ends(connection)
    assert {room: [*words] for room, words in store.words().items()} == {ROOM: []}


def test_the_secret_of_one_room_opens_no_other(store: Rendezvous):
    store.admit("other", new_secret())
    with pytest.raises(OSError, match="closed the connection"):
        join_room(store, "other")
    with pytest.raises(OSError, match="closed the connection"):
        join_room(store, secret=new_secret())


def test_what_a_stranger_sends_is_not_kept(store: Rendezvous):
    """Neither a name that never ends, nor megabytes behind a proof that is none."""
    for first in (HELLO.pack(65_535), hello(ROOM, bytes(TAG_BYTES))):
        with stranger(store) as connection:
            assert len(connection.recv(NONCE_BYTES)) == NONCE_BYTES
            with suppress(ConnectionError):
                connection.sendall(first)
                while True:
                    connection.sendall(bytes(1 << 20))
    assert store.turned_away == 2


@needs_root
def test_another_account_of_the_machine_writes_no_word(store: Rendezvous):
    """By torch's own client, which a store without a credential answers, and by our first move."""
    said = as_nobody(
        """
connection = socket.create_connection((b"127.0.0.1", int(sys.argv[1])), timeout=30)
connection.recv(32)
connection.sendall(bytes.fromhex(sys.argv[2]) + b"place/0" * 1000)
try:
    print(len(connection.recv(1)))
except ConnectionResetError:
    print(0)
""",
        str(store.port),
        hello(ROOM, bytes(TAG_BYTES)).hex(),
    )
    assert said == ["0"]
    assert [*store.words()[ROOM]] == []


def test_whoever_answers_in_the_place_of_the_store_is_not_believed():
    """Its port is free again once it is gone."""
    with socket.create_server((HOST, 0)) as listener, ThreadPoolExecutor(1) as pool:
        port = listener.getsockname()[1]
        met = pool.submit(StoreConnection, HOST, port, HANG_S, room=ROOM, secret=SECRET)
        connection, _ = listener.accept()
        connection.sendall(bytes(NONCE_BYTES))
        assert connection.recv(1 << 10)
        connection.sendall(bytes(TAG_BYTES))
        with pytest.raises(WordRefused, match="not from a member"):
            met.result(HANG_S)
        connection.close()


def test_strangers_who_say_nothing_keep_no_member_out_and_are_bounded(store: Rendezvous):
    silent = [stranger(store) for _ in range(2 * STRANGERS)]
    with ThreadPoolExecutor(2) as pool:
        calls = [MeetingCall(HOST, store.port, f"{ROOM}/1.1", rank, 2, HANG_S, SECRET) for rank in range(2)]
        for transport in pool.map(meet, calls):
            transport.close()
    assert len(store._strangers) <= STRANGERS
    gone = wait_for("the oldest sent away", lambda: [s for s in silent[:STRANGERS] if heard_out(s)])
    assert gone
    for connection in silent:
        connection.close()


def test_a_member_on_the_node_of_its_store_needs_no_port_that_strangers_may_crowd(tmp_path: Path):
    with closing(open_room(HOST, tmp_path)) as store:
        path = {"room": ROOM, "secret": SECRET, "folder": tmp_path}
        # 203.0.113.1: an address that is nobody's
        with closing(StoreConnection("203.0.113.1", store.port, HANG_S, **path)) as member:
            member.corner(f"{ROOM}/1.1", HANG_S).set("place/0", b"here")
        silent = [stranger(store) for _ in range(2 * STRANGERS)]
        with closing(StoreConnection("203.0.113.1", store.port, HANG_S, **path)) as member:
            assert member.corner(f"{ROOM}/1.1", HANG_S).read(["place/0"]) == [b"here"]
        for connection in silent:
            connection.close()
        with pytest.raises(OSError, match="closed the connection"):
            StoreConnection("203.0.113.1", store.port, HANG_S, **{**path, "secret": new_secret()})


@needs_root
def test_another_account_cannot_even_connect_to_the_socket_of_a_node():
    with open_folder() as folder, closing(open_room(HOST, folder)) as store:
        connect = "print(tried(socket.socket(socket.AF_UNIX).connect, sys.argv[1]))"
        assert as_nobody(connect, str(local_socket(folder, store.port))) == ["PermissionError"]


@needs_root
def test_a_socket_at_which_another_account_listens_is_passed_by(tmp_path: Path, store: Rendezvous):
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(local_socket(tmp_path, store.port)))
        os.seteuid(NOBODY)
        try:
            foreign.listen()
        finally:
            os.seteuid(0)
        StoreConnection(HOST, store.port, HANG_S, room=ROOM, secret=SECRET, folder=tmp_path).close()


def test_where_no_store_is_on_this_node_its_port_is_asked(tmp_path: Path, store: Rendezvous):
    StoreConnection(HOST, store.port, HANG_S, room=ROOM, secret=SECRET, folder=tmp_path).close()


def test_a_member_that_is_turned_away_asks_again():
    """Strangers may have crowded it out, or its supervisor be about to open its room."""
    store = Rendezvous(HOST)
    call = MeetingCall(HOST, store.port, f"{ROOM}/1.1", 0, 1, HANG_S, SECRET)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(visit, call, HANG_S)
        with stranger(store) as beside:
            assert len(beside.recv(NONCE_BYTES)) == NONCE_BYTES
        wait_for("the end of a try, or two", lambda: store.turned_away)
        assert not coming.done()
        store.admit(ROOM, SECRET)
        coming.result(HANG_S).close()
    store.close()


def heard_out(connection: socket.socket) -> bool:
    """Whether it was given its nonce, and then nothing but the end."""
    connection.setblocking(False)
    try:
        while connection.recv(NONCE_BYTES):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def test_a_stranger_who_does_not_answer_is_sent_away(
    store: Rendezvous, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "CHALLENGE_S", 0.05)
    with stranger(store) as connection:
        assert len(connection.recv(NONCE_BYTES)) == NONCE_BYTES
        assert ends(connection)


def test_twenty_five_generations_leave_the_words_of_one(store: Rendezvous):
    clients = [StoreClients() for _ in range(3)]
    counts = []
    for generation in range(1, 26):

        def member(rank: int, place: str = f"{ROOM}/1.{generation}") -> None:
            meet(MeetingCall(HOST, store.port, place, rank, 3, HANG_S, SECRET), clients=clients[rank]).close()

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(member, range(3)))
        counts.append(len([*store.words()[ROOM]]))
    assert counts == [counts[0]] * 25
    assert 0 < counts[0] <= 6


def test_a_generation_is_over_once_a_later_one_has_begun_also_for_who_waits_in_it(store: Rendezvous):
    old, new, late = (join_room(store) for _ in range(3))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(old.corner(f"{ROOM}/1.7", HANG_S).read, ["place/0"])
        wait_for("somebody who waits", lambda: store._rooms[ROOM].lines[""])
        new.corner(f"{ROOM}/1.8", HANG_S).set("place/0", b"here")
        with pytest.raises(OSError, match="closed the connection"):
            waiting.result(HANG_S)
    with pytest.raises(OSError, match="this meeting is over"):
        late.corner(f"{ROOM}/1.7", HANG_S).set("place/1", b"there")
    assert [*store.words()[ROOM]] == ["place/0"]
    for connection in (old, new, late):
        connection.close()


def test_pairs_that_are_under_way_at_once_do_not_end_each_other_and_old_ones_go(store: Rendezvous):
    member = join_room(store)
    for number in range(1, 1001):
        member.corner(f"{ROOM}/pair/{number}", HANG_S).set("place/0", b"here")
    assert member.corner(f"{ROOM}/pair/900", HANG_S).read(["place/0"]) == [b"here"]
    assert len([*store.words()[ROOM]]) == rendezvous.KEPT["pair/"]
    member.close()


def test_a_room_holds_so_much_and_no_more(store: Rendezvous, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, "ROOM_BYTES", 1000)
    member = join_room(store)
    corner = member.corner(f"{ROOM}/1.1", HANG_S)
    corner.set("place/0", bytes(900))
    corner.set("place/0", bytes(950))
    with pytest.raises(OSError, match="no room for its words"):
        corner.set("place/1", bytes(100))
    again = join_room(store)
    again.corner(f"{ROOM}/1.2", HANG_S).set("place/1", bytes(900))
    for connection in (member, again):
        connection.close()


def test_a_room_that_no_supervisor_asks_for_is_closed(store: Rendezvous, monkeypatch: pytest.MonkeyPatch):
    member = join_room(store)
    member.corner(f"{ROOM}/1.1", HANG_S).set("place/0", b"here")
    store.admit(ROOM, SECRET)
    assert [*store.words()[ROOM]] == ["place/0"]
    monkeypatch.setattr(rendezvous, "ROOM_S", -1.0)
    store.admit("other", SECRET)
    assert ROOM not in store.words()
    member.close()


def test_a_connection_that_the_store_has_ended_is_not_used_again(
    store: Rendezvous, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = StoreClients()
    call = MeetingCall(HOST, store.port, f"{ROOM}/1.1", 0, 1, HANG_S, SECRET)
    client = clients.take(call, HANG_S)
    clients.give_back(call, client)
    assert clients.take(call, HANG_S) is client
    clients.give_back(call, client)
    with monkeypatch.context() as hasty:
        hasty.setattr(rendezvous, "ROOM_S", -1.0)
        store.admit("other", SECRET)
    wait_for("the end of the connection", lambda: client.lost)
    store.admit(ROOM, SECRET)
    again = clients.take(call, HANG_S)
    assert again is not client
    again.close()


def test_nobody_meets_without_a_secret(store: Rendezvous):
    with pytest.raises(ValueError, match="a secret of 32 bytes, not of 0"):
        meet(MeetingCall(HOST, store.port, f"{ROOM}/1.1", 0, 2, 1.0, b""))
