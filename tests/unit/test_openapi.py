"""The REST contract that is committed is the one that the code serves."""

import ast
import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from control_plane import stage

import ringleader_api
from ringleader.checkpoint.manifest import CheckpointUnreadable
from ringleader.errors import PackageRefused, SpecInvalid
from ringleader.parsing import parse
from ringleader_api.hints import HINTS
from ringleader_api.problems import Refused

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def committed() -> str:
    return (ROOT / "api" / "openapi.json").read_text(encoding="utf-8")


def test_the_committed_contract_is_what_the_api_serves(committed: str, tmp_path: Path) -> None:
    here = stage(tmp_path)
    served = here.client.get("/api/v1/openapi.json").json()
    assert served == json.loads(committed), "python scripts/openapi.py writes it anew"


def test_the_script_writes_what_is_committed(committed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import openapi

    try:
        assert openapi.contract() == committed
    finally:
        del sys.modules["openapi"]


def test_every_operation_says_what_it_answers_and_that_it_may_refuse(committed: str) -> None:
    document = json.loads(committed)
    open_to_all = {("/healthz", "get"), ("/api/v1/login", "post"), ("/readyz", "get"), ("/metrics", "get")}
    operations = {
        (path, method): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert len(operations) > 30
    for key, operation in operations.items():
        assert operation["description"], key
        if key not in open_to_all:
            assert {"401", "403", "429"} <= operation["responses"].keys(), key


def _classes(root: type[Refused]) -> Iterator[type[Refused]]:
    yield root
    for below in root.__subclasses__():
        yield from _classes(below)


def _written() -> Iterator[str]:
    """Every code that is given to a refusal where it is raised, or to `problem`."""
    for path in (ROOT / "api" / "ringleader_api").rglob("*.py"):
        for call in ast.walk(parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") != "Why":
                values = [word.value for word in call.keywords if word.arg == "code"]
                yield from (v.value for v in values if isinstance(v, ast.Constant) and v.value)


def test_every_code_of_a_problem_comes_with_what_to_do() -> None:
    for module in pkgutil.walk_packages(ringleader_api.__path__, "ringleader_api."):
        if "migrations" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {kind.code for kind in (*_classes(Refused), SpecInvalid, PackageRefused, CheckpointUnreadable)}
    plain = {HTTPStatus(status).phrase.lower().replace(" ", "_") for status in (400, 404, 405, 503)}
    asked = ours | plain | set(_written()) | {"infeasible", "platform_error", "too_large", "bad_range"}
    assert len(asked) > 40
    assert asked - HINTS.keys() == set()
    assert all(hint.endswith(".") for hint in HINTS.values())
