"""Every transport: order, ending waits, keeping generations apart, giving up a meeting."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
import torch
from rooms import SECRET, open_room

from ringleader.comm import transports
from ringleader.comm.communicator import Communicator
from ringleader.comm.transports import Transport, meeting
from ringleader.comm.transports.gloo import GlooTransport
from ringleader.comm.transports.inprocess import Hub
from ringleader.comm.transports.meeting import DEVICE_KINDS, KINDS, NCCL, SHARED, MeetingCall, meet
from ringleader.comm.transports.mixed import MixedTransport
from ringleader.errors import ExchangeBroken
from ringleader.exchange.side_channel import SideChannel

HANG_S = 20.0


@pytest.fixture
def port() -> int:
    store = open_room()
    yield store.port
    del store


MIXED, IN_PROCESS, STAGED = "mixed", "inprocess", "staged"


def found() -> dict[str, type]:
    """Every transport of the package by its file, which is also how a meeting calls it."""
    modules = {
        m.name: import_module(f"{transports.__name__}.{m.name}") for m in iter_modules(transports.__path__)
    }
    return {
        name: value
        for name, module in modules.items()
        for value in vars(module).values()
        if isinstance(value, type) and hasattr(value, "isend") and value.__module__ == module.__name__
    }


WAYS = {name: way for name, way in found().items() if way is not Transport}
LEAST = 3
"""As many members, and devices, as make two nodes of which one is shared."""


def marked(ways: list[str]) -> list[object]:
    return [pytest.param(way, marks=pytest.mark.gpu) if way == NCCL else way for way in ways]


def able(way: str) -> str:
    if way == NCCL and torch.cuda.device_count() < LEAST:
        pytest.skip(f"needs {LEAST} CUDA devices")
    return way


@pytest.fixture(params=marked([way for way in WAYS if way != IN_PROCESS]))
def kind(request: pytest.FixtureRequest) -> str:
    """How members that meet over a store may reach each other."""
    return able(request.param)


@pytest.fixture(params=marked(list(WAYS)))
def way(request: pytest.FixtureRequest) -> str:
    return able(request.param)


def call(kind: str, port: int, prefix: str, rank: int, size: int, deadline_s: float = 60.0) -> MeetingCall:
    """With `mixed` the first rank lives on a node of its own, the others share one."""
    host = "127.0.0.2" if kind == MIXED and rank == 0 else "127.0.0.1"
    if kind == NCCL:
        torch.cuda.set_device(rank)
    kinds = {MIXED: KINDS, NCCL: DEVICE_KINDS, STAGED: DEVICE_KINDS}.get(kind, (kind,))
    return MeetingCall("127.0.0.1", port, prefix, rank, size, deadline_s, SECRET, host=host, kinds=kinds)


@pytest.fixture
def group(port: int, way: str) -> Iterator[Callable[..., list[Transport]]]:
    """group(prefix, size): the first members of one generation, each met on a thread of its own."""
    idle: list[Transport] = []

    def meet_all(prefix: str, size: int, deadline_s: float = 60.0) -> list[Transport]:
        if way == IN_PROCESS:
            hub = Hub(size, deadline_s)
            return [hub.transport(rank) for rank in range(size)]
        world = max(size, LEAST) if way == MIXED else size
        with ThreadPoolExecutor(world) as pool:
            members = list(
                pool.map(lambda rank: meet(call(way, port, prefix, rank, world, deadline_s)), range(world))
            )
        idle.extend(members[size:])
        return members[:size]

    yield meet_all
    for transport in idle:
        transport.close()


def test_all_that_a_meeting_may_be_asked_for_is_among_these():
    assert {*KINDS, *DEVICE_KINDS, MIXED, IN_PROCESS} <= set(WAYS)


def test_members_have_the_transport_that_is_to_be_tested(group, way):
    for transport in group("job/1/1", 2):
        assert type(transport) is WAYS[way]
        transport.close()


def broken_by(act: Callable[[], object]) -> tuple[ExchangeBroken, float]:
    since = time.monotonic()
    with pytest.raises(ExchangeBroken) as caught:
        act()
    return caught.value, time.monotonic() - since


def test_transfers_with_one_tag_match_in_order_and_tags_keep_apart(group):
    a, b = group("job/1/1", 2)
    works = [a.isend(torch.full((3,), float(k)), 1, tag) for k, tag in ((1, 7), (2, 7), (3, 8))]
    arrived = [torch.empty(3) for _ in range(3)]
    waits = [b.irecv(t, 0, tag) for t, tag in zip(arrived, (8, 7, 7), strict=True)]
    for work in (*waits, *works):
        work.wait()
    assert [t[0].item() for t in arrived] == [3.0, 1.0, 2.0]
    for transport in (a, b):
        transport.close()
        transport.close()


def test_abort_ends_waits_on_both_sides_also_when_both_wait_for_each_other(group):
    a, b = group("job/1/1", 2)
    waiting = threading.Barrier(3)

    def wait(transport: Transport) -> float:
        work = transport.irecv(torch.empty(4), 1 - transport.rank, 0)
        waiting.wait(HANG_S)
        return broken_by(work.wait)[1]

    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(wait, t) for t in (a, b)]
        waiting.wait(HANG_S)
        a.abort()
        assert all(e.result(HANG_S) < HANG_S for e in ended)
    error, _ = broken_by(lambda: a.isend(torch.empty(4), 1, 0))
    assert "given up" in str(error)
    b.close()


def test_closing_one_member_reaches_those_that_wait_for_another(group):
    """The cascade: 0 leaves, 1 sees it and closes, so 2, which waits only for 1, is freed as well."""
    first, second, third = group("job/1/1", 3)

    def middle() -> None:
        work = second.irecv(torch.empty(4), 0, 0)
        error, _ = broken_by(work.wait)
        assert error.rank == 0
        second.close()

    with ThreadPoolExecutor(2) as pool:
        relay = pool.submit(middle)
        last = pool.submit(lambda: broken_by(third.irecv(torch.empty(4), 1, 0).wait))
        first.close()
        relay.result(HANG_S)
        assert last.result(HANG_S)[0].rank == 1
    third.close()


def test_a_stale_generation_never_mixes_with_the_next(group):
    old = group("job/1/1", 2)
    new = group("job/1/2", 2)
    old[0].isend(torch.full((2,), -1.0), 1, 0)
    fresh = new[0].isend(torch.full((2,), 5.0), 1, 0)
    seen = torch.zeros(2)
    new[1].irecv(seen, 0, 0).wait()
    fresh.wait()
    assert torch.equal(seen, torch.full((2,), 5.0))
    old[0].abort()
    again = torch.zeros(2)
    broken_by(lambda: old[0].irecv(again, 1, 0).wait())
    work = new[1].irecv(again, 0, 0)
    new[0].isend(seen, 1, 0).wait()
    work.wait()
    assert torch.equal(again, seen)
    for transport in (*old, *new):
        transport.close()


def test_a_silent_peer_is_found_by_the_deadline(group):
    a, b = group("job/1/1", 2, deadline_s=3.0)  # meeting has the same deadline
    error, seconds = broken_by(lambda: a.irecv(torch.empty(4), 1, 0).wait())
    assert error.rank == 1
    assert 2.5 < seconds < HANG_S
    a.close()
    b.close()


def test_a_meeting_nobody_joins_ends_by_its_deadline_or_when_called_off(port, kind):
    lonely = call(kind, port, "job/1/9", 0, 2, 0.5)
    error, _ = broken_by(lambda: meet(lonely))
    assert error.phase == "connect"
    patient = call(kind, port, "job/1/9", 0, 2, 2 * HANG_S)
    error, seconds = broken_by(lambda: meet(patient, lambda: True))
    assert "was cancelled" in str(error)
    assert seconds < HANG_S


def test_the_native_sum_adds_all_members_where_there_is_a_library(group, way):
    members = group("job/1/1", 3)

    def add(transport: Transport) -> torch.Tensor:
        values = torch.full((1001,), float(transport.rank + 1))
        transport.native_all_reduce(values).wait()
        return values

    if way == SHARED:
        with pytest.raises(ValueError, match="has no library"):
            add(members[0])
    else:
        with ThreadPoolExecutor(3) as pool:
            assert all(torch.equal(v, torch.full((1001,), 6.0)) for v in pool.map(add, members))
    for transport in members:
        transport.close()


def test_twenty_generations_close_without_breaking_whoever_is_a_moment_behind(port, kind):
    def member(rank: int) -> None:
        for generation in range(20):
            transport = meet(call(kind, port, f"job/1/{generation}", rank, 3))
            communicator = Communicator(transport)
            values = torch.zeros(3, dtype=torch.float64)
            values[rank] = generation + rank
            total = SideChannel(communicator).all_reduce(values)
            assert total.tolist() == [generation, generation + 1, generation + 2]
            assert communicator.close(), "the lanes have ended"

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(member, range(3)))


def test_members_of_one_node_share_memory_and_know_who_lives_where(port):
    """Node a: ranks 0 and 2, node b: 1 and 3, node c: 4. Everybody's sum goes over both kinds of path."""
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.2", "127.0.0.3"]

    def member(rank: int) -> tuple[type, tuple, list[float]]:
        transport = meet(
            MeetingCall("127.0.0.1", port, "job/1/1", rank, len(hosts), 60.0, SECRET, host=hosts[rank])
        )
        communicator = Communicator(transport)
        values = torch.zeros(len(hosts), dtype=torch.float64)
        values[rank] = rank + 1
        total = SideChannel(communicator).all_reduce(values)
        assert communicator.close()
        return type(transport), transport.groups, total.tolist()

    with ThreadPoolExecutor(len(hosts)) as pool:
        members = list(pool.map(member, range(len(hosts))))
    assert members == [(MixedTransport, ((0, 2), (1, 3), (4,)), [1.0, 2.0, 3.0, 4.0, 5.0])] * len(hosts)


def test_members_of_which_no_two_share_a_node_use_gloo_alone(port):
    def member(rank: int) -> Transport:
        return meet(
            MeetingCall("127.0.0.1", port, "job/1/1", rank, 2, 60.0, SECRET, host=f"127.0.0.{rank + 1}")
        )

    with ThreadPoolExecutor(2) as pool:
        members = list(pool.map(member, range(2)))
    assert [type(m) for m in members] == [GlooTransport] * 2
    for transport in members:
        transport.close()


def test_on_processors_whose_stores_may_be_seen_in_another_order_nothing_is_shared(port, monkeypatch):
    monkeypatch.setattr(meeting, "SUPPORTED", False)
    with ThreadPoolExecutor(2) as pool:
        members = list(
            pool.map(
                lambda rank: meet(MeetingCall("127.0.0.1", port, "job/1/1", rank, 2, 60.0, SECRET)), range(2)
            )
        )
    assert [type(m) for m in members] == [GlooTransport] * 2
    for transport in members:
        transport.close()


def test_more_messages_than_a_queue_holds_arrive_in_order(group):
    a, b = group("job/1/1", 2)
    count = 2500

    def send() -> None:
        works = deque()
        for k in range(count):
            works.append(a.isend(torch.full((2,), float(k)), 1, k % 3))
            if len(works) == 700:
                works.popleft().wait()
        for work in works:
            work.wait()

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        for k in range(count):
            arrived = torch.empty(2)
            b.irecv(arrived, 0, k % 3).wait()
            assert arrived[0].item() == k
        sending.result(HANG_S)
    a.close()
    b.close()


def test_two_that_send_more_than_a_queue_holds_before_they_receive_do_not_wait_for_each_other(group):
    count = 2500

    def exchange(member: Transport) -> list[float]:
        other = 1 - member.rank
        works = [member.isend(torch.full((2,), k + 0.5 * member.rank), other, k % 3) for k in range(count)]
        arrived = [torch.empty(2) for _ in range(count)]
        for k, tensor in enumerate(arrived):
            member.irecv(tensor, other, k % 3).wait()
        for work in works:
            work.wait()
        return [tensor[0].item() for tensor in arrived]

    members = group("job/1/1", 2)
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(exchange, member) for member in members]
        assert ends[0].result(HANG_S) == [k + 0.5 for k in range(count)]
        assert ends[1].result(HANG_S) == [float(k) for k in range(count)]
    for member in members:
        member.close()


def test_a_meeting_that_fails_after_the_members_have_found_each_other_keeps_nothing_open(port, monkeypatch):
    def refuse(*_: object, **__: object) -> GlooTransport:
        raise OSError("no route")

    def attend(rank: int) -> ExchangeBroken:
        return broken_by(lambda: meet(call(MIXED, port, "job/1/1", rank, 3)))[0]

    monkeypatch.setattr(GlooTransport, "join", refuse)
    before = held_open()
    with ThreadPoolExecutor(3) as pool:
        assert {error.why for error in pool.map(attend, range(3))} == {"no route"}
    assert held_open() <= before


def held_open() -> set[tuple[str, int]]:
    """(descriptor, inode) of processes and of shared memory that this process holds: what other tests have left may go
    at any time."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing itself
            link = str(entry.readlink())
            if "pidfd" in link or "memfd:ringleader" in link:
                found.add((entry.name, entry.stat().st_ino))
    return found
