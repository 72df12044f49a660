"""Hosted programs: the job file that names one, the processes that it has, the store at which they meet."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import is_alive
from waiting import wait_for

from ringleader.accounts import Account, RunAs
from ringleader.elastic import Meeting, Plan
from ringleader.errors import EntrypointImport, SpecInvalid
from ringleader.runtime.hosted.commands import check_can_run, command_of
from ringleader.runtime.hosted.program import HostedProgram, told_status
from ringleader.runtime.hosted.ray_train_worker import OutputActor, printed_to
from ringleader.runtime.hosted.store import GenerationStore, open_store
from ringleader.runtime.hosted.variables import snapshots_of, variables
from ringleader.runtime.messages import MemberTask
from ringleader.runtime.worker.output_capture import OutputCapture
from ringleader.spec import JobSpec
from ringleader.spec.program.framework import why_other_bits
from ringleader.spec.working_dir import check_working_dir

JOB = {"name": "hosted", "framework": "torchrun", "entrypoint": "train.py --epochs '3 4'", "working_dir": "."}
RAYS = {"framework": "ray_train_hosted", "entrypoint": "train:main"}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"entrypoint": "train:main"}, "/entrypoint", "runs a script"),
    ({"framework": "native"}, "/entrypoint", "framework: torchrun for a script"),
    ({"entrypoint": "../train.py"}, "/entrypoint", "a script of the working directory"),
    ({"entrypoint": "/opt/train.py"}, "/entrypoint", "a script of the working directory"),
    ({"entrypoint": "train.py 'x"}, "/entrypoint", "a script of the working directory"),
    ({"sync": "parameter_server"}, "/sync", "exchanges gradients by itself"),
    ({"sync": {"codec": "bf16"}}, "/sync", "exchanges gradients by itself"),
    ({"precision": "bf16"}, "/precision", "exchanges gradients by itself"),
    ({"batch": {"global_size": 32}}, "/batch/global_size", "makes its batches by itself"),
    ({"batch": {"schedule": [[5, 128]]}}, "/batch/schedule", "count their steps"),
    ({"data": {"order": "block"}}, "/data", "makes its batches by itself"),
    ({"seed": 7}, "/seed", "draws its random numbers by itself"),
    ({"checkpoint": {"every_s": 60}}, "/checkpoint/every_s", "saves and reads its state by itself"),
    ({"checkpoint": {"uri": "s3://bucket/x"}}, "/checkpoint/uri", "an absolute path or file://"),
    ({"init_from": "/weights.safetensors"}, "/init_from", "saves and reads its state by itself"),
    ({"policy": {"evict_slow": True}}, "/policy", "its own affair"),
    ({"debug": {"ledger": True}}, "/debug/ledger", "its own affair"),
    ({**RAYS, "workers": {"gpus": 1}}, "/workers/gpus", "the job's workers hold the places"),
    ({**RAYS, "env": {"PYTHONPATH": "src"}}, "/env/PYTHONPATH", "Ray brings the working directory"),
    ({**RAYS, "entrypoint": "train.py"}, "/entrypoint", "framework: torchrun for a script"),
]


@pytest.mark.parametrize(("change", "pointer", "allowed"), WRONG, ids=lambda v: str(v)[:40])
def test_a_key_without_meaning_for_a_hosted_job_is_refused_by_name(change, pointer, allowed) -> None:
    with pytest.raises(SpecInvalid) as caught:
        JobSpec.parse(JOB | change)
    (finding,) = caught.value.errors
    assert finding["pointer"] == pointer
    assert allowed in finding["message"]


def test_a_hosted_job_has_more_workers_than_a_batch_has_rows_and_is_read_back_as_it_is_stored() -> None:
    spec = JobSpec.parse(JOB | {"workers": {"min": 2, "max": 100}})
    assert JobSpec.parse(spec.model_dump(mode="json")) == spec
    assert "torchrun" in why_other_bits(spec.framework, spec.sync)


def test_a_script_that_is_not_there_or_no_python_is_refused_before_it_is_packed(tmp_path: Path) -> None:
    spec = JobSpec.parse(JOB)
    with pytest.raises(SpecInvalid, match=r"there is no file train\.py in"):
        check_working_dir(spec, tmp_path)
    (tmp_path / "train.py").write_text("def (")
    with pytest.raises(SpecInvalid, match=r"train\.py, line 1 is not valid Python"):
        check_working_dir(spec, tmp_path)
    (tmp_path / "train.py").write_text("print(1)")
    assert check_working_dir(spec, tmp_path) == []
    with pytest.raises(SpecInvalid, match="in no working directory"):
        check_working_dir(JobSpec.parse({**JOB, "working_dir": None}), None)


def started(folder: Path, text: str, lines: OutputCapture | None = None) -> HostedProgram:
    (folder / "program.py").write_text(text)
    return HostedProgram([sys.executable, "program.py"], dict(os.environ), folder, lines or OutputCapture())


def status_of(program: HostedProgram) -> int:
    status = program.ended(60.0)
    assert status is not None
    program.kill()
    return status


def test_a_program_s_output_comes_line_by_line_with_its_secrets_masked(tmp_path: Path) -> None:
    lines = OutputCapture()
    lines.hide(["sesame-open"])
    text = "import sys\nprint('it is sesame-open')\nprint('bad', file=sys.stderr)\nsys.exit(3)"
    program = started(tmp_path, text, lines)
    assert status_of(program) == 3
    taken, _ = lines.take()
    assert {(line.level, line.text) for line in taken} == {("info", "it is ***"), ("error", "bad")}
    assert sorted(program.last_words().splitlines()) == ["bad", "it is ***"]


def test_the_status_of_a_program_is_told_in_words(tmp_path: Path) -> None:
    killed = started(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert told_status(status_of(killed)) == "was ended by SIGKILL, as where memory runs out"
    assert told_status(2) == "ended with exit code 2"


CHILDREN = """
import os, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
Path("pids.partial").write_text(f"{os.getpid()} {child.pid}")
os.rename("pids.partial", "pids")
time.sleep(600)
"""


def pids_in(folder: Path) -> list[int]:
    wait_for("the pids", (folder / "pids").exists)
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def test_a_program_that_is_ended_leaves_no_child(tmp_path: Path) -> None:
    program = started(tmp_path, CHILDREN)
    pids = pids_in(tmp_path)
    assert all(is_alive(pid) for pid in pids)
    program.kill()
    assert not any(is_alive(pid) for pid in pids)


def test_a_worker_that_is_killed_takes_its_program_along(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CHILDREN)
    worker = f"""
import os, sys, time
from pathlib import Path
from ringleader.runtime.hosted.program import HostedProgram
from ringleader.runtime.worker.output_capture import OutputCapture
program = HostedProgram([sys.executable, "program.py"], dict(os.environ), Path({str(tmp_path)!r}), OutputCapture())
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", worker], start_new_session=True)
    pids = pids_in(tmp_path)
    os.killpg(process.pid, signal.SIGKILL)  # as Ray ends a worker
    process.wait()
    wait_for("the end of the program", lambda: not any(is_alive(pid) for pid in pids), 30)


def test_a_program_that_is_stopped_may_save_first(tmp_path: Path) -> None:
    text = """
import signal, sys, time
from pathlib import Path
def save(*_):
    Path("saved").touch()
    sys.exit()
signal.signal(signal.SIGTERM, save)
Path("ready").touch()
time.sleep(600)
"""
    program = started(tmp_path, text)
    wait_for("its handler", (tmp_path / "ready").exists)
    program.stop(60.0)
    assert (tmp_path / "saved").exists()


def test_a_store_listens_on_its_address_alone_and_closes_with_its_generation() -> None:
    address, store = open_store("127.0.0.1")
    port = int(address.rpartition(":")[2])
    listening = [
        line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if " 0A " in line
    ]
    wide = [line.split()[1] for line in Path("/proc/net/tcp6").read_text().splitlines()[1:] if " 0A " in line]
    assert f"0100007F:{port:04X}" in listening
    assert not [one for one in (*listening, *wide) if one.endswith(f":{port:04X}") and one[:8] != "0100007F"]
    del store
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_members_end_together_and_who_has_to_stop_counts_itself_out() -> None:
    address, store = open_store("127.0.0.1")
    first, second = GenerationStore(address, 0, 2), GenerationStore(address, 1, 2)
    first.finish()
    assert not first.all_finished
    assert first.withdraw(), "the other one is still at work"
    first.finish()
    second.finish()
    assert first.all_finished
    assert not second.withdraw(), "the first may have left for it"
    assert first.all_finished
    del store


def test_a_program_gets_what_torchrun_gives_and_nothing_of_the_worker_s_own(tmp_path: Path) -> None:
    named = {"env": {"RAY_TUNED": "1"}, "secrets": {"RAY_KEY": "key"}, "params": {"lr": 0.1}}
    spec = JobSpec.parse(JOB | named | {"workers": {"max": 2}})
    folder = f"file://{tmp_path}/check%20points/job"
    task = MemberTask("job", 2, "w1", "worker", spec, tmp_path, tmp_path, folder)
    meeting = Meeting("10.0.0.1:1", b"secret", torch_store="127.0.0.1:4567")
    plan = Plan(1, 3, ("w0", "w1"), 0, 2, 0, (), 0, meeting, "lost")
    base = {
        "PATH": "/bin",
        "RAY_AUTH_TOKEN": "t",
        "RINGLEADER_HOME": "/h",
        "PYTHONPATH": "src",
        "RAY_TUNED": "1",
        "RAY_KEY": "sesame",
    }
    given = variables(task, plan, "127.0.0.1", ["/job/src", "/packages"], base)
    wanted = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4567",
    }
    assert given.items() >= wanted.items()
    assert "RAY_AUTH_TOKEN" not in given
    assert "RINGLEADER_HOME" not in given
    assert given["RAY_KEY"] == "sesame", "a secret of the job's is its own, whatever its name"
    assert (given["RAY_TUNED"], given["PYTHONPATH"]) == ("1", "/job/src:/packages")
    assert (given["GLOO_SOCKET_IFNAME"], given["TORCHELASTIC_RESTART_COUNT"]) == ("lo", "2")
    assert json.loads(given["RINGLEADER_PARAMS"]) == {"lr": 0.1}
    assert (
        given["RINGLEADER_CHECKPOINT_DIR"]
        == str(snapshots_of(folder))
        == f"{tmp_path}/check points/job/hosted"
    )


@pytest.mark.parametrize(
    ("keys", "pointer"),
    [({"params": {"a": ["x" * 100] * 1200}}, "/params"), ({"env": {"A": "\U0001f600" * 32_000}}, "/env/A")],
    ids=["params", "env"],
)
def test_what_no_program_can_be_started_with_is_refused_beforehand(
    keys: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(SpecInvalid, match="at most 120000 bytes") as refused:
        JobSpec.parse(JOB | keys)
    assert [found["pointer"] for found in refused.value.errors] == [pointer]
    assert JobSpec.parse({"name": "a", "entrypoint": "m:f"} | keys)


def test_rank_0_runs_ray_s_trainer_on_the_nodes_of_all_members_and_the_others_hold_their_places(
    tmp_path: Path,
) -> None:
    spec = JobSpec.parse(JOB | RAYS | {"params": {"lr": 0.1}, "workers": {"max": 2}})
    task = MemberTask("job", 1, "w0", "worker", spec, tmp_path, tmp_path, str(tmp_path))
    address, store = open_store("127.0.0.1")
    first, second = GenerationStore(address, 0, 2), GenerationStore(address, 1, 2)
    first.say_node("node-a")
    second.say_node("node-b")
    assert command_of(task, second, [], given=[]) is None
    command = command_of(task, first, ["/packages"], given=["TOLD"])
    assert command is not None
    params = "json.loads(os.environ['RINGLEADER_PARAMS'])"
    called = f"main(FunctionCall('train:main', {params}, ('/packages',), 1), ['node-a', 'node-b'], ['TOLD'])"
    assert command[-1].endswith(called)
    assert "0.1" not in command[-1], "a command line is shown to every account of the machine"
    apart = replace(task, run_as=RunAs(Account("nobody", 65534, 65534), tmp_path))
    with pytest.raises(EntrypointImport, match="an account of the job's own"):
        check_can_run(apart, tmp_path)
    del store


def test_what_ray_s_workers_print_is_taken_once_and_line_by_line() -> None:
    output = OutputActor()
    output.say("info", "first")
    output.say("error", "second")
    assert output.take() == [("info", "first"), ("error", "second")]
    assert output.take() == []
    output.hand_over({"TOLD": "x"})
    assert output.variables() == {"TOLD": "x"}


class Output:
    """The handle of an `OutputActor`, as far as a worker uses it, with the actor in this process."""

    def __init__(self) -> None:
        self.actor = OutputActor()
        self.say = self

    def remote(self, level: str, text: str) -> None:
        self.actor.say(level, text)


def test_the_last_line_of_ray_s_workers_needs_no_line_feed() -> None:
    def fail() -> None:
        with printed_to(output, "rank 1: "):
            print("10%\r20%\nlast", end="")
            print("why", end="", file=sys.stderr)
            raise ZeroDivisionError

    output = Output()
    with pytest.raises(ZeroDivisionError):
        fail()
    said = [("info", "rank 1: 20%"), ("info", "rank 1: last"), ("error", "rank 1: why")]
    assert output.actor.take() == said
