"""What a wheel holds, and what its base alone can do."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from base_install import ROOT, build, link_needed

BASE_USE = """
import sys
import ringleader, ringleader.client, ringleader.cli.main, ringleader.spec, ringleader.wire.package
import ringleader.cli.terminal.follow
assert ringleader.Client.__name__ == "Client"
assert ringleader.JobSpec.load(__import__("pathlib").Path(sys.argv[1])).name == "digits"
assert ringleader.cli.main.main(["validate", sys.argv[1]]) == 0
heavy = {"torch", "ray", "numpy", "pyarrow", "mlflow", "fastapi", "sqlalchemy", "sklearn"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


def test_a_wheel_holds_the_three_packages_and_no_platform(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "ringleader",
        "ringleader_api",
        "ringleader_jobs",
    }
    assert "ringleader_jobs/digits.yaml" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_a_wheel_carries_the_page_and_the_guide_as_they_are_built(wheel: Path) -> None:
    package = ROOT / "api" / "ringleader_api"
    built = {
        f"ringleader_api/{name}/index.html"
        for name in ("static", "guide")
        if (package / name / "index.html").is_file()
    }
    with zipfile.ZipFile(wheel) as archive:
        carried = {
            name
            for name in archive.namelist()
            if re.fullmatch(r"ringleader_api/(static|guide)/index\.html", name)
        }
    assert carried == built


def test_the_base_wheel_alone_is_sdk_and_command_line(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    link_needed(site)
    job_file = site / "ringleader_jobs" / "digits.yaml"
    done = subprocess.run(
        # -I -S: nothing but the standard library and what PYTHONPATH would have named.
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(site)!r}){BASE_USE}",
            str(job_file),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "digits.yaml is valid" in done.stdout
