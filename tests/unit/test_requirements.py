"""Packages that a job brings: installed once on a node, never in place of the engine's own, offline."""

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_runtime_member import ended
from wheels import wheel

import ringleader
from ringleader.errors import RequirementsFailed, SpecInvalid
from ringleader.runtime.nodes.node_scratch import SCRATCH, private_scratch
from ringleader.runtime.worker import package_install
from ringleader.runtime.worker.package_install import PackageEnvironments, environment_of
from ringleader.runtime.worker.requirements import RequirementsLock, engine_packages, read
from ringleader.spec import JobSpec
from ringleader.spec.requirements import check_requirements
from ringleader.train.local import run_local

GOOD = {"name": "a", "entrypoint": "m:f"}
Told = list[tuple[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """tiny 1.0 needs small, big needs an older numpy; there is nothing else."""
    links = tmp_path / "links"
    wheel(links, "tinypkg", "1.0", needs=["smallpkg>=1", "numpy>=1"])
    wheel(links, "smallpkg", "2.0")
    wheel(links, "oldpkg", "1.0", needs=["numpy<1.5"])
    for version in range(1, 5):
        wheel(links, "manypkg", f"{version}.0")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(links))
    return links


def asked(*requirements: str) -> JobSpec:
    return JobSpec.parse(GOOD | {"requirements": list(requirements)})


def installed(spec: JobSpec, tmp_path: Path, told: Told | None = None) -> Path:
    place = tmp_path / "environments"
    place.mkdir(exist_ok=True)
    events = told if told is not None else []
    found = environment_of(spec, tmp_path, lambda kind, data: events.append((kind, data)), place)
    assert found is not None
    return found


def test_a_node_installs_what_a_job_brings_once_with_what_that_needs(tmp_path: Path) -> None:
    told: Told = []
    first = installed(asked("tinypkg==1.0"), tmp_path, told)
    assert sorted(path.name for path in first.glob("*.py")) == ["smallpkg.py", "tinypkg.py"]
    assert [kind for kind, _ in told] == ["requirements.installing", "requirements.installed"]
    assert told[1][1]["packages"] == ["smallpkg==2.0", "tinypkg==1.0"]
    assert installed(asked("tinypkg==1.0"), tmp_path, told) == first
    assert len(told) == 2, "it was there"
    assert installed(asked("smallpkg==2.0"), tmp_path) != first


def test_workers_that_come_together_wait_for_the_one_that_installs(tmp_path: Path) -> None:
    told: Told = []
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: installed(asked("tinypkg==1.0"), tmp_path, told), range(4)))
    assert len(found) == 1
    assert [kind for kind, _ in told] == ["requirements.installing", "requirements.installed"]


def test_what_killed_installers_have_left_is_removed_but_not_what_is_being_installed(tmp_path: Path) -> None:
    place = tmp_path / "environments"
    dead, living = "0" * 32, "1" * 32
    for digest in (dead, living):
        (place / f"{digest}.part-x" / "packages").mkdir(parents=True)
    with (place / f"{living}.install").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        installed(asked("tinypkg==1.0"), tmp_path)
    assert [path.name for path in place.glob("*.part-*")] == [f"{living}.part-x"]


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Callable[[str, int], None]]:
    """Another worker of the node, which takes a lock of tinypkg's environment."""
    place = tmp_path / "environments"
    place.mkdir()
    name = read(["tinypkg==1.0"], tmp_path).digest(engine_packages())
    with ExitStack() as held:
        yield lambda lock, kind: fcntl.flock(held.enter_context((place / f"{name}.{lock}").open("w")), kind)


def test_who_installs_does_not_wait_for_those_that_wait_for_it(
    tmp_path: Path, beside: Callable[[str, int], None]
) -> None:
    beside("lock", fcntl.LOCK_SH)
    assert (installed(asked("tinypkg==1.0"), tmp_path) / "tinypkg.py").exists()


def test_an_installation_that_never_ends_fails_who_waits_for_it(
    tmp_path: Path, beside: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_install, "INSTALL_S", 0.1)
    beside("install", fcntl.LOCK_EX)
    with pytest.raises(RequirementsFailed, match=r"another worker on this node .* within 0 s"):
        installed(asked("tinypkg==1.0"), tmp_path)


def test_what_the_engine_uses_itself_is_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(
        RequirementsFailed, match=rf"numpy==1\.0; the engine on this node uses numpy=={np.__version__}"
    ):
        installed(asked("numpy==1.0"), tmp_path)
    with pytest.raises(RequirementsFailed, match=r"cannot be installed:(.|\n)*oldpkg depend on numpy<1\.5"):
        installed(asked("oldpkg==1.0"), tmp_path)
    same = installed(asked(f"numpy=={np.__version__}", "smallpkg==2.0"), tmp_path)
    assert sorted(path.name for path in same.glob("*.py")) == ["smallpkg.py"]
    assert {"ringleader", "torch", "ray", "numpy", "pydantic"} <= engine_packages().keys()


def test_a_requirements_file_is_read_from_the_working_directory_with_its_hashes(
    tmp_path: Path, index: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    spec = JobSpec.parse(GOOD | {"working_dir": ".", "requirements": "lock.txt"})
    lock = folder / "lock.txt"
    lock.write_text("# made by hand\nsmallpkg==2.0 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(RequirementsFailed, match=r"[Hh]ash mismatch"):
        environment_of(spec, folder, lambda *_: None, tmp_path)
    lock.write_text(f"--find-links {index}\nsmallpkg==2.0  # this one\n")
    found = environment_of(spec, folder, lambda *_: None, tmp_path)
    assert found is not None
    assert (found / "smallpkg.py").exists()


@pytest.mark.parametrize(
    "line",
    [
        "smallpkg",
        "smallpkg>=2",
        "-r more.txt",
        "-e .",
        "./wheel.whl",
        "smallpkg==2.*",
        "--no-index -e .",
        "--find-links x -r more.txt",
    ],
)
def test_what_is_not_pinned_or_comes_from_elsewhere_is_refused_by_name(tmp_path: Path, line: str) -> None:
    (tmp_path / "lock.txt").write_text(f"tinypkg==1.0\n{line}\n")
    with pytest.raises(RequirementsFailed, match=r"lock\.txt has"):
        read("lock.txt", tmp_path)
    with pytest.raises(SpecInvalid, match="/requirements"):
        check_requirements("lock.txt", tmp_path)


def test_a_file_that_is_not_there_or_lies_outside_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "outside.txt").write_text("smallpkg==2.0\n")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(RequirementsFailed, match="cannot be read"):
        read("absent.txt", folder)
    with pytest.raises(RequirementsFailed, match="lies outside the working directory"):
        read("link.txt", folder)
    with pytest.raises(SpecInvalid, match=r"absent\.txt cannot be read"):
        check_requirements("absent.txt", folder)


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        (["smallpkg==2.0", "tinypkg>=1"], "/requirements/1"),
        (["smallpkg"], "/requirements/0"),
        ([3], "/requirements/0"),
        (["smallpkg==2.0; python_version>'3'\r-e ."], "/requirements/0"),
        ("../lock.txt", "/requirements"),
        ("/lock.txt", "/requirements"),
        ({"smallpkg": "2.0"}, "/requirements"),
    ],
    ids=str,
)
def test_the_job_file_names_a_file_of_the_working_directory_or_pins(given: Any, pointer: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        JobSpec.parse(GOOD | {"requirements": given})
    assert [finding["pointer"] for finding in caught.value.errors] == [pointer]
    for good in ("locks/lock.txt", ["a==1", "B.c[x]==2.0+cpu ; python_version > '3'"], None):
        spec = JobSpec.parse(GOOD | {"requirements": good})
        assert JobSpec.parse(spec.model_dump(mode="json")).requirements == good


def test_an_environment_in_use_stays_and_the_one_unused_for_longest_goes(tmp_path: Path) -> None:
    own = engine_packages()
    few = replace(PackageEnvironments(tmp_path, own), keep=2)

    def have(version: int) -> Path:
        pins = {"manypkg": f"{version}.0"}
        return few.have(RequirementsLock("list", (f"manypkg=={version}.0",), pins), tmp_path, lambda *_: None)

    in_use = [have(1), have(2), have(3)]
    assert all(folder.is_dir() for folder in in_use), "this process uses them all"
    left_over = tmp_path / ("0" * 32)
    left_over.mkdir()
    os.utime(left_over, (0, 0))
    have(4)
    assert not left_over.exists()
    assert all(folder.is_dir() for folder in in_use)


def test_what_others_may_write_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SCRATCH, str(tmp_path))
    folder = private_scratch("environments")
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(RequirementsFailed, match="others can write to it"):
        private_scratch("environments")
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(RequirementsFailed, match="belongs to another account"):
        private_scratch("environments")


def test_a_workers_code_finds_the_jobs_packages_and_a_job_without_them_fails_with_the_installers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv(SCRATCH, str(tmp_path / "scratch"))
    (tmp_path / "brings_job.py").write_text(
        "import smallpkg\ndef train(session): raise LookupError('smallpkg ' + smallpkg.VERSION)\n"
    )
    end = ended(tmp_path, entrypoint="brings_job:train", requirements=["smallpkg==2.0"])
    assert (end.kind, "LookupError: smallpkg 2.0" in end.message) == ("raised", True)
    end = ended(tmp_path, entrypoint="brings_job:train", requirements=["smallpkg==9.9"])
    assert (end.kind, end.reason) == ("failed", "requirements_failed")
    assert "smallpkg==9.9" in end.message


def test_what_is_secret_is_not_in_the_installers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "hunter2"))
    with pytest.raises(RequirementsFailed) as failed:
        environment_of(asked("smallpkg==2.0"), tmp_path, lambda *_: None, tmp_path, hide=["hunter2", ""])
    assert "hunter2" not in str(failed.value)
    assert "***" in failed.value.message


def test_a_local_session_installs_nothing_and_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(SpecInvalid, match="a local session installs no packages"),
        ringleader.local_session(GOOD | {"requirements": ["smallpkg==2.0"]}),
    ):
        pytest.fail("the session has begun")
    with pytest.raises(SpecInvalid, match="a local session installs no packages"):
        run_local(GOOD | {"requirements": ["smallpkg==2.0"]}, lambda session: None, tmp_path)
