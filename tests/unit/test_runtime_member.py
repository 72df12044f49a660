"""How a member meets the others."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rooms import SECRET

from ringleader import index_group
from ringleader.comm.transports.meeting import DEVICE_KINDS, GLOO, KINDS, NEAR_KINDS
from ringleader.elastic import Meeting, Plan
from ringleader.runtime.messages import MemberTask, ProcessIdentity, RunEnded
from ringleader.runtime.nodes.node_scratch import SCRATCH, copies_of
from ringleader.runtime.worker.member import MemberProcess, beside, call_of, training_function
from ringleader.spec import JobSpec
from ringleader.train.program_check.background import WORK
from ringleader.wire.package import pack

HERE = Meeting("127.0.0.1:4321", SECRET)


def test_a_wait_for_others_may_be_longer_than_a_stall():
    spec = JobSpec.parse(
        {
            "name": "member",
            "entrypoint": "unit:train",
            "workers": {"max": 2},
            "batch": {"global_size": 4},
            "policy": {"stall_timeout_s": 1},
        }
    )
    task = MemberTask("job", 1, "w1", "worker", spec, Path("artifacts"), Path("scratch"), "checkpoints")
    plan = Plan(1, 3, ("w0", "w1"), 0, 2, 0, (), 0, HERE, "start")
    call = call_of(task, "here", plan, 1)
    assert (call.store_host, call.store_port, call.rank, call.size) == ("127.0.0.1", 4321, 1, 2)
    assert call.prefix.endswith("/1.3")
    assert call.deadline_s == 3600, "whoever is slow, in a first step or an evaluation, is waited for"


def ended(tmp_path: Path, **keys: Any) -> RunEnded:
    """How a member of one ends whose supervisor nobody hears of."""
    source = {"name": "member", "entrypoint": "member_job:train", "batch": {"global_size": 4}, **keys}
    task = MemberTask(
        "job", 1, "w1", "worker", JobSpec.parse(source), tmp_path / "artifacts", tmp_path / "scratch", ""
    )
    heartbeat_thread = SimpleNamespace(start=lambda *_: None, stop=lambda: None, hurry=lambda: None)
    member: Any = MemberProcess(
        task, ProcessIdentity(1, "n0", "10.0.0.7"), SimpleNamespace(), heartbeat_thread
    )  # type: ignore[arg-type]
    return member.run(None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_worker_without_its_device_fails_the_job_before_any_code_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "member_job.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    end = ended(tmp_path, workers={"max": 1, "gpus": 1})
    assert (end.kind, end.reason) == ("failed", "no_device")
    assert "no CUDA device on node 10.0.0.7 (worker w1)" in end.message
    assert "member_job" not in sys.modules


def test_a_member_that_has_ended_is_part_of_no_group_that_hands_indexes_on(tmp_path: Path) -> None:
    ended(tmp_path, entrypoint="no_such_module:train")
    assert index_group.joined() is None


@pytest.mark.parametrize(
    ("keys", "near", "kinds"),
    [
        ({}, False, KINDS),
        ({}, True, NEAR_KINDS),
        ({"sync": {"algorithm": "native", "reproducible": False}}, True, (GLOO,)),
        ({"workers": {"max": 2, "gpus": 1}}, True, DEVICE_KINDS),
    ],
)
def test_members_of_one_node_meet_in_memory_alone_where_the_job_allows_it(
    keys: dict[str, Any], near: bool, kinds: tuple[str, ...]
):
    source = {
        "name": "member",
        "entrypoint": "unit:train",
        "workers": {"max": 2},
        "batch": {"global_size": 4},
    }
    task = MemberTask("job", 1, "w1", "worker", JobSpec.parse(source | keys), Path("a"), Path("s"), "c")
    plan = Plan(1, 3, ("w0", "w1"), 0, 2, 0, (), 0, replace(HERE, near=near), "start")
    call = call_of(task, "here", plan, 1)
    assert (call.kinds, call.secret) == (kinds, SECRET)


def test_a_check_has_a_private_folder_with_the_package_beside_the_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCRATCH, str(tmp_path / "node"))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "program.py").write_text("the program")
    spec = JobSpec.parse({"name": "member", "entrypoint": "program:train", "batch": {"global_size": 4}})
    task = MemberTask("job", 1, "w1", "worker", spec, tmp_path / "artifacts", tmp_path / "job-a1", "")
    folder = beside(task, pack(tmp_path / "work")).make()
    assert folder.parent == copies_of("job-a1")
    assert (folder.stat().st_mode & 0o777, folder.parent.stat().st_mode & 0o777) == (0o700, 0o700)
    assert [(file.name, file.read_text()) for file in (folder / WORK).iterdir()] == [
        ("program.py", "the program")
    ]


def test_what_trains_has_no_part_of_ray_in_it():
    """Its supervisor is all that a member knows of the cluster, so that it can be another process, and another's."""
    program = "import sys, ringleader.runtime.worker.member; print(*(name for name in sys.modules if name == 'ray'))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("framework", "worker", "told"),
    [
        ("auto", "w0", [("native", "the module imports nothing of ray.train: chosen_here.py on the node")]),
        ("auto", "w1", []),
        ("native", "w0", []),
    ],
)
def test_the_first_worker_reports_what_auto_is_where_nothing_has_chosen_before(
    framework: str, worker: str, told: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chosen_here.py").write_text("def train(session):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = JobSpec.parse({"name": "member", "entrypoint": "chosen_here:train", "framework": framework})
    task = MemberTask("job", 1, worker, "worker", spec, tmp_path / "artifacts", tmp_path / "job-a1", "")
    events: list[tuple[str, int, dict[str, str]]] = []
    reporter: Any = SimpleNamespace(event=lambda *told: events.append(told))
    training_function(task, tmp_path, reporter)
    data = [{"framework": name, "framework_why": why} for name, why in told]
    assert events == [("framework.chosen", 0, each) for each in data]
