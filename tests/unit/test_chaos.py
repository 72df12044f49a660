"""The fault injector: the same seed is the same script, and what the job did is read from its events."""

import json
from typing import Any

import pytest
from fake_api import TOKEN, URL, FakeApi, event, job_id, job_view

from ringleader.cli.main import main
from ringleader.client import Client
from ringleader.client.chaos import MISSES, Act, Chaos


def worker(number: int, role: str = "worker") -> dict[str, Any]:
    name = f"{role[0]}{number}"
    view = {
        "id": name,
        "role": role,
        "rank": number,
        "pid": 7,
        "node": "n",
        "state": "active",
        "generation": 1,
    }
    return {**view, "shards": [0, 1]}


@pytest.fixture
def api() -> FakeApi:
    return FakeApi(jobs=[job_view(1)], workers=[*map(worker, range(3)), worker(3, "server")])


def chaos(api: FakeApi, seed: int, *faults: Any, acts: int = 12) -> Chaos:
    job = Client(URL, TOKEN, transport=api).job(job_id(1))
    return Chaos(job, seed=seed, faults=faults, acts=acts, sleep=lambda seconds: None)


def script(acts: list[Act]) -> list[tuple[str, str]]:
    return [(act.fault, act.target) for act in acts]


def test_the_same_seed_is_the_same_script_and_another_one_is_not(api: FakeApi) -> None:
    scripts = [script(list(chaos(api, seed, "kill", "freeze", "drain").acts())) for seed in (1, 1, 2)]
    assert scripts[0] == scripts[1] != scripts[2]
    assert {fault for fault, _ in scripts[0]} == {"kill", "freeze", "drain"}
    assert {target for _, target in scripts[0]} == {"w0", "w1", "w2"}


def test_servers_are_harmed_by_server_faults_alone_and_the_supervisor_has_no_id(api: FakeApi) -> None:
    assert set(script(list(chaos(api, 3, "server", "supervisor").acts()))) == {
        ("server", "s3"),
        ("supervisor", "supervisor"),
    }


def test_a_fault_without_a_victim_is_told_and_not_counted(api: FakeApi) -> None:
    api.workers = [worker(0), worker(1)]
    run = chaos(api, 1, "server", acts=2)
    told = [(act.done, act.effect) for act in run.acts()]
    assert told == [(False, "not done: the job has no server")] * MISSES, "it ends all the same"
    assert run.toll().acts == 0


def test_as_many_faults_happen_as_were_asked_for(api: FakeApi) -> None:
    api.workers = [worker(0), worker(1)]
    run = chaos(api, 1, "server", "kill", acts=4)
    done = [act.done for act in run.acts()]
    assert (done.count(True), run.toll().acts) == (4, 4)
    assert False in done, "some found no server"
    assert done[-1], "it ends with the last that is done"


def test_the_acts_end_with_the_job(api: FakeApi) -> None:
    acts = chaos(api, 1, "kill").acts()
    next(acts)
    api.jobs[0]["state"] = "succeeded"
    assert list(acts) == []


def test_the_command_prints_each_act_and_what_the_job_did(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    before = event(1, "recovered", total_s=9.0, steps_lost=9)
    api.feeds["events"] = [before]
    command = [
        "chaos",
        job_id(1),
        "--seed",
        "1",
        "--faults",
        "kill",
        "--acts",
        "2",
        "--every-s",
        "0.1",
        "-o",
        "json",
    ]

    class Recovering(FakeApi):
        def _fault(self, request: Any) -> Any:
            n = len(self.feeds["events"])
            self.feeds["events"] += [
                event(n + 1, "worker.lost", worker="w1"),
                event(n + 2, "recovered", total_s=0.1 * n, steps_lost=0),
                event(n + 3, "checkpoint.restored", step=8, steps_lost=2),
            ]
            return super()._fault(request)

    api.__class__ = Recovering
    assert main(command, connect=lambda: Client(URL, TOKEN, transport=api)) == 1, "it has lost steps"
    *acts, toll = map(json.loads, capsys.readouterr().out.splitlines())
    assert [act["fault"] for act in acts] == ["kill", "kill"]
    expected = {"acts": 2, "lost": 2, "recoveries": 2, "steps_lost": 4, "attempts": 0, "state": "running"}
    assert {name: toll[name] for name in expected} == expected
    assert toll["worst_s"] == pytest.approx(0.4)


def test_a_job_that_does_not_recover_is_named_behind_the_report_of_what_was_done(
    api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Falling(FakeApi):
        def _fault(self, request: Any) -> Any:
            self.workers = []
            return super()._fault(request)

    api.__class__ = Falling
    monkeypatch.setattr("ringleader.client.chaos.WHOLE_S", -1.0)
    command = ["chaos", job_id(1), "--seed", "1", "--acts", "2", "--every-s", "0.1", "-o", "json"]
    assert main(command, connect=lambda: Client(URL, TOKEN, transport=api)) == 1
    said = capsys.readouterr()
    act, toll = map(json.loads, said.out.splitlines())
    assert (act["fault"], toll["acts"]) == ("kill", 1)
    assert "fewer than 2 active workers" in said.err


def test_a_word_that_is_no_fault_is_named(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["chaos", job_id(1), "--seed", "1", "--faults", "kill,maim"]
    assert main(command, connect=lambda: Client(URL, TOKEN, transport=api)) == 1
    assert "maim" in capsys.readouterr().err
