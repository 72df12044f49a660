"""The REST contract that is committed is the one that the code serves."""

import json
import sys
from pathlib import Path

import pytest
from control_plane import stage

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
