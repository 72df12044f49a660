"""Group commit: who waits shares the next transaction, and an error is its owner's alone."""

import threading
from collections.abc import Sequence

import pytest
from waiting import wait_for

from ringleader_api.services.records import group_commit
from ringleader_api.services.records.group_commit import GroupCommit

HANG_S = 30


class Disk:
    """Answers ten times what was asked; the first call waits for `go`."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.broken: set[int] = set()

    def carry_out(self, asked: Sequence[int]) -> Sequence[int | Exception]:
        self.batches.append(sorted(asked))
        if len(self.batches) == 1:
            assert self.go.wait(HANG_S)
        if self.broken & set(asked):
            raise OSError("the whole transaction")
        return [ValueError(str(n)) if n < 0 else 10 * n for n in asked]


def ask(
    group: GroupCommit[int, int], numbers: Sequence[int]
) -> tuple[dict[int, object], list[threading.Thread]]:
    told: dict[int, object] = {}

    def one(number: int) -> None:
        try:
            told[number] = group(number)
        except Exception as error:
            told[number] = repr(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    return told, threads


def test_who_comes_while_one_is_written_shares_the_next(disk: Disk) -> None:
    group = GroupCommit(disk.carry_out, most=3)
    first, threads = ask(group, [1])
    wait_for("first transaction", lambda: disk.batches)
    rest, more = ask(group, [2, 3, -4, 5])
    wait_for("everybody waits", lambda: len(group._waiting) == 4)
    disk.go.set()
    for thread in threads + more:
        thread.join(HANG_S)
    assert {**first, **rest} == {1: 10, 2: 20, 3: 30, -4: "ValueError('-4')", 5: 50}
    assert [len(batch) for batch in disk.batches] == [1, 3, 1]


def test_when_a_transaction_fails_each_is_tried_alone(disk: Disk) -> None:
    group = GroupCommit(disk.carry_out, most=9)
    disk.broken = {3}
    _, threads = ask(group, [1])
    wait_for("first transaction", lambda: disk.batches)
    told, more = ask(group, [2, 3])
    wait_for("everybody waits", lambda: len(group._waiting) == 2)
    disk.go.set()
    for thread in threads + more:
        thread.join(HANG_S)
    assert told == {2: 20, 3: "OSError('the whole transaction')"}
    assert disk.batches[:2] == [[1], [2, 3]]


def test_who_had_company_waits_a_moment_for_more(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """`linger` stands for the moment: another one comes in it."""
    joined: list[threading.Thread] = []

    def linger(_seconds: float) -> None:
        joined.extend(ask(crowd, [5])[1])
        wait_for("the other one", lambda: len(crowd._waiting) == 2)

    monkeypatch.setattr(group_commit, "sleep", linger)
    disk.go.set()
    crowd = GroupCommit(disk.carry_out, most=9)
    assert crowd(1) == 10
    crowd._crowded = True
    assert crowd(4) == 40
    for thread in joined:
        thread.join(HANG_S)
    assert disk.batches == [[1], [4, 5]]


@pytest.fixture
def disk() -> Disk:
    return Disk()
