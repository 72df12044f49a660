"""What a function of a notebook uses is written down as source where that makes the same again; a prompt without
source, and a program that came by a pipe, are refused in a sentence."""

import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from fake_api import TOKEN, URL, FakeApi
from test_client_function import SUBMIT, UNIT, from_cells, python

from ringleader.client import Client
from ringleader.client.functions.cells import _import_of
from ringleader.client.functions.function import FunctionRefused
from ringleader.client.values import source_of
from ringleader.parsing import parse
from ringleader.wire.package import unpack

KEPT = pytest.mark.skipif(sys.version_info >= (3, 13), reason="from 3.13 on Python keeps what is typed")


@pytest.mark.parametrize(
    "value",
    [
        torch.device("cpu"),
        torch.device("cuda", 1),
        torch.bfloat16,
        Path("data") / "it's",
        PurePosixPath("/data"),
        np.float32(0.1),
        np.int64(-3),
        np.bool_(True),
        np.float64("inf"),
        complex(1, float("inf")),
        {"where": (torch.device("cpu"), [Path("a")], {1}), "rate": np.float64(0.1), "none": None},
        [],
        ((), frozenset({b"a", "b"})),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_read_back_as_it_was(value: Any) -> None:
    source = source_of(value)
    assert source is not None
    names: dict[str, Any] = {}
    exec("\n".join(source.imports.values()), names)
    again = eval(source.text, names)
    assert (again, type(again)) == (value, type(value))


@pytest.mark.parametrize(
    "value",
    [object(), [torch.zeros(1)], np.zeros(1), np.timedelta64(3, "ns"), np.longdouble(1)],
    ids=lambda value: type(value).__name__,
)
def test_what_no_source_makes_again_has_none(value: Any) -> None:
    assert source_of(value) is None


def test_what_contains_itself_has_no_source() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert source_of(endless) is None


def test_a_notebooks_devices_types_paths_numbers_and_lambdas_are_packed(tmp_path: Path) -> None:
    from_cells(
        tmp_path,
        SUBMIT,
        "from pathlib import Path\nimport numpy as np\nimport torch",
        "DEVICE = torch.device('cpu')\nDTYPE = torch.float32\nDATA = Path('data')\nRATE = np.float32(0.5)",
        "WIDTH = 3\nwide = lambda x, *, by=WIDTH: [one * by * FACTOR for one in x]\nFACTOR = 2",
        "def train(session): return DEVICE.type, str(DTYPE), str(DATA / 'a'), float(RATE), wide([1])",
        "submit(train)",
    )
    unpack(tmp_path / "package", tmp_path / "there")
    told = python("-c", "import notebook; print(notebook.train(None))", cwd=tmp_path / "there")
    assert told == "('cpu', 'torch.float32', 'data/a', 0.5, [6])"


def test_a_lambda_that_is_not_what_its_cell_says_is_refused_by_name(tmp_path: Path) -> None:
    cells = ["late = lambda x: x + 1", "late = [lambda x: x + 2][0]", "def train(session): return late(1)"]
    refused = from_cells(tmp_path, SUBMIT, *cells, "submit(train)")["refused"]
    assert "'train' uses 'late', a value of type function" in refused


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(
            ["-"], "'train' cannot be packaged: Python read it from <stdin>, which is not a file.", id="pipe"
        ),
        pytest.param(
            ["-i"],
            "'train' cannot be packaged: its source is not kept by Python's prompt",
            marks=KEPT,
            id="prompt",
        ),
        pytest.param(
            ["-c", SUBMIT + "def train(session): ...\nsubmit(train)"],
            "its source is not kept by Python's prompt or `python -c`",
            marks=KEPT,
            id="command",
        ),
    ],
)
def test_a_function_whose_source_is_kept_nowhere_is_refused_in_a_sentence(
    arguments: list[str], told: str, tmp_path: Path
) -> None:
    # At the prompt a block ends with an empty line, and there is none inside of one.
    typed = SUBMIT.replace("\n\n", "\n") + "\ndef train(session): ...\n\nsubmit(train)\n"
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env={"PYTHONPATH": str(UNIT), "PATH": ""},
        input="" if "-c" in arguments else typed,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert told in done.stdout, done.stderr


def test_a_requirements_file_does_not_go_with_a_function() -> None:
    client = Client(URL, TOKEN, transport=FakeApi())
    with pytest.raises(
        FunctionRefused,
        match=r"'lock\.txt', but a function is submitted without a working_dir.* Give the packages as a list",
    ):
        client.submit({"name": "a", "requirements": "lock.txt"}, function=unpack)


def test_a_module_is_not_taken_for_a_name_that_another_module_lacks() -> None:
    tree = parse("import sys\nfrom math import *")
    assert _import_of("sys", sys, [tree]) == ("import sys", "sys")
