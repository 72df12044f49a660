"""`up` with small services in place of the real ones: order, restarts, and that nothing is ever left behind."""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from accounts import NOBODY
from processes import children
from small_stack import SERVICE, SMALL, small_recipe
from waiting import wait_for

from ringleader.cli.stack.home import AlreadyUp, Home, read_json, write_json
from ringleader.cli.stack.process import PidIdentity, end, wait_gone
from ringleader.cli.stack.recipes import REAL, Recipes
from ringleader.cli.stack.service import LOG_BYTES, Recipe, Service, ServiceFailed, recorded
from ringleader.cli.stack.stack import ForeignCluster, Stack, running, take_down
from ringleader.ray_token import RayTokenTorn

UP = Path(__file__).parent / "small_stack.py"


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory() as folder:
        yield Home(Path(folder))
        assert processes_of(Path(folder)) == []


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if f"{folder}/" in line:
                found.append(f"{entry.name} {line[:200]}")
    return found


def service_of(guard: PidIdentity) -> int:
    return children(guard.pid)[0]


def temp_dirs(home: Home) -> list[Path]:
    return [path for path in home.root.glob("tmp*") if path.is_dir()]


def test_everything_starts_answers_and_ends_without_a_trace(home: Home) -> None:
    with running(home, recipes=SMALL) as stack:
        assert set(recorded(home)) == {"ray", "mlflow", "api"}
        assert read_json(home.up)["url"] == stack.url == "http://127.0.0.1:4711"
        assert read_json(home.root / "profile.json") == {"url": stack.url, "token": "secret"}
        assert len(processes_of(home.root)) == 9  # guard, service and orphan of each
        assert len(temp_dirs(home)) == 1
    assert processes_of(home.root) == []
    assert temp_dirs(home) == []
    assert recorded(home) == {}
    assert not home.up.exists()


def test_on_a_cluster_that_is_there_no_ray_is_started_and_its_token_is_kept(home: Home) -> None:
    told: list[str] = []

    def api(home: Home, port: int, address: str, mlflow_url: str) -> Recipe:
        told.append(address)
        return small_recipe(home, "api")

    token = home.root / "cluster.token"
    token.write_text("of the cluster\n")
    with running(
        home, recipes=replace(SMALL, api=api), cluster=ForeignCluster("10.0.0.10:6379", token)
    ) as stack:
        assert set(recorded(home)) == {"mlflow", "api"}
        assert told == ["10.0.0.10:6379"]
        assert home.ray_token.read_text() == "of the cluster"
        assert stat.S_IMODE(home.ray_token.stat().st_mode) == 0o600
        os.kill(service_of(recorded(home)["api"]), signal.SIGKILL)
        wait_for("the API again", lambda: len(told) == 2 and stack.services["api"].alive)
    assert told == ["10.0.0.10:6379"] * 2


def test_secrets_are_readable_by_their_owner_only(home: Home) -> None:
    home.run.mkdir(mode=0o777)  # as an older version, or somebody's copy of the home, may have left it
    home.run.chmod(0o777)
    home.prepare()
    assert stat.S_IMODE(home.ray_token.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.run.stat().st_mode) == 0o700


def test_what_the_control_plane_is_told_reaches_neither_ray_and_its_jobs_nor_mlflow(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "OIDC_CLIENT_SECRET", "TOKEN", "WARM_PER_NODE", "SCRATCH"):
        monkeypatch.setenv(f"RINGLEADER_{name}", "told")
    monkeypatch.setenv("OF_THE_USER", "kept")
    home.prepare()
    recipes = (
        REAL.ray(home, 1),
        REAL.mlflow(home),
        REAL.api(home, 1, "127.0.0.1:1", "http://127.0.0.1:2"),
    )
    says = (
        "import json, os, time; print(json.dumps({'url': '', 'environ': dict(os.environ)})); time.sleep(60)"
    )
    found = {}
    for recipe in recipes:
        said = replace(recipe, command=(sys.executable, "-c", says), ready=lambda line: line is not None)
        service = Service.start(said, home)
        try:
            found[recipe.name] = service.wait_ready()["environ"]
        finally:
            service.end()
    ours = {name: {k for k in environ if k.startswith("RINGLEADER_")} for name, environ in found.items()}
    assert ours["ray"] == ours["mlflow"] == {"RINGLEADER_HOME", "RINGLEADER_SCRATCH"}
    assert {f"RINGLEADER_{name}" for name in ("DATABASE_URL", "OIDC_CLIENT_SECRET")} <= ours["api"]
    assert "RINGLEADER_TOKEN" not in ours["api"]
    assert {environ["OF_THE_USER"] for environ in found.values()} == {"kept"}


def test_a_log_is_turned_over_by_its_size_and_its_writer_goes_on(home: Home) -> None:
    log, old = home.log("mlflow"), home.log("mlflow").with_name("mlflow.log.1")
    with running(home, recipes=SMALL):
        writer = log.open("ab", buffering=0)
        with writer:
            for turn in (b"first", b"second"):
                writer.write(turn * (LOG_BYTES // len(turn) + 1))
                wait_for(f"the {turn!r} turn", lambda: log.stat().st_size < LOG_BYTES)
                assert old.stat().st_size > LOG_BYTES
                assert turn in old.read_bytes()[-20:]
                assert stat.S_IMODE(old.stat().st_mode) == 0o600
            writer.write(b"goes on")
            wait_for("the new line", lambda: log.read_bytes().endswith(b"goes on"))
    assert sorted(path.name for path in (home.root / "log").iterdir()) == [
        "api.log", "mlflow.log", "mlflow.log.1", "ray.log",
    ]  # fmt: skip


def test_a_second_up_on_the_same_home_is_refused_and_disturbs_nothing(home: Home) -> None:
    with running(home, recipes=SMALL) as stack:
        before = recorded(home)
        with pytest.raises(AlreadyUp, match=f"pid {os.getpid()}, {stack.url}"), running(home, recipes=SMALL):
            pass
        assert recorded(home) == before
        assert all(who.alive for who in before.values())


@pytest.mark.parametrize("name", ["api", "mlflow", "ray"])
def test_a_service_that_dies_is_started_again(name: str, home: Home) -> None:
    said: list[str] = []
    with running(home, say=said.append, recipes=SMALL) as stack:
        before = recorded(home)
        os.kill(service_of(before[name]), signal.SIGKILL)
        wait_for("new service", lambda: recorded(home).get(name) not in (None, *before.values()))
        if name == "ray":
            wait_for(
                "API that knows the new head", lambda: recorded(home).get("api") not in (None, before["api"])
            )
        assert stack.url == read_json(home.up)["url"]
        others = {"api", "mlflow"} - {name} - ({"api"} if name == "ray" else set())
        assert all(recorded(home)[other] == before[other] for other in others)
    assert any(line.startswith(f"{name} ended") for line in said)


def test_a_ray_that_does_not_come_back_in_time_is_started_once_more_and_then_the_api(home: Home) -> None:
    def ray(home: Home, num_cpus: int) -> Recipe:
        return small_recipe(home, "ray", STUCK_ONCE + SERVICE, start_deadline_s=10)

    said: list[str] = []
    behind_stuck_ray: list[bool] = []

    def api(home: Home, port: int, address: str, mlflow_url: str) -> Recipe:
        behind_stuck_ray.append(any("ray was not ready within 10 s" in line for line in said))
        return SMALL.api(home, port, address, mlflow_url)

    with running(home, say=said.append, recipes=replace(SMALL, ray=ray, api=api)) as stack:
        before = recorded(home)
        (home.root / "ray.stuck").touch()
        for name in ("api", "ray"):
            os.kill(service_of(before[name]), signal.SIGKILL)
        # One that is started before the end of Ray is seen knows the head that is gone.
        wait_for("API that knows the new head", lambda: behind_stuck_ray[-1], 60)
        wait_for("whole stack", lambda: all(service.alive for service in stack.services.values()))


STUCK_ONCE = """
import os, sys, time
if os.path.exists(sys.argv[1] + ".stuck"):
    os.remove(sys.argv[1] + ".stuck")
    time.sleep(600)
"""


def test_a_service_that_does_not_start_shows_its_last_words(home: Home) -> None:
    broken = Recipes(
        SMALL.ray, SMALL.mlflow, lambda home, *_: small_recipe(home, "api", "raise SystemExit('no port')")
    )
    with pytest.raises(ServiceFailed, match="api ended with code 1") as failed, running(home, recipes=broken):
        pass
    assert "| no port" in failed.value.message
    assert processes_of(home.root) == []


def test_a_service_that_is_never_ready_is_named(home: Home) -> None:
    home.prepare()
    service = Service.start(
        small_recipe(home, "api", "import time; time.sleep(60)", start_deadline_s=0.3), home
    )
    try:
        with pytest.raises(ServiceFailed, match=r"was not ready within 0\.3 s"):
            service.wait_ready()
    finally:
        service.end()


HALF_ENDED = """
import ctypes, json, os, threading, time
child = os.fork()
if child == 0:
    if os.fork() == 0:
        time.sleep(60)
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    libc = ctypes.CDLL(None)
    libc.syscall.argtypes = [ctypes.c_long, ctypes.c_long]
    libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # exit, of this thread only
while open(f"/proc/{child}/stat").read().split()[2] != "Z":
    time.sleep(0.01)
print(json.dumps({"url": "http://127.0.0.1:4711"}))
time.sleep(60)
"""
"""A service with a child whose main thread has ended, but not the other one, and a child of that: so looks a raylet
while it is being killed."""


def test_what_is_below_a_process_that_has_half_ended_is_ended_too(home: Home) -> None:
    home.prepare()
    service = Service.start(small_recipe(home, "ray", HALF_ENDED), home)
    try:
        service.wait_ready()
        assert len(processes_of(home.root)) == 3  # guard, service, and who is below what /proc calls a zombie
    finally:
        service.end()
    assert processes_of(home.root) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_up_itself_is_ended(number: signal.Signals, home: Home) -> None:
    up = subprocess.Popen([sys.executable, str(UP), str(home.root)])
    try:
        wait_for("up", lambda: read_json(home.up).get("url"))
        assert len(temp_dirs(home)) == 1
        up.send_signal(number)
        up.wait(30)
        wait_for("end of all processes", lambda: not processes_of(home.root))
        assert temp_dirs(home) == []
    finally:
        up.kill()
        up.wait(30)


def test_down_ends_up_and_a_new_up_follows_at_once(home: Home) -> None:
    up = subprocess.Popen([sys.executable, str(UP), str(home.root)])
    wait_for("up", lambda: read_json(home.up).get("url"))
    reaper = threading.Thread(target=up.wait)
    reaper.start()
    assert take_down(home)
    reaper.join(30)
    assert processes_of(home.root) == []
    assert not take_down(home)
    with running(home, recipes=SMALL):
        assert len(recorded(home)) == 3


def test_up_follows_an_up_that_was_killed(home: Home) -> None:
    up = subprocess.Popen([sys.executable, str(UP), str(home.root)])
    wait_for("up", lambda: read_json(home.up).get("url"))
    up.kill()
    up.wait(30)
    with running(home, recipes=SMALL) as stack:
        assert isinstance(stack, Stack)
        assert len(processes_of(home.root)) == 9


@pytest.mark.parametrize("left", ["", "\n", "\0\0\0", "\x7f", "a", "0123456789abcde"])
def test_a_token_for_ray_that_a_power_cut_has_torn_is_made_anew(left: str, home: Home) -> None:
    home.prepare()
    whole = home.ray_token.read_text()
    with home.held():
        assert home.ray_token.read_text() == whole
    home.ray_token.write_text(left)
    with home.held():
        assert len(home.ray_token.read_text()) > 32
        assert home.ray_token.read_text().isprintable()
        assert stat.S_IMODE(home.ray_token.stat().st_mode) == 0o600


def test_a_clusters_token_that_is_none_is_refused_and_takes_no_place(home: Home) -> None:
    home.prepare()
    kept, given = home.ray_token.read_text(), home.root / "cluster.token"
    given.write_text("\n")
    with (
        pytest.raises(RayTokenTorn, match="holds no token"),
        running(home, recipes=SMALL, cluster=ForeignCluster("10.0.0.10:6379", given)),
    ):
        pass
    assert home.ray_token.read_text() == kept


def test_up_removes_what_its_records_name_and_is_its_own(home: Home, tmp_path: Path) -> None:
    home.prepare()
    left, link, others = (tmp_path / name for name in ("left", "link", "others"))
    (left / "ray").mkdir(parents=True)
    others.mkdir()
    link.symlink_to(others)
    record = {
        "pid": 1,
        "started": "before the power cut:1",
        "remove": [str(left), str(link), str(home.root / "gone"), 7],
    }
    write_json(home.record("ray"), record)
    if os.geteuid() == 0:
        os.chown(others, NOBODY, NOBODY)
        write_json(home.record("mlflow"), {**record, "remove": [str(others)]})
    with running(home, recipes=SMALL):
        assert not left.exists()
        assert others.is_dir()


def test_a_pid_that_was_given_to_somebody_else_is_never_signalled(home: Home) -> None:
    home.prepare()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        real = PidIdentity.of(bystander.pid)
        assert real is not None
        write_json(home.up, {"pid": bystander.pid, "started": "another boot:1", "url": "http://x"})
        write_json(home.record("api"), {"pid": bystander.pid, "started": "another boot:1"})
        assert not take_down(home)
        PidIdentity(bystander.pid, "another boot:1").send(signal.SIGKILL)
        assert wait_gone([real], deadline_s=0.3) == [real]
        end([real], grace_s=5)
        assert not real.alive
    finally:
        bystander.kill()
        bystander.wait(10)


def test_a_record_is_json(home: Home) -> None:
    home.prepare()
    write_json(home.up, {"a": 1})
    assert json.loads(home.up.read_text()) == read_json(home.up) == {"a": 1}
    home.up.write_text("{broken")
    assert read_json(home.up) == {}
