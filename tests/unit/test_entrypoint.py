"""The entrypoint is looked up in the text of its module: what is not there is refused, what may be is not."""

from pathlib import Path
from typing import Any

import pytest
from fake_api import TOKEN, URL, FakeApi

from ringleader.cli.main import main
from ringleader.client import Client
from ringleader.errors import EntrypointImport, SpecInvalid
from ringleader.spec import JobSpec
from ringleader.spec.program.entrypoint import check_entrypoint
from ringleader.train.run import load_function

HARMLESS = "import not_installed_anywhere\nraise SystemExit('imported')\n"


def spec(entrypoint: str = "train:main", **more: Any) -> JobSpec:
    return JobSpec.parse({"name": "a", "entrypoint": entrypoint, **more})


@pytest.mark.parametrize(
    "text",
    [
        "def main(session): ...",
        "def main(session, /, *rest, lr=1, **more): ...",
        "def main(*all): ...",
        "def main(session):\n    def rows():\n        yield 1\n    train(rows(), key=lambda: (yield))",
        "@decorated(1)\ndef main(): ...",
        "@decorated\nclass main: ...",
        "if X:\n    def main(): ...\nelse:\n    def main(session): ...",
        "class main: ...\nmain = main().train",
        "from elsewhere import main",
        "from elsewhere import train as main",
        "class main: ...\nfrom elsewhere import *",
        "main = make(3)",
        "main: Callable = make(3)",
        "one, (two, *main) = 1, 2",
        "try:\n    import fast\nexcept ImportError:\n    def main(session): ...",
        "if X:\n    pass\nelse:\n    with y:\n        for z in a:\n            main = z",
        "match X:\n    case 1:\n        main = 2",
        "for main in functions: pass",
        "print(main := 1)",
        "def make():\n    global main\n    main = 1",
        "globals()['main'] = 1",
        "exec(text)",
        "def __getattr__(name): ...",
    ],
)
def test_a_function_that_may_be_there_passes_and_its_module_is_not_imported(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"{HARMLESS}{text}\n")
    check_entrypoint(spec(), tmp_path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "def train(session): ...\ndef score(batch): ...",
            "train.py has no function 'main'; it has train, score;",
        ),
        ("class Net:\n    def main(self): ...", "it has none;"),
        ("def train():\n    def main(): ...\n    main = 1", "it has train;"),
        ("\n".join(f"def f{n}(): ..." for n in range(12)), "f9 and 2 more;"),
        ("def main(session:\n", "train.py, line 3 is not valid Python 3"),
        ("\0", "is not valid Python 3"),
    ],
)
def test_a_function_that_is_not_there_is_refused_with_those_that_are(
    text: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"{HARMLESS}{text}\n")
    with pytest.raises(SpecInvalid) as refused:
        check_entrypoint(spec(), tmp_path)
    (finding,) = refused.value.errors
    assert told in finding["message"]
    assert (finding["pointer"], finding["value"]) == ("/entrypoint", "train:main")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import torch.nn as main", "'main' in train.py is the module torch.nn;"),
        ("import main.deeper", "is the module main.deeper;"),
        ("class main:\n    def __init__(self, session): ...", "is a class;"),
        ("async def main(session): ...", "is an async function, which is not supported"),
        (
            "def main(session):\n    for row in session:\n        yield row",
            "is a generator: it contains yield",
        ),
        ("def main(): ...", "takes no parameters;"),
        ("def main(*, session=None): ...", "takes no parameters;"),
        ("def main(session, rate, width=1): ...", "has required parameters besides the session: rate;"),
        ("def main(session, *, rate, width=1): ...", "has required parameters besides the session: rate;"),
    ],
)
def test_what_cannot_be_called_with_a_session_alone_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{HARMLESS}{text}\n")
    with pytest.raises(SpecInvalid) as refused:
        check_entrypoint(spec(), tmp_path)
    (finding,) = refused.value.errors
    assert told in finding["message"]
    assert finding["allowed"] == "a function that takes the session, def train(session)"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (
            "import no_such_package.part",
            "Put no_such_package in working_dir, list its package in requirements",
        ),
        ("import torch.no_such_part", "torch is there, without torch.no_such_part: another version"),
        ("raise ValueError(1)", "Fix the line above: importing the module runs its code"),
        ("raise SystemExit", "Fix the line above"),
    ],
)
def test_what_helps_where_a_module_cannot_be_imported_is_said(text: str, hint: str, tmp_path: Path) -> None:
    name = f"unimportable_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(EntrypointImport) as refused:
        load_function(f"{name}:main", tmp_path)
    assert refused.value.hint.startswith(hint)


def test_a_module_that_is_missing_in_a_package_that_is_there_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "pk"
    (package / "plain").mkdir(parents=True)
    for file in ("__init__.py", "data.py", "fast.cpython-313-x86_64-linux-gnu.so"):
        (package / file).touch()
    (tmp_path / "one.py").touch()
    with pytest.raises(SpecInvalid, match="the package pk has no module 'nothere'; it has data;"):
        check_entrypoint(spec("pk.nothere:main"), tmp_path)
    with pytest.raises(SpecInvalid, match="the package pk has no module 'nothere'"):
        check_entrypoint(spec("pk.nothere.deeper:main"), tmp_path)
    with pytest.raises(SpecInvalid, match=r"one\.py is a module, not a package: 'train' cannot"):
        check_entrypoint(spec("one.train:main"), tmp_path)
    for installed in ("pk.fast:main", "pk.plain.train:main", "plain.train:main"):
        assert not check_entrypoint(spec(installed), tmp_path)
    (package / "__init__.py").write_text("__path__ = ['elsewhere']\n")
    assert not check_entrypoint(spec("pk.nothere:main"), tmp_path)


@pytest.mark.parametrize("file", ["deep/train.py", "deep/train/__init__.py", "src/deep/train.py"])
def test_a_module_is_found_where_an_import_would_find_it(file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text("def other(): ...\n")
    with pytest.raises(SpecInvalid, match=f"{file} has no function 'main'"):
        check_entrypoint(spec("deep.train:main", env={"PYTHONPATH": "src:/nowhere"}), tmp_path)
    check_entrypoint(spec("installed.train:main"), tmp_path)


def test_validate_and_submit_refuse_before_anything_is_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("def train(session): ...\n")
    file = tmp_path / "job.yaml"
    file.write_text("name: a\nentrypoint: train:main\nworking_dir: code\n")
    api = FakeApi()
    for command in ("validate", "submit"):
        assert main([command, str(file)], connect=lambda: Client(URL, TOKEN, transport=api)) == 2
        assert "train.py has no function 'main'; it has train" in capsys.readouterr().err
    with pytest.raises(SpecInvalid):
        Client(URL, TOKEN, transport=api).submit(spec(), working_dir=tmp_path / "code")
    assert api.seen == []
    file.write_text("name: a\nentrypoint: train:train\nworking_dir: code\n")
    assert main(["validate", str(file)]) == 0
