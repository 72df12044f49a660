"""A supervisor that lives but has stopped posting: told of, and ended only where it does not answer the cluster."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from control_plane import Stage, stage, status

from ringleader_api.reconciling.liveness import SupervisorLiveness
from ringleader_api.reconciling.round_clock import RoundClock, Who
from ringleader_api.scheduling import NodeShape
from ringleader_api.store.tables import Job


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def pass_s(here: Stage, seconds: int, each: int = 1) -> None:
    """So many seconds, a round each."""
    for _ in range(0, seconds, each):
        here.time.pass_s(each)
        here.tick()


def heard(here: Stage) -> str:
    """A running job that the reconciler has seen post."""
    job_id = here.running()
    here.tick()
    return job_id


def words(here: Stage, job_id: str) -> list[str]:
    return [kind for kind in here.events(job_id) if kind.startswith("supervisor.")]


def code(here: Stage, job_id: str) -> str:
    why = here.job(job_id)["pending_reason"]
    return str(why["code"]) if why else ""


def test_one_that_answers_is_told_of_once_and_left_alone_however_long_it_is_silent(here: Stage) -> None:
    job_id = heard(here)
    pass_s(here, 14)
    assert (code(here, job_id), here.cluster.asked_whether) == ("", [])
    pass_s(here, 1)
    assert code(here, job_id) == "supervisor_silent"
    pass_s(here, 600, each=5)
    assert (here.state(job_id), words(here, job_id)) == ("running", ["supervisor.silent"])
    assert len(here.cluster.asked_whether) == 41, "once in 15 s"
    assert here.cluster.starts == [(job_id, 1)]
    assert not [told for told in here.cluster.told if told[0] == "release"]


def test_one_that_posts_again_is_as_if_nothing_had_been(here: Stage) -> None:
    job_id = heard(here)
    pass_s(here, 20)
    here.post(job_id, status=status("running", step=3))
    here.tick()
    assert (code(here, job_id), words(here, job_id)) == ("", ["supervisor.silent", "supervisor.heard"])
    pass_s(here, 14)
    assert code(here, job_id) == ""
    pass_s(here, 1)
    assert code(here, job_id) == "supervisor_silent"


def test_posts_of_a_job_without_progress_are_heard(here: Stage) -> None:
    job_id = heard(here)
    for _ in range(10):
        pass_s(here, 4)
        here.post(job_id, status=status("running"))
    assert (words(here, job_id), here.cluster.asked_whether) == ([], [])


def test_a_frozen_one_is_ended_after_its_time_and_what_it_posts_later_is_refused(here: Stage) -> None:
    job_id = heard(here)
    token = here.cluster.alive[job_id, 1].ingest_token
    here.cluster.frozen.add((job_id, 1))
    pass_s(here, 15 + 59)
    assert (here.state(job_id), code(here, job_id)) == ("running", "supervisor_frozen")
    here.cluster.lingers = True  # it takes a while to go
    pass_s(here, 3)
    assert (here.state(job_id), code(here, job_id)) == ("queued", "retrying")
    assert here.cluster.starts == [(job_id, 1)], "nobody trains beside what may still be there"
    here.cluster.lingers = False
    pass_s(here, 2)
    assert here.cluster.starts == [(job_id, 1), (job_id, 2)]
    refused = here.post(job_id, token=token, expect=409, status=status("running", step=99))
    assert refused["code"] == "stale_attempt"
    assert (here.job(job_id)["progress"]["step"], here.job(job_id)["failures"]["spent"]) == (0, 1)


def test_one_that_answers_at_the_last_moment_is_not_ended(here: Stage) -> None:
    job_id = heard(here)
    here.cluster.frozen.add((job_id, 1))
    pass_s(here, 15 + 59)
    here.cluster.frozen.clear()
    pass_s(here, 60)
    assert (here.state(job_id), code(here, job_id)) == ("running", "supervisor_silent")
    assert here.cluster.starts == [(job_id, 1)]


def test_one_that_was_silent_and_answered_has_its_whole_time_once_it_is_frozen(here: Stage) -> None:
    job_id = heard(here)
    pass_s(here, 600, each=5)
    here.cluster.frozen.add((job_id, 1))
    pass_s(here, 15 + 59)
    assert (here.state(job_id), code(here, job_id)) == ("running", "supervisor_frozen")
    pass_s(here, 1)
    assert here.state(job_id) == "queued"


def test_a_frozen_one_is_told_nothing_that_would_hold_up_the_others(here: Stage) -> None:
    job_id = heard(here)
    here.cluster.frozen.add((job_id, 1))
    pass_s(here, 15)
    here.client.patch(f"/api/v1/jobs/{job_id}", json={"workers": {"max": 2}})
    pass_s(here, 5)
    assert not [told for told in here.cluster.told if told[0] == "resize"]
    here.post(job_id, status=status("running"))
    pass_s(here, 2)
    assert [told[3:] for told in here.cluster.told if told[0] == "resize"] == [(2, 2)]


def many(here: Stage, jobs: int) -> list[str]:
    """So many running jobs of which nothing is heard from now on."""
    here.cluster.nodes = [NodeShape("n1", 3.0 * jobs, 0, 16.0 * jobs)]
    return [heard(here) for _ in range(jobs)]


def takes_s(here: Stage, seconds: float) -> None:
    """So long takes one question to the cluster, about however many supervisors."""
    here.cluster.cut = lambda where: here.time.pass_s(seconds if where == "after answers" else 0)


def listen(
    here: Stage, rounds: RoundClock, hearing: SupervisorLiveness, heard_at: dict[Who, datetime]
) -> list[Who]:
    """A round, and a second; returns who is to be asked."""
    rounds.begin()
    hearing.begin_round(set(heard_at))
    due = [who for who, at in heard_at.items() if hearing.listen(who, at).ask]
    here.time.pass_s(1)
    return due


def test_all_that_are_silent_are_asked_in_the_time_of_one(here: Stage) -> None:
    jobs = many(here, 6)
    here.cluster.frozen = {(job_id, 1) for job_id in jobs}
    takes_s(here, 2)
    before = here.time()
    pass_s(here, 15)
    assert (here.time() - before).total_seconds() == 17
    assert {code(here, job_id) for job_id in jobs} == {"supervisor_frozen"}


def test_who_was_not_heard_of_for_longest_is_asked_first_and_nobody_twice_before_all(here: Stage) -> None:
    hearing = SupervisorLiveness(rounds := RoundClock(here.time), 15)
    everybody = [("b", 1), ("c", 1), ("a", 1), ("d", 1)]
    heard_at: dict[Who, datetime] = {}
    for who in everybody:
        heard_at[who] = here.time()
        listen(here, rounds, hearing, heard_at)
    for _ in range(20):
        listen(here, rounds, hearing, heard_at)
    asked = []
    for _ in range(8):
        turn = hearing.turn(listen(here, rounds, hearing, heard_at))
        asked += turn[:1]  # there was no time for more
        hearing.asked(turn[0])
        for _ in range(3):
            listen(here, rounds, hearing, heard_at)
    assert asked == everybody * 2


def test_asking_takes_a_third_of_the_time_at_most(here: Stage) -> None:
    many(here, 12)
    here.cluster.reached = 1
    takes_s(here, 2)
    pass_s(here, 15)
    before, asked = here.time(), len(here.cluster.asked_whether)
    pass_s(here, 40)
    asked = len(here.cluster.asked_whether) - asked
    assert asked == 10
    assert 2 * asked <= (here.time() - before).total_seconds() / 3


def test_of_many_that_are_frozen_one_in_a_round_is_ended(here: Stage) -> None:
    jobs = many(here, 3)
    here.cluster.frozen = {(job_id, 1) for job_id in jobs}
    pass_s(here, 15 + 59)
    assert {here.state(job_id) for job_id in jobs} == {"running"}
    ended = []
    for _ in range(3):
        pass_s(here, 1)
        ended.append(len({told for told in here.cluster.told if told[0] == "release"}))
    assert ended == [1, 2, 3]


def test_a_question_that_fails_keeps_nobody_from_being_admitted(here: Stage) -> None:
    jobs = many(here, 2)
    here.cluster.nodes = [NodeShape("n1", 9, 0, 48)]

    def cut(where: str) -> None:
        if where == "before answers":
            raise ConnectionError("the connection broke")

    here.cluster.cut = cut
    pass_s(here, 20)
    waiting = here.submit()
    here.tick()
    assert here.state(waiting) == "starting"
    here.cluster.cut = lambda where: None
    pass_s(here, 1)
    assert {code(here, job_id) for job_id in jobs} == {"supervisor_silent"}


def test_nobody_is_silent_because_nobody_listened(here: Stage) -> None:
    job_id = heard(here)
    here.cluster.frozen.add((job_id, 1))
    pass_s(here, 10)
    here.time.pass_s(10_000)  # this process was stopped
    here.tick()
    pass_s(here, 15)
    assert (here.state(job_id), code(here, job_id)) == ("running", "supervisor_frozen"), (
        "asked twice, not ended"
    )
    here.cluster.down = True
    pass_s(here, 100, each=5)
    here.cluster.down = False
    again = stage(here.home, here.cluster)
    for one in (here, again):
        pass_s(one, 45, each=3)
        assert one.state(job_id) == "running"
    assert here.cluster.starts == [(job_id, 1)]


def test_one_that_has_never_posted_is_starting(here: Stage) -> None:
    job_id = here.started()
    pass_s(here, 100, each=5)
    assert (here.state(job_id), here.cluster.asked_whether) == ("starting", [])


def test_silence_is_counted_by_ones_own_clock(here: Stage) -> None:
    hearing = SupervisorLiveness(rounds := RoundClock(here.time), 15)
    ahead = datetime(2999, 1, 1, tzinfo=UTC)  # another control plane's clock
    found = []
    for _ in range(4):
        rounds.begin()
        hearing.begin_round({("job", 1)})
        found.append(hearing.listen(("job", 1), ahead))
        here.time.pass_s(5)
    assert [(s.for_s, s.ask) for s in found] == [(0, False), (5, False), (10, False), (15, True)]


def test_a_note_that_somebody_posts_is_written_now_and_then_only(here: Stage) -> None:
    job_id = heard(here)
    noted = set()
    for _ in range(12):
        here.time.pass_s(1)
        here.post(job_id, status=status("running"))
        with here.control.store.read() as session:
            noted.add(session.get_one(Job, job_id).heard_at)
    assert len(noted) in (4, 5)


def test_a_post_is_noted_although_the_replica_that_took_the_last_one_is_ahead(here: Stage) -> None:
    job_id = heard(here)
    here.time.pass_s(-60)
    here.post(job_id, status=status("running"))
    with here.control.store.read() as session:
        assert session.get_one(Job, job_id).heard_at == here.time()
