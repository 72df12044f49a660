"""The gloo transport alone: ending waits, keeping generations apart, giving up a meeting."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import TCPStore

from ringleader.comm.communicator import Communicator
from ringleader.comm.transports.gloo import GlooTransport
from ringleader.errors import ExchangeBroken
from ringleader.sync.side import Side

HANG_S = 20.0


@pytest.fixture
def port() -> int:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


def group(port: int, prefix: str, size: int, deadline_s: float = 60.0) -> list[GlooTransport]:
    def join(rank: int) -> GlooTransport:
        return GlooTransport.connect("127.0.0.1", port, prefix, rank, size, deadline_s)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(join, range(size)))


def broken_by(act: Callable[[], object]) -> tuple[ExchangeBroken, float]:
    since = time.monotonic()
    with pytest.raises(ExchangeBroken) as caught:
        act()
    return caught.value, time.monotonic() - since


def test_transfers_with_one_tag_match_in_order_and_tags_keep_apart(port):
    a, b = group(port, "job/1/1", 2)
    works = [a.isend(torch.full((3,), float(k)), 1, tag) for k, tag in ((1, 7), (2, 7), (3, 8))]
    arrived = [torch.empty(3) for _ in range(3)]
    waits = [b.irecv(t, 0, tag) for t, tag in zip(arrived, (8, 7, 7), strict=True)]
    for work in (*waits, *works):
        work.wait()
    assert [t[0].item() for t in arrived] == [3.0, 1.0, 2.0]
    for transport in (a, b):
        transport.close()
        transport.close()


def test_abort_ends_waits_on_both_sides_also_when_both_wait_for_each_other(port):
    a, b = group(port, "job/1/1", 2)
    waiting = threading.Barrier(3)

    def wait(transport: GlooTransport) -> float:
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


def test_closing_one_member_reaches_those_that_wait_for_another(port):
    """The cascade: 0 leaves, 1 sees it and closes, so 2, which waits only for 1, is freed as well."""
    first, second, third = group(port, "job/1/1", 3)

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


def test_a_stale_generation_never_mixes_with_the_next(port):
    old = group(port, "job/1/1", 2)
    new = group(port, "job/1/2", 2)
    stale = old[0].isend(torch.full((2,), -1.0), 1, 0)
    fresh = new[0].isend(torch.full((2,), 5.0), 1, 0)
    seen = torch.zeros(2)
    new[1].irecv(seen, 0, 0).wait()
    fresh.wait()
    assert torch.equal(seen, torch.full((2,), 5.0))
    old[0].abort()
    broken_by(stale.wait)
    again = torch.zeros(2)
    work = new[1].irecv(again, 0, 0)
    new[0].isend(seen, 1, 0).wait()
    work.wait()
    assert torch.equal(again, seen)
    for transport in (*old, *new):
        transport.close()


def test_a_silent_peer_is_found_by_the_deadline(port):
    a, b = group(port, "job/1/1", 2, deadline_s=0.5)
    error, seconds = broken_by(a.irecv(torch.empty(4), 1, 0).wait)
    assert error.rank == 1
    assert 0.4 < seconds < HANG_S
    a.close()
    b.close()


def test_a_meeting_nobody_joins_ends_by_its_deadline_or_when_called_off(port):
    def meet(**more: object) -> GlooTransport:
        return GlooTransport.connect("127.0.0.1", port, "job/1/9", 0, 2, 2.0, **more)

    error, _ = broken_by(meet)
    assert error.phase == "connect"
    error, seconds = broken_by(lambda: meet(cancelled=lambda: True))
    assert "called off" in str(error)
    assert seconds < 1.5


def test_the_native_sum_adds_all_members(port):
    members = group(port, "job/1/1", 3)

    def add(transport: GlooTransport) -> torch.Tensor:
        values = torch.full((1001,), float(transport.rank + 1))
        transport.native_all_reduce(values).wait()
        return values

    with ThreadPoolExecutor(3) as pool:
        assert all(torch.equal(v, torch.full((1001,), 6.0)) for v in pool.map(add, members))
    for transport in members:
        transport.close()


def test_twenty_generations_close_without_breaking_whoever_is_a_moment_behind(port):
    def member(rank: int) -> None:
        for generation in range(20):
            transport = GlooTransport.connect("127.0.0.1", port, f"job/1/{generation}", rank, 3, 60.0)
            communicator = Communicator(transport)
            values = torch.zeros(3, dtype=torch.float64)
            values[rank] = generation + rank
            total = Side(communicator).all_reduce(values)
            assert total.tolist() == [generation, generation + 1, generation + 2]
            assert communicator.close(), "the lanes have ended"

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(member, range(3)))
