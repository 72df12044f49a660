"""What the command line says of the cluster and of groups of jobs: from a control plane in memory, and the real one."""

import json
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_plane import stage
from fake_api import TOKEN, URL, FakeApi, job_id, job_view
from rich.cells import cell_len
from test_cli_access import Inside
from test_cli_jobs import Terminal

from ringleader.cli.main import main
from ringleader.client import Client

Run = Callable[..., tuple[int, str, str]]
OF_LOSS = {"last": 0.25, "min": 0.125, "max": 2.0, "jobs": 2}
GROUPS: list[dict[str, Any]] = [
    {"value": "vision", "filter": "team=vision", "jobs": 3, "metrics": {"val/loss": OF_LOSS}},
    {"value": "", "filter": "team=", "jobs": 2, "metrics": {}},
    {"value": None, "filter": "!team", "jobs": 11, "metrics": {}},
]


@pytest.fixture
def api() -> FakeApi:
    return FakeApi(jobs=[job_view(1)], groups={"groups": GROUPS, "more": False})


@pytest.fixture
def run(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> Run:
    return running(api, TOKEN, capsys)


def running(transport: httpx.BaseTransport, token: str, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments, connect=lambda: Client(URL, token, transport=transport, patience_s=0))
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return run


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_the_cluster_names_each_job_on_each_node_and_what_it_takes(run: Run) -> None:
    code, out, _ = run("cluster", "--jobs")
    nodes = out.partition("\n\n")[0].splitlines()
    assert (code, nodes[0]) == (0, "nodes: reserved of what each has")
    assert [cells(line) for line in nodes[1:]] == [
        ["NODE", "JOB", "NAME", "CPUS", "GPUS", "MEMORY_GB", "PLACES", "SERVERS", "WORKERS"],
        ["10.0.0.7 n1n1n1n1n1", job_id(1), "digits-1", "2/4", "0/1", "1.5/8", "2", "1", "w0"],
        ["10.0.0.7 n1n1n1n1n1", "-", "another project's job", "1/4", "0/1", "0/8", "1", "0", "-"],
        ["10.0.0.7 n1n1n1n1n1", "-", "other workloads", "0.5/4", "0/1", "0/8", "-", "-", "-"],
        ["n2", "-", "no job", "0/4", "-", "-", "-", "-", "-"],
    ]


def test_numbers_of_the_cluster_have_two_places_at_most(run: Run) -> None:
    code, out, _ = run("cluster")
    assert code == 0
    assert "20.83" in out
    assert "20.8337" not in out


def test_the_queue_is_told_in_its_order_with_reasons_and_how_many_are_behind(api: FakeApi, run: Run) -> None:
    header, first, second, behind = run("cluster", "--jobs")[1].partition("\nqueue\n")[2].splitlines()
    assert header.split() == [
        *("PLACE", "JOB", "NAME", "PROJECT", "WORKERS", "WAITED", "STARTS_BY", "REASON")
    ]
    assert cells(first)[:5] == ["1", job_id(2), "cifar", "default", "4"]
    assert cells(first)[-2:] == ["01-02 04:05", "3 CPUs are free, 4 needed"]
    assert cells(second) == ["2", "-", "another project's job", *["-"] * 5]
    assert behind == "and 3 jobs behind them"
    api.occupancy = {
        "queue": [],
        "waiting": 0,
        "nodes": [],
        "reachable": False,
        "trouble": "the head is gone",
    }
    assert run("cluster", "--jobs")[1] == "nodes\nout of reach: the head is gone\n\nqueue\nno job waits\n"


def test_groups_show_their_jobs_their_metrics_and_how_to_list_them(api: FakeApi, run: Run) -> None:
    asked = ("--group-by", "label:team", "--metric", "val/loss", "--owner", "ada", "--label", "a=b")
    code, out, _ = run("jobs", *asked)
    assert code == 0
    assert [cells(line) for line in out.splitlines()] == [
        ["label:team", "JOBS", "val/loss:last", "val/loss:min", "val/loss:max", "FILTER"],
        ["vision", "3", "0.25", "0.125", "2", "--label team=vision"],
        ['""', "2", "-", "-", "-", "--label team="],
        ["-", "11", "-", "-", "-", "--label '!team'"],
    ]
    assert list(api.seen[0].url.params.multi_items()) == [
        ("owner", "ada"), ("label", "a=b"), ("by", "label:team"), ("metrics", "val/loss"),
    ]  # fmt: skip
    api.groups["more"] = True
    out = run("jobs", "--group-by", "param:lr")[1]
    assert "--param team=vision" in out
    assert out.endswith("these are the 2 greatest groups; filter the jobs to see others.\n")


def test_groups_are_not_sorted(api: FakeApi, run: Run) -> None:
    code, _, err = run("jobs", "--group-by", "label:team", "--sort", "name")
    assert (code, api.seen) == (2, [])
    assert "Leave --sort out" in err


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize(
    "command", [("cluster", "--jobs"), ("jobs", "--group-by", "label:team", "--metric", "val/loss")]
)
def test_these_tables_fit_the_terminal(
    columns: int, command: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = Terminal()
    with redirect_stdout(shown):
        run(*command)
    assert max(map(cell_len, shown.getvalue().splitlines())) <= columns


def test_json_is_what_the_api_says_and_what_it_refuses_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = stage(tmp_path)
    mine = here.running(labels={"branch": "a=b"})
    behind = here.submit(workers={"min": 4, "max": 4})
    here.tick()
    run = running(Inside(here), (here.home / "token").read_text(), capsys)
    seen = json.loads(run("cluster", "--jobs", "-o", "json")[1])
    assert seen == here.client.get("/api/v1/cluster/occupancy").json()
    assert [one["job"] for one in seen["queue"]] == [behind]
    assert behind in run("cluster", "--jobs")[1]
    asked = {"by": "label:branch", "metrics": "loss"}
    groups = json.loads(run("jobs", "--group-by", "label:branch", "--metric", "loss", "-o", "json")[1])
    assert groups == here.client.get("/api/v1/jobs/groups", params=asked).json()
    assert [(one["value"], one["jobs"]) for one in groups["groups"]] == [("a=b", 1), (None, 1)]
    assert json.loads(run("jobs", "--label", groups["groups"][0]["filter"], "-o", "json")[1])[0]["id"] == mine
    code, _, err = run("jobs", "--group-by", "team")
    assert code == 2
    assert "error (bad_group)" in err


def test_the_last_days_are_summed_by_day_and_told_by_the_minute_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = stage(tmp_path)
    here.running(workers={"min": 3, "max": 3})
    for _ in range(3):
        here.time.pass_s(60)
        here.tick(3)
    run = running(Inside(here), (here.home / "token").read_text(), capsys)
    told = here.client.get("/api/v1/cluster/history", params={"hours": 2}).json()
    assert json.loads(run("cluster", "--history", "2", "-o", "json")[1]) == told
    header, *days = map(cells, run("cluster", "--history", "2")[1].splitlines())
    assert header == ["DAY", "CPU_H_HELD", "CPU_H_IDLE", "GPU_H_HELD", "GPU_H_IDLE"]
    held, had = sum(told["held_cpus"]) / 60, sum(told["cpus"]) / 60
    assert [day[1:] for day in days] == [[f"{held:.2f}", f"{had - held:.2f}", "0.00", "0.00"]]
    assert held > 0.1


def test_the_last_days_are_refused_beside_the_jobs_and_beyond_a_week(api: FakeApi, run: Run) -> None:
    code, _, err = run("cluster", "--jobs", "--history", "2")
    assert (code, api.seen) == (2, [])
    assert "Give one of them" in err
    assert run("cluster", "--history", "169")[0] == 2
