"""A training function is submitted as it stands: in a script, a module, or the cells of a notebook."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringleader.wire.package import unpack

UNIT = Path(__file__).parent

NET = """\
import torch
from torch import nn

WIDTH = 8

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, WIDTH)
        self.outer = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))
"""
ROWS = """\
import torch
from torch.utils.data import TensorDataset

def rows():
    draw = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(16, 4, generator=draw), torch.zeros(16, dtype=torch.int64))
"""
TRAIN = """\
import torch.nn.functional as F

RATES = {"lr": 0.5}

def train(session):
    net = session.model(Net())
    session.optimizer(torch.optim.SGD(net.parameters(), **RATES))
    for x, y in session.batches(rows()):
        session.step(F.cross_entropy(net(x), y))
"""
SUBMIT = """\
import json, sys
from fake_api import TOKEN, URL, FakeApi
from ringleader.client import Client
from ringleader.errors import RingleaderError

def submit(function):
    api = FakeApi()
    try:
        Client(URL, TOKEN, transport=api).submit({"name": "a"}, function=function)
    except RingleaderError as error:
        print(json.dumps({"refused": str(error)}))
        return
    (body,) = [json.loads(call.content) for call in api.calls("POST", "/jobs")]
    for package in api.packages.values():
        open(sys.argv[1], "wb").write(package)
    print(json.dumps({"body": body}))
"""
RUN = """\
import sys
from pathlib import Path
from ringleader.train.local import run_local
from ringleader.train.run import load_function

spec = {"name": "a", "entrypoint": "a:b", "batch": {"global_size": 8}}
function = load_function(sys.argv[1], Path(sys.argv[2]))
print(run_local(spec, function, Path(sys.argv[3]))[0].digest)
"""
NOTEBOOK = """\
import __future__, json, linecache, sys
cells = json.loads(open(sys.argv[2]).read())
main = sys.modules["__main__"].__dict__
main["__file__"] = "/of/a/script/that/was/run.py"
main["In"] = [""]
for number, cell in enumerate(cells):
    name = f"<ipython-input-{number}>"
    main["In"].append(cell)
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    text = "\\n".join(line for line in cell.splitlines() if not line.startswith("%"))
    future = __future__.annotations.compiler_flag * any("annotations" in before for before in main["In"])
    exec(compile(text, name, "exec", flags=future), main)
"""


def python(*arguments: str | Path, cwd: Path) -> str:
    """What it prints last."""
    environ = {"PYTHONPATH": str(UNIT), "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def digest(entrypoint: str, folder: Path, artifacts: Path) -> str:
    """Of what the function trains, imported from there by another process."""
    return python("-c", RUN, entrypoint, folder, artifacts, cwd=artifacts.parent)


def told(folder: Path, *arguments: str | Path) -> dict[str, Any]:
    return dict(json.loads(python(*arguments, cwd=folder)))


def from_cells(folder: Path, *cells: str) -> dict[str, Any]:
    (folder / "driver.py").write_text(NOTEBOOK)
    (folder / "cells.json").write_text(json.dumps(cells))
    return told(folder, folder / "driver.py", folder / "package", folder / "cells.json")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the program in one file."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "whole.py").write_text(NET + ROWS + TRAIN)
    return digest("whole:train", folder, folder / "artifacts")


def test_a_script_is_packed_with_the_modules_beside_it_that_it_imports(tmp_path: Path, expected: str) -> None:
    work = tmp_path / "work"
    (work / "shapes" / "nets").mkdir(parents=True)
    (work / "shapes" / "__init__.py").write_text("")
    (work / "shapes" / "nets" / "__init__.py").write_text("from .plain import Net\n")
    (work / "shapes" / "nets" / "plain.py").write_text(NET)
    (work / "rows_of_it.py").write_text(ROWS)
    (work / "not_imported.py").write_text("raise SystemExit\n")
    (work / "my-train.py").write_text(
        "import torch\nfrom shapes.nets import Net\nfrom rows_of_it import rows\n"
        + TRAIN
        + 'if __name__ == "__main__":\n    from submitting import submit\n    submit(train)\n'
    )
    (work / "submitting.py").write_text(SUBMIT)
    body = told(work, work / "my-train.py", tmp_path / "package")["body"]
    unpack(tmp_path / "package", tmp_path / "there")
    files = {path.relative_to(tmp_path / "there").as_posix() for path in (tmp_path / "there").rglob("*.py")}
    nets = {"shapes/__init__.py", "shapes/nets/__init__.py", "shapes/nets/plain.py"}
    assert files == {"my_train.py", "rows_of_it.py", "submitting.py", *nets}
    assert body["entrypoint"] == "my_train:train"
    assert digest(body["entrypoint"], tmp_path / "there", tmp_path / "artifacts") == expected


def test_a_script_that_would_submit_again_wherever_it_is_imported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(SUBMIT + "def train(session): ...\nsubmit(train)\n")
    line = SUBMIT.count("\n") + 2
    refused = told(tmp_path, tmp_path / "bare.py", tmp_path / "package")["refused"]
    assert f"line {line} of bare.py submits the job on import" in refused


def test_a_function_of_a_notebook_is_packed_with_all_that_it_uses(tmp_path: Path, expected: str) -> None:
    (tmp_path / "rows_of_it.py").write_text(ROWS)
    body = from_cells(
        tmp_path,
        SUBMIT,
        "%matplotlib inline\n" + NET.replace("WIDTH = 8", "WIDTH = 4"),
        "from rows_of_it import rows as data\nlosses = [torch.zeros(3)]  # not used",
        "def rows():\n    return data()\n",
        "WIDTH = 8\nplot = lambda: losses",
        "def half(x): return x / 2",
        TRAIN.replace("0.5}", "half(1.0)}"),
        "submit(train)",
    )["body"]
    unpack(tmp_path / "package", tmp_path / "there")
    text = (tmp_path / "there" / "notebook.py").read_text()
    assert "RATES = {'lr': 0.5}\n" in text, "as it is now"
    assert not any(word in text for word in ("losses", "plot", "half", "submit"))
    assert body["entrypoint"] == "notebook:train"
    assert digest(body["entrypoint"], tmp_path / "there", tmp_path / "artifacts") == expected


def test_what_a_definition_needs_stands_before_it(tmp_path: Path) -> None:
    """A base, a decorator with what it calls, a default; what is needed when something is called may come later."""
    from_cells(
        tmp_path,
        SUBMIT,
        "from __future__ import annotations\nimport functools, os.path\nNAN = float('nan')\nlr = 3",
        "def named(f):\n    return noted(f)\n",
        "def noted(f):\n    f.note = os.path.join('a', 'b')\n    return f\n",
        "class Base:\n    lr = 1\n    def twin(self): return Child(), lr\n",
        "class Child(Base):\n    @named\n    def same(self, x=NAN) -> Unknown: return x != NAN\n",
        "@named\ndef train(session):\n    assert Child().twin()[1] == 3 and Child().same() and train.note == 'a/b'\n"
        "    global step\n    step = 1\n    return [step for _ in range(2)]\n",
        "submit(train)",
    )
    unpack(tmp_path / "package", tmp_path / "there")
    assert python("-c", "import notebook; print(notebook.train(None))", cwd=tmp_path / "there") == "[1, 1]"


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        (
            "rows = object()\ndef train(session): return rows",
            "'train' uses 'rows', a value of type object",
        ),
        ("def train(session): return absent", "'train' uses 'absent', which is not defined"),
        (
            "class Net: ...\nnet = Net()\ndef make(): return net\ndef train(session): make()",
            "'make' uses 'net', a value of type",
        ),
        ("train = lambda session: None", "is not a top-level function of a module"),
        (
            "def outer():\n    def train(session): ...\n    return train\ntrain = outer()",
            "is not a top-level function",
        ),
        (
            "def wrap(f):\n    return lambda session: f\nhelp_ = wrap(1)\ndef train(s): help_()",
            "a value of type function",
        ),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(tmp_path: Path, cell: str, why: str) -> None:
    assert why in from_cells(tmp_path, SUBMIT, cell, "submit(train)")["refused"]
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("class train:\n    def __init__(self, session): ...", "a class"),
        ("async def train(session): ...", "an async function"),
        ("async def train(session):\n    yield 1", "an async function"),
        ("def train(session):\n    yield 1", "a generator"),
    ],
)
def test_what_trains_nothing_when_it_is_called_is_refused(tmp_path: Path, text: str, kind: str) -> None:
    (tmp_path / "odd.py").write_text(f"{SUBMIT}{text}\nif __name__ == '__main__':\n    submit(train)\n")
    refused = told(tmp_path, tmp_path / "odd.py", tmp_path / "package")["refused"]
    assert f"'train' is {kind}, and calling it trains nothing" in refused


def test_a_function_of_an_installed_module_is_its_entrypoint(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(
        SUBMIT + "import wave\nif __name__ == '__main__':\n    submit(wave.open)\n"
    )
    assert told(tmp_path, tmp_path / "bare.py", tmp_path / "package")["body"]["entrypoint"] == "wave:open"
    assert not (tmp_path / "package").exists()


def test_a_function_takes_the_place_of_entrypoint_and_working_dir(tmp_path: Path) -> None:
    from fake_api import TOKEN, URL, FakeApi

    from ringleader.client import Client
    from ringleader.client.functions.function import FunctionRefused

    client = Client(URL, TOKEN, transport=FakeApi())
    for given in (
        {"name": "a", "entrypoint": "m:f"},
        {"name": "a", "working_dir": "."},
        tmp_path / "job.yaml",
    ):
        with pytest.raises(FunctionRefused, match="function= replaces entrypoint and working_dir"):
            client.submit(given, function=test_a_function_takes_the_place_of_entrypoint_and_working_dir)
