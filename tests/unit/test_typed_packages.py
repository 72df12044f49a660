"""A user's type checker sees the types of an installed wheel."""

import ast
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from base_install import ROOT, build, link_needed

import ringleader

RIGHT = """
import ringleader
from ringleader.client import Event, Result


def main(client: ringleader.Client) -> Result:
    spec = ringleader.JobSpec.parse({"name": "spiral", "entrypoint": "spiral:train"})
    job: ringleader.Job = client.submit(spec, working_dir=".")
    for event in job.events(follow=True):
        name: str = event.type
        print(name, event.data)
    try:
        return job.resize(max=3).wait(timeout=60)
    except ringleader.JobFailed:
        job.cancel(grace_s=1.5)
        raise


def last(job: ringleader.Job) -> Event:
    return list(job.events())[-1]


with ringleader.Client("http://127.0.0.1:8000", token="secret") as opened:
    print(main(opened).weights_sha256)
"""
HEAD = """
from ringleader import Client, Job, Session


def main(client: Client, job: Job, session: Session) -> None:
"""
WRONG = {
    'Client(8000, token="secret")': '"Client" has incompatible type "int"; expected "str | None"',
    "client.job(7)": '"job" of "Client" has incompatible type "int"; expected "str"',
    "client.submit(7)": '"submit" of "Client" has incompatible type "int"',
    "steps: str = job.wait().steps": 'expression has type "int", variable has type "str"',
    "job.resized()": '"Job" has no attribute "resized"',
    "session.batch([])": '"Session" has no attribute "batch"',
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what its base needs: nothing in it leads to this checkout."""
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*command, "--target", str(site), str(wheel)], check=True, capture_output=True, timeout=60)
    link_needed(site)
    return folder / "bin" / "python"


def test_each_package_of_a_wheel_says_that_it_is_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packages = {name.split("/")[0] for name in names if name.endswith(".py")}
    assert packages == {"ringleader", "ringleader_api", "ringleader_jobs"}
    assert {f"{package}/py.typed" for package in packages} <= names


def test_a_right_client_program_passes_mypy_and_each_wrong_line_is_reported(
    python: Path, tmp_path: Path
) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(HEAD + "".join(f"    {line}\n" for line in WRONG))
    told = mypy(python, tmp_path)
    assert [line for line in told if line.startswith("right.py")] == []
    first = HEAD.count("\n") + 1
    for number, error in enumerate(WRONG.values(), first):
        assert any(line.startswith(f"wrong.py:{number}: error:") and error in line for line in told), told


def mypy(python: Path, folder: Path) -> list[str]:
    """The lines that `mypy --strict` prints for the programs in the folder."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", str(python)),
            *("--cache-dir", str(folder / "cache"), "right.py", "wrong.py"),
        ],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in {"MYPYPATH", "PYTHONPATH"}},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def test_type_checkers_read_the_public_names_that_the_package_has() -> None:
    stub = ast.parse((ROOT / "platform" / "ringleader" / "__init__.pyi").read_text())
    imported = {
        (node.module, name.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    homes = {(home, name) for name, home in ringleader._HOME.items()}
    assert imported == homes | {("ringleader", part) for part in ringleader._PARTS}
    (names,) = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(names) == ringleader.__all__
