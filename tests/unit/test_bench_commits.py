"""How a recovery is read from what workers wrote down, by the same rule for every system."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from ringleader.bench.broken import BrokenPromise, PeerFailed
from ringleader.bench.elasticity.commits import (
    STEADY_COMMITS,
    Commit,
    CommitLog,
    Commits,
    await_recovery,
    wait_for,
)

STEP_S = 0.1


def group(pids: list[int], membership: int, first_step: int, at: float, steps: int = 15) -> list[Commit]:
    return [
        Commit(pid, first_step + n, membership, at + n * STEP_S + pid / 1000)
        for pid in pids
        for n in range(steps)
    ]


def test_a_recovery_is_counted_from_the_kill_to_the_last_survivors_first_commit_less_one_step() -> None:
    commits = Commits(group([1, 2, 3], 1, 0, at=0) + group([1, 2], 2, 15, at=2.0))
    found = commits.recovery(killed_at=1.5, victim=3)
    assert found is not None
    assert found.seconds == pytest.approx(2.002 - 1.5 - STEP_S)
    assert (found.steps_lost, found.survivors_stayed) == (0, True)


def test_a_step_reduced_before_the_kill_is_no_recovery() -> None:
    late = [Commit(1, 15, 1, 1.55), Commit(2, 15, 1, 1.55)]
    commits = Commits(group([1, 2, 3], 1, 0, at=0) + late + group([1, 2], 2, 16, at=2.0))
    found = commits.recovery(killed_at=1.5, victim=3)
    assert found is not None
    assert found.seconds == pytest.approx(0.402)
    assert found.steps_lost == 0


def test_whoever_measures_a_recovery_computes_nothing_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringleader.bench.elasticity.commits.QUIET_S", 0.05)
    began, looks = time.monotonic(), list[float]()
    before = group([1, 2, 3], 1, 0, at=began - 2.0)

    def read() -> Commits:
        looks.append(time.monotonic())
        return Commits(before + group([1, 2], 2, 15, at=began + 0.1) if len(looks) == 3 else before)

    found = await_recovery(read, killed_at=began, victim=3, deadline_s=60, check=lambda: None)
    assert found.survivors_stayed
    assert all(later - earlier >= 0.05 for earlier, later in pairwise([began, *looks]))


def test_steps_done_again_are_steps_lost() -> None:
    found = Commits(group([1, 2, 3], 1, 0, at=0) + group([4, 5], 2, 10, at=9.0)).recovery(1.5, 3)
    assert found is not None
    assert (found.steps_lost, found.survivors_stayed) == (5, False)


def test_an_unsteady_group_has_not_recovered_yet() -> None:
    young = group([1, 2], 2, 15, at=2.0, steps=STEADY_COMMITS - 1)
    assert Commits(group([1, 2, 3], 1, 0, at=0) + young).recovery(1.5, 3) is None
    half = young[: STEADY_COMMITS - 1] + group([2], 2, 15, at=2.0)
    assert Commits(group([1, 2, 3], 1, 0, at=0) + half).recovery(1.5, 3) is None
    assert Commits(group([1, 2, 3], 1, 0, at=0)).recovery(1.5, 3) is None


def test_a_step_that_nobody_commits_or_somebody_twice_breaks_the_promise() -> None:
    both = group([1, 2], 1, 0, at=0)
    newest = max(commit.step for commit in both)
    healed = [
        *both,
        Commit(1, newest + 1, 2, 5.0),
        Commit(1, newest + 2, 2, 5.1),
        Commit(2, newest + 2, 2, 5.1),
    ]
    Commits(healed).check_each_once()
    with pytest.raises(BrokenPromise, match=f"nobody committed a step between {newest} and {newest + 2}"):
        Commits([*both, Commit(2, newest + 2, 2, 5.0)]).check_each_once()
    with pytest.raises(BrokenPromise, match=f"process 2 committed step {newest} after step {newest}"):
        Commits([*both, Commit(2, newest, 2, 5.0)]).check_each_once()


def test_a_half_written_line_is_not_read(tmp_path: Path) -> None:
    log = CommitLog(tmp_path)
    log.committed(step=3, membership=2)
    log.close()
    path = next(tmp_path.glob("*.commits"))
    with path.open("a") as file:
        file.write("4 2 17")
    assert [(c.step, c.membership) for c in Commits.read(tmp_path).all] == [(3, 2)]


def test_a_wait_ends_at_its_deadline_and_says_what_it_waited_for() -> None:
    with pytest.raises(PeerFailed, match=r"a miracle did not happen within 0\.1 s"):
        wait_for("a miracle", lambda: None, 0.1, lambda: None)
