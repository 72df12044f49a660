"""What a job file names on this machine is looked up before anything is sent, by `validate` as by `submit`."""

from pathlib import Path

import pytest
from fake_api import TOKEN, URL, FakeApi

from ringleader.cli.main import main
from ringleader.client import Client
from ringleader.errors import SpecInvalid
from ringleader.spec.working_dir import JobFileWarning

PINNED = "requirements: lock.txt"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("def main(session): ...\n")
    (tmp_path / "code" / "two.txt").write_text("einops==0.8.0 --hash=sha256:00\neinops==0.8.1\n")
    return tmp_path / "job.yaml"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("working_dir: nothere", "/nothere does not exist; allowed: a folder, relative to the job file"),
        ("working_dir: job.yaml", "job.yaml is not a folder; allowed: a folder"),
        (
            PINNED,
            "lock.txt is a path in the working directory, but the job has none; allowed: a working_dir, or a list",
        ),
        (f"working_dir: code\n{PINNED}", "lock.txt cannot be read"),
        ("working_dir: code\nrequirements: two.txt", "two.txt has both einops==0.8.0 and einops==0.8.1"),
        (
            "requirements: [A-b==1, a_b==2]",
            "A-b==1 and a_b==2 cannot both be installed; allowed: one version",
        ),
    ],
)
def test_validate_refuses_what_submit_refuses(
    job: Path, capsys: pytest.CaptureFixture[str], lines: str, told: str
) -> None:
    job.write_text(f"name: a\nentrypoint: train:main\n{lines}\n")
    api = FakeApi()
    for command in ("validate", "submit"):
        assert main([command, str(job)], connect=lambda: Client(URL, TOKEN, transport=api)) == 2
        assert told in capsys.readouterr().err
    with pytest.raises(SpecInvalid):
        Client(URL, TOKEN, transport=api).submit(job)
    assert api.seen == []


def test_validate_looks_into_the_folder_that_submit_is_to_pack(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job.parent / "code" / "lock.txt").write_text("einops==0.8.1\n")
    job.write_text(f"name: a\nentrypoint: train:other\n{PINNED}\n")
    folder = ["--working-dir", str(job.parent / "code")]
    assert main(["validate", str(job), *folder]) == 2
    assert "train.py has no function 'other'; it has main" in capsys.readouterr().err
    job.write_text(f"name: a\nentrypoint: train:main\n{PINNED}\n")
    assert main(["validate", str(job), *folder]) == 0


def test_a_module_that_only_the_nodes_may_have_is_valid_and_that_is_said(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.write_text("name: a\nentrypoint: nomod:train\nworking_dir: code\n")
    assert main(["validate", str(job)]) == 0
    out, err = capsys.readouterr()
    assert "is valid" in out
    assert err == f"the module nomod is not in {job.parent / 'code'}, so it must be installed on the nodes.\n"
    job.write_text("name: a\nentrypoint: train:main\nworking_dir: code\n")
    assert main(["validate", str(job), "-o", "json"]) == 0
    assert capsys.readouterr().err == ""


def test_a_module_beside_a_job_file_without_a_working_dir_is_not_sent_and_that_is_said(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.write_text("name: a\nentrypoint: train:main\n")
    told = "train.py lies beside the job file, but is not sent to the nodes: the job file has no working_dir."
    assert main(["validate", str(job)]) == 0
    assert capsys.readouterr().err == "", "it is installed on the nodes, then"
    (job.parent / "train.py").write_text("def main(session): ...\n")
    for command in (["validate"], ["submit", "--dry-run"]):
        main([*command, str(job)], connect=lambda: Client(URL, TOKEN, transport=FakeApi()))
        assert f"{told} Set working_dir: . to send it." in capsys.readouterr().err
    with pytest.warns(JobFileWarning, match="is not sent"):
        Client(URL, TOKEN, transport=FakeApi()).preview(job)


def test_what_is_packed_already_is_not_looked_for(job: Path) -> None:
    digest = "sha256:" + "0" * 64
    job.write_text(f"name: a\nentrypoint: train:main\nworking_dir: {digest}\n{PINNED}\n")
    assert main(["validate", str(job)]) == 0


def test_one_package_may_be_named_twice_where_one_version_is_meant(job: Path) -> None:
    apart = "'a==1; python_version<\"3.12\"', 'a==2; python_version>=\"3.12\"'"
    job.write_text(f"name: a\nentrypoint: train:main\nrequirements: [{apart}, b==1, b == 1]\n")
    assert main(["validate", str(job)]) == 0
