"""`ringleader check`: a program is run twice here, and what would differ on another worker is named."""

import json
from pathlib import Path

import pytest

from ringleader.cli.main import main

PROGRAM = """
import time
import torch
from torch.utils.data import TensorDataset

def train(session):
    net = session.model(torch.nn.Linear(3, 1))
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    data = TensorDataset(torch.randn(64, 3))
    for _ in range(20):
        for (x,) in session.batches(data):
            session.step(net(x).square().mean())
        seed = time.time_ns()
        optimizer.param_groups[0]["momentum"] = seed % 999_983 / 999_983
"""
JOB = "{name: odd, entrypoint: 'odd:train', working_dir: ., batch: {global_size: 8}, sync: parameter_server}"


def job(folder: Path, program: str) -> str:
    (folder / "odd.py").write_text(program)
    (folder / "job.yaml").write_text(JOB)
    return str(folder / "job.yaml")


def test_what_differs_is_told_and_the_exit_code_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", job(tmp_path, PROGRAM), "-o", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [(each["variable"], each["line"]) for each in told["found"]] == [
        ("seed", "odd.py:13"),
        ("optimizer.param_groups[0]['momentum']", "odd.py:14"),
    ]


def test_a_program_that_ends_its_process_is_said_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", job(tmp_path, "import os\n\ndef train(session):\n    os._exit(3)\n")]) == 1
    said = capsys.readouterr().err
    assert "the first run ended with code 3 and printed no error" in said
    assert "os._exit" in said


def test_of_what_the_end_of_a_program_leaves_no_line_is_made_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = "    net.load_state_dict({n: p * 0 + seed % 999_983 for n, p in net.state_dict().items()})\n"
    assert main(["check", job(tmp_path, PROGRAM.replace("range(20)", "range(1)") + last), "-o", "json"]) == 1
    said = capsys.readouterr()
    assert said.out, said.err
    told = json.loads(said.out)
    found = [(each["variable"], each["line"]) for each in told["found"]]
    assert [each for each in found if each[0].startswith("the weights")] == [
        (f"the weights 0.{name}", "the end of the program") for name in ("weight", "bias")
    ]


def test_a_program_that_does_not_run_is_an_error_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", job(tmp_path, "def train(session):\n    raise KeyError('where')\n")]) == 1
    said = capsys.readouterr().err
    assert "KeyError: 'where'" in said
    assert 'File "' + str(tmp_path / "odd.py") in said


def test_an_entrypoint_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    assert main(["check", job(tmp_path, "def other(session): ...")]) == 2
