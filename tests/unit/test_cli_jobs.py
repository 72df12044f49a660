"""The command line against a control plane in memory: what it prints, and how it exits."""

import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_api import (
    AT,
    FAILED,
    RESULT,
    SUCCEEDED,
    TOKEN,
    URL,
    FakeApi,
    event,
    job_id,
    job_view,
    log,
    problem,
    sse,
    stream,
)
from rich.cells import cell_len

from ringleader.cli.main import main
from ringleader.client import Client

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def api() -> FakeApi:
    return FakeApi(jobs=[job_view(1), job_view(2, name="cifar", state="queued", world_size=0)])


@pytest.fixture
def run(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments, connect=lambda: Client(URL, TOKEN, transport=api))
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return run


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text("name: digits\nentrypoint: train:main\n")
    return str(path)


class Terminal(io.StringIO):
    """Where control characters would do something."""

    def isatty(self) -> bool:
        return True


HARM = "a\x1b]0;owned\x07\x1b[2J\rb\x9b2J\u202ec\td"
SPELT = r"a\x1b]0;owned\x07\x1b[2J\rb\x9b2J\u202ec" + "\td"


@pytest.mark.parametrize("command", [("logs",), ("events",), ("describe",), ("metrics",), ("jobs",)])
def test_control_characters_of_a_job_do_not_reach_a_terminal(
    api: FakeApi, run: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # nothing is cut
    api.jobs[0] |= {
        "name": HARM,
        "reason": {"code": "x", "message": HARM, "hint": ""},
        "labels": {HARM: HARM},
    }
    api.feeds |= {"logs": [log(1, HARM)], "events": [event(1, "warning", message=HARM, hint="")]}
    api.points = {HARM: []}
    arguments = (*command, *(() if command == ("jobs",) else (job_id(1),)))
    shown = Terminal()
    with redirect_stdout(shown):
        run(*arguments)
    assert SPELT.replace("\t", " ") in shown.getvalue().replace("\t", " ")
    assert not set(shown.getvalue()) & set("\x1b\x07\r\x9b\u202e")
    assert HARM.partition("\x1b")[0] in run(*arguments)[1], "a pipe gets them as they are"


def test_json_holds_no_control_character_wherever_it_goes(api: FakeApi, run: Run) -> None:
    api.feeds["logs"] = [log(1, HARM)]
    out = run("logs", job_id(1), "-o", "json")[1]
    assert (json.loads(out)["line"], set(out) & set("\x1b\x07\x9b\u202e")) == (HARM, set())


def test_an_error_that_quotes_a_job_leaves_a_terminal_alone(api: FakeApi, run: Run, job_file: str) -> None:
    failed = FAILED | {"reason": FAILED["reason"] | {"message": HARM}}
    api.jobs[0] |= failed
    shown = Terminal()
    with redirect_stderr(shown):
        assert run("wait", job_id(1))[0] == 1
    assert SPELT in shown.getvalue()
    assert "\x1b]" not in shown.getvalue()


def test_jobs_are_a_table_with_the_reason_for_waiting(api: FakeApi, run: Run) -> None:
    api.jobs[1]["pending_reason"] = {
        "code": "no_capacity",
        "message": "3 CPUs are free, 4 needed",
        "hint": "",
    }
    code, out, _ = run("jobs")
    header, first, second = out.splitlines()
    assert code == 0
    assert header.split() == ["ID", "NAME", "STATE", "STEP", "WORKERS", "AGE", "REASON"]
    assert first.split()[:4] == [job_id(1), "digits-1", "running", "7/920"]
    assert second.endswith("3 CPUs are free, 4 needed")
    assert header.index("STATE") == first.index("running") == second.index("queued")


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_a_table_fits_the_terminal_and_what_is_cut_of_an_id_still_finds_the_job(
    columns: int, api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    api.jobs = [
        job_view(
            1, id="job_01AAAAAAAAAAAAAAAAAAAAAAAA", reason={"code": "x", "message": "數" * 90, "hint": ""}
        ),
        job_view(2, id="job_02BBBBBBBBBBBBBBBBBBBBBBBB", name="a-name-of-many-letters"),
    ]
    shown = Terminal()
    with redirect_stdout(shown):
        run("jobs")
    lines = shown.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= columns
    first, second = (line.split()[0] for line in lines[1:])
    assert first.endswith("…") is (columns < 200)
    for text, name in ((first, "digits-1"), (second, "a-name-of-many-letters")):
        assert json.loads(run("describe", text, "-o", "json")[1])["name"] == name


def test_a_list_is_asked_for_in_the_words_of_the_api_and_shows_metrics(api: FakeApi, run: Run) -> None:
    api.jobs[0]["metrics"] = {"val/loss": {"last": 0.25, "min": 0.125, "max": 2.0, "step": 9}}
    asked = ("--search", "dig", "--owner", "ada", "--label", "a=b", "--label", "c=d", "--param", "lr=0.1")
    code, out, _ = run(
        "jobs", *asked, "--sort", "-metric:val/loss:min", "--metric", "val/loss", "--metric", "x"
    )
    header, first, second = out.splitlines()
    assert code == 0
    assert header.split()[-3:] == ["val/loss", "x", "REASON"]
    assert (first.split()[-3], second.split()[-3]) == ("0.25", "-")
    assert list(api.seen[0].url.params.multi_items()) == [
        ("owner", "ada"), ("search", "dig"),
        ("sort", "-metric:val/loss:min"), ("label", "a=b"), ("label", "c=d"), ("param", "lr=0.1"),
        ("metrics", "val/loss,x"), ("limit", "100"),
    ]  # fmt: skip


def test_json_is_what_the_rest_api_says(api: FakeApi, run: Run) -> None:
    assert [job["id"] for job in json.loads(run("jobs", "-o", "json")[1])] == [job_id(1), job_id(2)]
    assert json.loads(run("describe", "cifar", "-o", "json")[1])["progress"] == {
        "step": 7,
        "total_steps": 920,
        "epoch": 0,
    }


def test_a_job_is_meant_by_id_unique_beginning_or_name(api: FakeApi, run: Run) -> None:
    api.jobs[0]["id"] = "job_01AAAAAAAAAAAAAAAAAAAAAAAA"
    for text in ("job_01A", "digits-1", "job_01AAAAAAAAAAAAAAAAAAAAAAAA"):
        assert run("describe", text)[2] == "", "nothing has to be said"
        assert json.loads(run("describe", text, "-o", "json")[1])["name"] == "digits-1"


def test_of_several_jobs_of_a_name_the_newest_is_meant_and_that_is_said(api: FakeApi, run: Run) -> None:
    api.jobs.append(job_view(3, name="cifar"))
    code, out, err = run("describe", "cifar", "-o", "json")
    assert (code, json.loads(out)["id"]) == (0, job_id(2))
    assert err == f"2 jobs are named 'cifar'; using the newest, {job_id(2)} (queued).\n"


def test_a_dry_run_says_what_would_come_of_it_and_submits_nothing(
    api: FakeApi, run: Run, job_file: str
) -> None:
    code, out, _ = run("submit", job_file, "--dry-run")
    assert (code, len(api.jobs)) == (0, 2)
    told = [line.split("  ", maxsplit=1) for line in out.splitlines()[:-1]]
    assert [(name, value.strip()) for name, value in told] == [
        ("would start", "later"),
        ("would wait because", "3 CPUs are free (no_capacity) Wait."),
        ("logical shards", "3"),
        (
            "surplus",
            "workers above min (2) use free capacity only: autoscale: {surplus: true} would add nodes for them",
        ),
        ("reproducible", "yes"),
    ]
    assert out.splitlines()[-1] == "nothing was submitted."
    assert json.loads(run("submit", job_file, "--dry-run", "-o", "json")[1])["starts_now"] is False


def test_a_dry_run_says_how_well_the_files_of_data_sets_are_mixed(run: Run, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"label": [n // 100 for n in range(1000)]}), tmp_path / "a.parquet", row_group_size=10
    )
    spec = {
        "name": "mixed",
        "entrypoint": "m:train",
        "framework": "ray_train",
        "batch": {"global_size": 64},
        "data": {"sets": {"train": str(tmp_path / "a.parquet")}},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(spec))
    code, out, err = run("submit", str(tmp_path / "job.yaml"), "--dry-run")
    assert code == 0
    assert re.search(r"mixing of train +0\.\d\d of a full shuffle", out)
    assert "warning: data.sets train: the files are sorted by label, and sorted files shuffle worse" in err


@pytest.mark.parametrize("options", [("--timeout", "5"), ("--dry-run", "--wait")])
def test_options_that_mean_nothing_together_are_wrong_usage(
    api: FakeApi, run: Run, job_file: str, options: tuple[str, ...]
) -> None:
    code, _, err = run("submit", job_file, *options)
    assert (code, len(api.jobs)) == (2, 2)
    assert "--wait" in err


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "-1", "1e999"])
@pytest.mark.parametrize(
    "command",
    [
        ("submit", "FILE", "--wait", "--timeout"),
        ("wait", "digits-1", "--timeout"),
        ("cancel", "digits-1", "--grace-s"),
        ("chaos", "digits-1", "--seed", "1", "--every-s"),
        ("chaos", "digits-1", "--seed", "1", "--for-s"),
        ("project", "share", "research", "--weight"),
        ("project", "share", "research", "--gpus"),
        ("token", "create", "ci", "--expires"),
    ],
    ids=lambda command: " ".join(command[:1] + command[-1:]),
)
def test_a_number_that_is_none_is_wrong_usage(
    api: FakeApi, run: Run, job_file: str, command: tuple[str, ...], number: str
) -> None:
    code, out, err = run(*(job_file if part == "FILE" else part for part in command), number)
    assert (code, out, api.seen) == (2, "", [])
    assert f"Invalid value for '{command[-1]}'" in err


def test_a_job_that_is_unclear_or_unknown_is_an_error_that_says_what_to_do(run: Run) -> None:
    code, out, err = run("describe", "job_0")
    assert (code, out) == (1, "")
    assert "job_ambiguous" in err
    assert job_id(2) in err
    code, _, err = run("cancel", "nothing")
    assert code == 1
    assert "List the jobs with `ringleader jobs`" in err


def test_describe_shows_result_reason_and_events(api: FakeApi, run: Run) -> None:
    api.jobs[0] |= SUCCEEDED
    api.feeds["events"] = [event(1, "worker.lost", worker="w1", cause="killed")]
    _, out, _ = run("describe", "digits-1")
    assert "accuracy" in out
    assert "0.98" in out
    assert "worker.lost" in out
    assert "cause=killed" in out


def test_what_each_worker_uses_is_shown_and_what_was_not_measured_is_not_zero(api: FakeApi, run: Run) -> None:
    worker = {
        "role": "worker",
        "rank": 0,
        "pid": 4,
        "node": "n",
        "state": "up",
        "generation": 1,
        "shards": [0, 2],
    }
    used = {"cpu_percent": 98.4, "memory_bytes": 1_500_000_000, "gpu_memory_bytes": None}
    api.workers = [{"id": "w0", **worker, **used}, {"id": "w1", **worker}]
    listed = run("workers", "digits-1")[1].splitlines()
    assert listed[0].split()[-4:] == ["CPU", "MEMORY", "GPU", "MEMORY"]
    assert listed[1].split()[-4:] == ["98%", "1.5", "GB", "-"]
    assert listed[2].split()[-3:] == ["-", "-", "-"]
    described = run("describe", "digits-1")[1]
    assert "GPU" not in described, "nobody has any"
    (row,) = (line.split() for line in described.splitlines() if "98%" in line)
    assert row == ["w0", "n", "98%", "1.5", "GB"]
    api.jobs[0] |= SUCCEEDED
    assert "98%" not in run("describe", "digits-1")[1], "it has no workers any more"


def test_describe_and_a_dry_run_say_where_surplus_comes_from(api: FakeApi, run: Run, job_file: str) -> None:
    free = "free capacity only: autoscale: {surplus: true} would add nodes for them"
    api.jobs[0]["surplus"] = "workers above min (1) use free capacity only: this cluster does not autoscale"
    assert f"surplus       {api.jobs[0]['surplus']}" in run("describe", "digits-1")[1]
    assert f"workers above min (2) use {free}" in run("submit", job_file, "--dry-run")[1]


def test_describe_says_which_framework_was_chosen_and_why(api: FakeApi, run: Run) -> None:
    api.jobs[0]["spec"] |= {"framework": "ray_train_hosted", "framework_why": "line 4: two backwards"}
    assert "ray_train_hosted, chosen because line 4: two backwards" in run("describe", "digits-1")[1]


def test_describe_says_each_warning_once_with_what_to_do(api: FakeApi, run: Run) -> None:
    told = {"about": "codec", "message": "Nothing is coded.", "hint": "Leave codec out."}
    api.feeds["events"] = [event(number, "warning", **told) for number in (1, 2)]
    described = run("describe", "digits-1")[1]
    assert described.split("\nwarnings\n")[1].splitlines()[0] == "  Nothing is coded. Leave codec out."
    assert described.split("\nlast events\n")[0].count("Nothing is coded.") == 1
    assert "warning              Nothing is coded. Leave codec out." in run("events", "digits-1")[1]


def test_describe_says_what_the_job_has_cost_over_all_its_attempts(api: FakeApi, run: Run) -> None:
    totals = {"attempts": 2, "generations": 5, "recoveries": 1, "steps_lost": 12, "wall_s": 20.04}
    api.jobs[0] |= SUCCEEDED | {"totals": totals}
    _, out, _ = run("describe", "digits-1")
    (shown,) = [line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("totals")]
    assert shown == "2 attempts, 5 generations, 1 recovery, 12 steps lost, 20.0 s of training"


@pytest.mark.parametrize(
    ("saved", "risk"),
    [((), ["40 steps without a checkpoint"]), ((10, 25), ["15 steps since"]), ((40,), [])],
)
def test_describe_says_how_much_would_be_lost_with_all_workers_at_once(
    saved: tuple[int, ...], risk: list[str], api: FakeApi, run: Run
) -> None:
    api.jobs[0] |= {"state": "running", "progress": {"step": 40, "total_steps": None, "epoch": 1}}
    api.feeds["events"] = [event(k, "checkpoint.saved", step=step) for k, step in enumerate(saved, start=1)]
    _, out, _ = run("describe", "digits-1")
    shown = [line.split(maxsplit=2)[2] for line in out.splitlines() if line.startswith("at risk")]
    assert [line[: len(said)] for line, said in zip(shown, risk, strict=True)] == risk


def test_describe_counts_gradients_by_how_stale_they_were(api: FakeApi, run: Run) -> None:
    counts = [120, 34, *[0] * 14, 2]
    api.jobs[0] |= SUCCEEDED | {"result": RESULT | {"staleness": counts}}
    _, out, _ = run("describe", "digits-1")
    (shown,) = [line.split(maxsplit=1) for line in out.splitlines() if line.strip().startswith("staleness")]
    assert shown == ["staleness", "0: 120, 1: 34, 16+: 2"]


def test_submit_prints_the_id_and_the_page(api: FakeApi, run: Run, job_file: str) -> None:
    code, out, _ = run("submit", job_file)
    assert code == 0
    assert out.splitlines() == [f"{job_id(3)} queued", f"{URL}/jobs/{job_id(3)}"]


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_submit_says_what_the_folder_does_not_hold(
    api: FakeApi, run: Run, tmp_path: Path, options: list[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: digits\nentrypoint: elsewhere:main\nworking_dir: code\n")
    (tmp_path / "code").mkdir()
    code, _, err = run("submit", *options, str(file))
    assert (code, err) == (
        0,
        f"the module elsewhere is not in {tmp_path / 'code'}, so it must be installed on the nodes.\n",
    )


@pytest.mark.parametrize(
    ("end", "code"),
    [(SUCCEEDED, 0), (FAILED, 1), ({"state": "cancelled"}, 3)],
    ids=["succeeded", "failed", "cancelled"],
)
def test_the_exit_code_of_a_wait_is_how_the_job_ended(
    end: dict[str, object], code: int, api: FakeApi, run: Run
) -> None:
    api.history[job_id(1)] = [{}, end]
    assert run("wait", "digits-1")[0] == code
    assert run("wait", "digits-1", "-o", "json")[0] == code


def test_a_failed_wait_shows_reason_hint_and_last_lines(api: FakeApi, run: Run) -> None:
    api.jobs[0] |= FAILED
    api.feeds["logs"] = [log(1, "about to divide")]
    _, _, err = run("wait", "digits-1")
    assert "entrypoint_raised" in err
    assert "| about to divide" in err
    assert "→ Fix it." in err


def test_a_wait_that_times_out_exits_with_124_and_the_job_goes_on(run: Run) -> None:
    code, _, err = run("wait", "digits-1", "--timeout", "0")
    assert code == 124
    assert "It keeps running" in err


def test_ctrl_c_detaches_and_says_so(api: FakeApi, run: Run) -> None:
    class CtrlC(list[dict[str, object]]):
        def pop(self, index: object = -1) -> dict[str, object]:
            raise KeyboardInterrupt

    api.history[job_id(1)] = CtrlC([{}])
    code, _, err = run("wait", "digits-1")
    assert code == 130
    assert f"detached; {job_id(1)} keeps running" in err


def test_wrong_usage_and_wrong_job_files_exit_with_2(
    run: Run, tmp_path: Path, api: FakeApi, job_file: str
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: x\nentrypoint: m:f\nwrokers: {min: 1}\n")
    assert run("resize", "digits-1")[0] == 2
    assert run("jobs", "--nonsense")[0] == 2
    assert run("nonsense")[0] == 2
    assert "must be given together" in run("up", "--ray-address", "10.0.0.10:6379")[2]
    code, _, err = run("validate", str(wrong))
    assert code == 2
    assert "wrokers: unknown key" in err
    api.faults = [problem(422, "infeasible", "asks for 99 CPUs, the cluster has 4", hint="Ask for less.")]
    code, _, err = run("submit", job_file)
    assert code == 2
    assert "asks for 99 CPUs" in err
    assert "→ Ask for less." in err


def test_errors_are_json_too(run: Run) -> None:
    code, out, err = run("describe", "nothing", "-o", "json")
    assert (code, out, json.loads(err)["code"]) == (1, "", "job_not_found")


def test_export_writes_the_final_weights_or_those_of_the_newest_checkpoint(
    api: FakeApi, run: Run, tmp_path: Path
) -> None:
    api.jobs = [job_view(1), job_view(2, **SUCCEEDED)]
    api.artifacts = {"weights": b"final"}
    api.newest = b"newest"
    for number, content in ((1, b"newest"), (2, b"final")):
        out = tmp_path / f"{number}.safetensors"
        assert run("export", job_id(number), "--out", str(out))[0] == 0
        assert out.read_bytes() == content


def test_pause_and_resume(api: FakeApi, run: Run) -> None:
    api.jobs = [job_view(1)]
    assert run("pause", "digits-1")[:2] == (0, f"{job_id(1)}: paused\n")
    assert run("resume", "digits-1")[:2] == (0, f"{job_id(1)}: queued\n")


def test_labels_are_set_and_removed_as_kubectl_has_it(api: FakeApi, run: Run) -> None:
    told = f"{job_id(1)}: team=vision, note=a=b\n"
    assert run("label", "digits-1", "team=vision", "old=1", "note=a=b")[0] == 0
    assert run("label", "digits-1", "old-")[:2] == (0, told)
    assert run("label", "digits-1", "team-", "note-")[1] == f"{job_id(1)}: no labels\n"
    code, _, error = run("label", "digits-1", "team")
    assert code == 2
    assert "KEY=VALUE" in error


def test_resize_cancel_delete(api: FakeApi, run: Run) -> None:
    assert run("resize", "digits-1", "--min", "1", "--max", "6")[:2] == (
        0,
        f"{job_id(1)}: resizing to 1-6 workers\n",
    )
    assert run("cancel", "digits-1")[:2] == (0, f"{job_id(1)}: cancelled\n")
    assert run("delete", "digits-1")[:2] == (0, f"{job_id(1)}: deleted\n")
    assert len(api.jobs) == 1


def test_logs_and_events_are_lines_or_json_lines(api: FakeApi, run: Run) -> None:
    api.feeds = {"logs": [log(1, "hello")], "events": [event(1, "recovered", total_s=0.05125)]}
    assert run("logs", "digits-1")[1] == "03:04:05 w0         hello\n"
    assert run("events", "digits-1")[1] == "03:04:05 recovered            total_s=0.05125\n"
    assert json.loads(run("logs", "digits-1", "-o", "json")[1]) == {
        "seq": 1,
        "time": "2026-01-02T03:04:05+00:00",
        "worker": "w0",
        "level": "info",
        "line": "hello",
    }


def test_following_logs_ends_with_the_job(api: FakeApi, run: Run) -> None:
    api.history[job_id(1)] = [{}, SUCCEEDED]
    api.streams = [stream(sse(log(1, "one"), log(2, "two")))]
    code, out, _ = run("logs", "-f", "digits-1")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()] == ["one", "two"]


def test_workers_metrics_and_cluster_are_tables(api: FakeApi, run: Run) -> None:
    worker = {
        "id": "w0",
        "role": "worker",
        "rank": 0,
        "pid": 4,
        "node": "n",
        "state": "running",
        "generation": 1,
    }
    api.workers = [worker | {"shards": [0, 2]}]
    api.points["loss"] = [{"step": s, "value": 1 / s, "at": AT, "generation": 1} for s in (1, 2, 30)]
    assert run("workers", "digits-1")[1].splitlines()[1].split()[7] == "0-1"
    assert [line.split()[:2] for line in run("metrics", "digits-1", "loss")[1].splitlines()] == [
        ["STEP", "LOSS"],
        ["1", "1"],
        ["2", "0.5"],
        ["30", "0.033333"],
    ]
    assert run("metrics", "digits-1")[1] == "loss\n"
    assert "n1" in run("cluster")[1]
    assert json.loads(run("version", "-o", "json")[1])["server"] == {"version": "0.2.0"}


def test_login_remembers_where_and_who(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("RINGLEADER_HOME", str(tmp_path))
    code, _, err = run("login", "http://127.0.0.1:9", "--token", "x")
    assert code == 1
    assert "does not answer" in err
    assert not (tmp_path / "profile.json").exists()
