"""Shared memory alone: exact sums in place, ends that leave nothing, and memory that is not what was promised."""

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from canonical import combine
from exchange_members import Member, on_members, plan_of, slice_rows, transports
from forks import processes
from rooms import SECRET, open_room

from ringleader.comm.communicator import Communicator
from ringleader.comm.schedules import RankPart
from ringleader.comm.segments import Arena, Segment
from ringleader.comm.transports.flags import Peers
from ringleader.comm.transports.meeting import SHARED, MeetingCall, meet
from ringleader.comm.transports.shared import LEAST_BYTES, SharedTransport
from ringleader.comm.tree import tree_over
from ringleader.elastic.plan import owned
from ringleader.errors import ExchangeBroken
from ringleader.exchange.side_channel import STATE_WINDOW, SideChannel

SHARDS = 8
HANG_S = 60.0
DESCRIPTORS_OF_ROWS = 2
"""Of one member: its rows are in one segment, which the buckets keep; the mapping has a descriptor too."""


def on_board(
    world: int, act: Callable[[SharedTransport], object], members: list[SharedTransport] | None = None
) -> list:
    members = members or transports(world, shared=True)
    with ThreadPoolExecutor(world) as pool:
        results = list(pool.map(act, members))
    for member in members:
        member.close()
    return results


def segments_open() -> set[tuple[str, int]]:
    """(descriptor, inode) of each: what other tests have left may go at any time."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing itself
            if str(entry.readlink()).startswith("/memfd:ringleader"):
                found.add((entry.name, entry.stat().st_ino))
    return found


@pytest.mark.parametrize("length", [0, 1, 3, 10_007, 300_000])
@pytest.mark.parametrize("world", range(1, 9))
def test_the_sum_in_place_is_the_canonical_one_on_every_member(world, length):
    """300,000 elements are several chunks a member; the values differ in size, so that the order shows in the bits."""
    generator = torch.Generator().manual_seed(world)
    values = {k: torch.randn(length, generator=generator) * 10.0**k for k in range(SHARDS)}
    present = frozenset(range(SHARDS)) - {5}
    tree = tree_over(SHARDS, present)
    expected = combine(tree, {k: values[k] for k in present}, torch.add)
    owned = [range(r * SHARDS // world, (r + 1) * SHARDS // world) for r in range(world)]
    rows = tuple(tree.partials(shards) for shards in owned)

    def reduce(member: SharedTransport) -> torch.Tensor:
        arena, board = Arena(), member.board(1, rows=max(map(len, rows)))
        for _ in range(3):  # the second and third time the prepared operations are used again
            mine = [arena.empty(length, torch.float32) for _ in range(max(1, len(rows[member.rank])))]
            for row, node in zip(mine, rows[member.rank], strict=False):
                below = frozenset(node.covers(SHARDS)) & present
                row.copy_(combine(tree_over(SHARDS, below), {k: values[k] for k in below}, torch.add))
            board.reduce(0, RankPart(member.rank, length, rows, tree), mine, [arena.address(r) for r in mine])
        return mine[0].clone()

    for result in on_board(world, reduce):
        assert torch.equal(result, expected)


def test_other_shards_in_the_same_rows_are_added_along_their_own_tree():
    """One shard of each member has rows: 1, 2 and 5, then 1, 4 and 5, of which the last two are siblings."""
    values = (1e8, -1e8, 1.0)

    def reduce(member: SharedTransport) -> list[float]:
        arena, board, sums = Arena(), member.board(1, rows=1), []
        home = arena.empty(1, torch.float32)
        for present in (frozenset({1, 2, 5}), frozenset({1, 4, 5})):
            tree = tree_over(SHARDS, present)
            rows = tuple(tree.partials(owned(rank, 3, SHARDS)) for rank in range(3))
            home.fill_(values[member.rank])
            board.reduce(0, RankPart(member.rank, 1, rows, tree), [home], [arena.address(home)])
            sums.append(home.item())
        return sums

    assert on_board(3, reduce) == [[1.0, 0.0]] * 3


@pytest.mark.parametrize("servers", [0, 2])
def test_a_member_may_bring_any_number_of_partial_sums(servers):
    """Of 10,922 shards the third of four workers owns 17 nodes of the tree: the ends of all nodes cut them alike."""
    shards, workers = 10_922, 4
    whole = tree_over(shards, frozenset(range(shards)))
    nodes = [whole.partials(owned(rank, workers, shards)) for rank in range(workers)]
    assert max(map(len, nodes)) == 17
    ends = {end for n in sum(nodes, ()) for end in (n.covers(shards)[0], n.covers(shards)[-1])}
    with_rows = {shard for shard in range(shards) if len(slice_rows(0, shard, shards)[0])}
    absent = frozenset(range(shards)) - ends - with_rows

    def train(member: Member) -> dict[str, torch.Tensor]:
        return member.train(2, absent)

    (alone,) = on_members(plan_of(1, shards), train)
    for net in on_members(plan_of(workers, shards, servers), train, shared=True):
        assert all(torch.equal(net[name], alone[name]) for name in alone)


@pytest.mark.parametrize("leave", ["abort", "close"])
@pytest.mark.parametrize("servers", [0, 2])
def test_who_leaves_ends_the_sums_in_place_that_wait_for_its_rows(servers, leave):
    plan = plan_of(3, 3, servers)
    begun = threading.Barrier(len(plan.members))

    def step(member: Member) -> bool:
        if member.rank == 0:
            begun.wait(HANG_S)
            getattr(member.exchange, leave)()
            return True
        member.gradient(0, frozenset(range(3)))
        begun.wait(HANG_S)
        with pytest.raises(ExchangeBroken):
            member.exchange.finish(torch.zeros(len(plan.members)))
        member.exchange.close()  # which would end this process if a thread still waited
        return not member.exchange.buckets.tainted

    assert all(on_members(plan, step, shared=True))


class Read:
    """A word that nobody writes, and how often it was looked at."""

    def __init__(self) -> None:
        self.times = 0

    def __getitem__(self, index: int) -> int:
        self.times += 1
        return 0


def test_a_member_that_has_left_does_not_begin_to_spin():
    """On a machine with many more threads than cores the turns of a spin take longer than a lane has to end."""
    control, word = memoryview(bytearray(16)).cast("q"), Read()
    peers = Peers(0, [control, control], [0, 0], 10.0)
    peers.leave("the generation was given up")
    with pytest.raises(ExchangeBroken, match="given up"):
        peers.wait(word, 0, 1, peer=1)  # type: ignore[arg-type]
    assert word.times <= 2
    peers.close()


def test_a_closed_group_leaves_no_segment_open():
    before = segments_open()

    def reduce(member: SharedTransport) -> None:
        arena = Arena()
        row = arena.empty(7, torch.float32)
        tree = tree_over(2, frozenset({0, 1}))
        rows = tuple(tree.partials(range(r, r + 1)) for r in range(2))
        member.board(1, rows=1).reduce(0, RankPart(member.rank, 7, rows, tree), [row], [arena.address(row)])
        member.isend(torch.ones(3), 1 - member.rank, 0)
        member.irecv(torch.empty(3), 1 - member.rank, 0).wait()

    on_board(2, reduce)
    assert segments_open() <= before


def test_exchanges_that_are_closed_leave_no_segment_to_the_collector():
    """Training code often switches the collector off."""

    def train(member: Member) -> None:
        member.train(2)
        member.exchange.buckets.release()

    gc.collect()  # what other tests have left
    before = segments_open()
    gc.disable()
    try:
        for _ in range(3):
            on_members(plan_of(3, 8), train, shared=True)
        # The helper's own frame keeps the last generation's control segments: three, each mapped by three.
        assert len(segments_open() - before) <= 3 * 3 * DESCRIPTORS_OF_ROWS + 3 * 3
    finally:
        gc.enable()
    gc.collect()
    assert segments_open() <= before


def test_a_sender_of_much_state_holds_a_window_of_it():
    payload = torch.arange(5 * STATE_WINDOW // 2, dtype=torch.int64).view(torch.uint8)

    def heal(member: SharedTransport) -> torch.Tensor | int:
        communicator = Communicator(member)
        side = SideChannel(communicator)
        if member.rank == 1:
            received = side.receive_state(0)
            assert communicator.close()
            return received
        side.send_state(1, payload)
        held = sum(memory.nbytes for kept in member._outbox._free.values() for memory in kept)
        held += sum(memory.nbytes for sent in member._on_their_way for _, _, memory in sent)
        assert communicator.close()
        return held

    with ThreadPoolExecutor(2) as pool:
        held, received = pool.map(heal, transports(2, shared=True))
    assert torch.equal(received, payload)
    assert held <= STATE_WINDOW + 2 * LEAST_BYTES


def test_a_forked_child_cannot_reach_its_parents_segments():
    arena = Arena()
    row = arena.empty(8, torch.float32)
    row.fill_(7.0)
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # it is meant to die of it
        row.zero_()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    assert row.tolist() == [7.0] * 8


def test_rows_that_move_to_other_memory_are_found_there_although_the_descriptor_is_used_again():
    """An arena is let go and the next one gets its descriptor, as when a job's buckets are laid out anew."""
    tree = tree_over(2, frozenset({0, 1}))
    rows = tuple(tree.partials(range(r, r + 1)) for r in range(2))

    def reduce(member: SharedTransport) -> list[float]:
        seen, board = [], member.board(1, rows=1)
        for length in (3, 1 << 20):
            arena = Arena()
            row = arena.empty(length, torch.float32)
            row.fill_(length)
            board.reduce(0, RankPart(member.rank, length, rows, tree), [row], [arena.address(row)])
            seen.append(row[-1].item())
            del arena, row
        return seen

    assert on_board(2, reduce) == [[6.0, float(2 << 20)]] * 2


def test_members_that_cannot_map_each_other_say_so():
    here, elsewhere = SharedTransport(0, 2, "here", 1.0), SharedTransport(1, 2, "elsewhere", 1.0)
    assert here.attach([here.place, elsewhere.place]) == {0}
    assert elsewhere.attach([None, elsewhere.place]) == {1}
    for member in (here, elsewhere):
        member.close()


def test_a_control_segment_of_another_member_is_not_taken_for_the_one_that_was_told():
    """Process id and descriptor are those, as where both were used again."""
    first, second = (SharedTransport(rank, 2, "here", 1.0) for rank in range(2))
    before = replace(second.place, nonce=second.place.nonce ^ 1)
    assert first.attach([first.place, before]) == {0}
    assert second.attach([first.place, second.place]) == {0, 1}
    for member in (first, second):
        member.close()


def test_a_descriptor_that_is_no_segment_is_never_mapped(tmp_path):
    with (tmp_path / "precious").open("wb") as file:
        file.write(b"x" * 4096)
        file.flush()
        with pytest.raises(OSError, match="is no segment"):
            Segment.of(os.getpid(), file.fileno())


def test_memory_of_a_member_that_has_left_is_never_mapped():
    """It may have closed the descriptor and opened something else under the same number."""
    first, second = transports(2, shared=True)
    first.isend(torch.ones(3), 1, 0)
    first.abort()
    with pytest.raises(ExchangeBroken) as caught:
        second.irecv(torch.empty(3), 0, 0).wait()
    assert caught.value.rank == 0
    for member in (first, second):
        member.close()


def test_rows_of_a_member_that_has_left_are_not_written():
    """It said that they may be used, and left: it may use them for something else."""
    tree = tree_over(2, frozenset({0, 1}))
    rows = tuple(tree.partials(range(r, r + 1)) for r in range(2))
    members, arena = transports(2, shared=True), Arena()
    homes = [arena.empty(8, torch.float32) for _ in members]
    posts = [[arena.address(home)] for home in homes]

    def reduce(member: SharedTransport) -> None:
        part, home = RankPart(member.rank, 8, rows, tree), homes[member.rank]
        member.board(1, rows=1).reduce(0, part, [home.fill_(1.0)], posts[member.rank])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(reduce, members))
    first, second = members
    homes[1].fill_(7.0)
    second.board(1, rows=1).offer(0, posts[1])
    second.abort()
    with pytest.raises(ExchangeBroken) as caught:
        reduce(first)
    assert caught.value.rank == 1
    assert homes[1].tolist() == [7.0] * 8
    for member in members:
        member.close()


def test_a_message_of_another_size_than_expected_breaks_the_exchange():
    first, second = transports(2, shared=True)
    first.isend(torch.ones(3), 1, 0)
    with pytest.raises(ExchangeBroken, match="12 bytes came for tag 0 where 16 are due"):
        second.irecv(torch.empty(4), 0, 0).wait()
    second.abort()
    for member in (first, second):
        member.close()


def attend_and_hang(port: int, told: Connection) -> None:
    member = meet(
        MeetingCall("127.0.0.1", port, "job/1/1", 1, 2, HANG_S, SECRET, host="127.0.0.1", kinds=(SHARED,))
    )
    told.send(member.shared)
    time.sleep(HANG_S)


def test_a_killed_member_is_noticed_by_who_waits_for_it_alone():
    """Nobody else says so: its process has ended."""
    store = open_room()
    here, there = processes().Pipe()
    victim = processes().Process(target=attend_and_hang, args=(store.port, there))
    victim.start()
    mine = meet(
        MeetingCall(
            "127.0.0.1", store.port, "job/1/1", 0, 2, HANG_S, SECRET, host="127.0.0.1", kinds=(SHARED,)
        )
    )
    assert here.recv()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(mine.irecv(torch.empty(4), 1, 0).wait)
        victim.kill()
        with pytest.raises(ExchangeBroken, match="process has ended"):
            waiting.result(HANG_S)
    mine.close()
    victim.join(HANG_S)


def test_a_segment_outlives_nobody():
    """A process that holds a segment is killed: nothing is left under any name."""
    script = (
        "from ringleader.comm.segments import Segment; s = Segment.create(1 << 20);"
        "print(s.descriptor, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        descriptor = int(owner.stdout.readline())
        kept = Path(f"/proc/{owner.pid}/fd/{descriptor}").stat()
        mapped = Segment.of(owner.pid, descriptor)
        assert len(mapped.words()) == (1 << 20) // 8
        owner.kill()
    assert owner.wait(HANG_S) != 0
    assert not kept.st_nlink, "it has a name"
    with pytest.raises(OSError, match="No such"):
        Segment.of(owner.pid, descriptor)
