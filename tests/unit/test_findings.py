"""What is wrong with a job file is said of the key that its author wrote, in words that say what to write there."""

from pathlib import Path
from typing import Any

import pytest

import ringleader
from ringleader.checkpoint.manifest import BeginningUnreadable
from ringleader.checkpoint.snapshot import checkpoint_at
from ringleader.checkpoint.weights_file import weights_at
from ringleader.errors import SpecInvalid
from ringleader.spec import JobSpec

GOOD: dict[str, Any] = {"name": "a", "entrypoint": "m:f"}
SERVERS = {"inter_node": "parameter_server"}
JOB = "job_" + "0" * 26


def found(**keys: Any) -> list[tuple[str, str]]:
    with pytest.raises(SpecInvalid) as refused:
        JobSpec.parse(GOOD | keys)
    return [(finding["pointer"], finding["message"]) for finding in refused.value.errors]


def test_init_from_says_what_it_takes() -> None:
    ((pointer, message),) = found(init_from="spiral")
    assert pointer == "/init_from"
    assert message.startswith(
        "'spiral' is not a job id, an absolute path or a URI (init_from takes no job names);"
    )
    assert "allowed: the id of a job (job_ and 26" in message


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"env": {"a b": "1"}},
            ("/env/a b", "'a b' is not a valid variable name; allowed: letters, digits and '_'"),
        ),
        ({"secrets": {"A": "a b"}}, ("/secrets/A", "'a b' is not a valid name; allowed: letters, digits,")),
        (
            {"labels": {"a": "1\n2"}},
            ("/labels/a", r"'1\n2' has control characters; allowed: a single line of text"),
        ),
        ({"name": "a b"}, ("/name", "'a b' is not a valid name; allowed:")),
    ],
)
def test_no_pattern_is_told(keys: dict[str, Any], told: tuple[str, str]) -> None:
    ((pointer, message),) = found(**keys)
    assert pointer == told[0]
    assert message.startswith(told[1])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"servers": {"count": 1}, "sync": "ring"},
            "servers is not used by ring; allowed: leave it out, or parameter",
        ),
        (
            {"servers": {"count": 65}, "sync": "parameter_server"},
            "Input should be less than or equal to 64 (got 65)",
        ),
    ],
)
def test_what_is_wrong_with_the_count_of_servers_is_said_where_it_stands(
    keys: dict[str, Any], message: str
) -> None:
    ((pointer, told),) = found(**keys)
    assert pointer == "/servers/count"
    assert told.startswith(message)


@pytest.mark.parametrize(
    ("sync", "message"),
    [
        (
            SERVERS | {"consistency": "async"},
            "consistency is not used by parameter_server/ring, where intra_node is ring by default; allowed: leave it "
            "out, or intra_node: parameter_server",
        ),
        (
            {"intra_node": "parameter_server", "inter_node": "ring", "staleness": 1},
            "staleness is not used by ring/parameter_server, where inter_node is ring; allowed: leave it out, or "
            "inter_node: parameter_server, or token_ring",
        ),
    ],
)
def test_a_key_of_servers_beside_a_ring_says_which_level_to_change(
    sync: dict[str, Any], message: str
) -> None:
    assert found(sync=sync)[0][1] == message


@pytest.mark.parametrize("text", ["name: [a\n", "name: a\nname: b\n", "name: \x01\n"])
def test_an_error_of_yaml_names_the_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "spiral.yaml"
    path.write_text(text)
    with pytest.raises(SpecInvalid, match=f'in "{path}"'):
        JobSpec.load(path)


def test_a_local_session_says_that_it_knows_no_jobs() -> None:
    with (
        pytest.raises(
            SpecInvalid, match="/init_from: a local session cannot look up jobs; allowed: the path or URI"
        ),
        ringleader.local_session(GOOD | {"init_from": JOB}),
    ):
        raise AssertionError


@pytest.mark.parametrize("uri", ["absent.safetensors", "torn.safetensors", "step-000000000003-a1-g1"])
def test_who_cannot_begin_is_not_told_to_start_from_an_older_checkpoint(uri: str, tmp_path: Path) -> None:
    (tmp_path / "torn.safetensors").write_bytes(b"no weights at all")
    read = weights_at if uri.endswith(".safetensors") else checkpoint_at
    with pytest.raises(BeginningUnreadable, match=f"init_from {tmp_path}/{uri} cannot be used: ") as refused:
        read(f"{tmp_path}/{uri}")
    assert refused.value.hint.startswith("Give the path or URI of a weights file or a checkpoint")
