"""A mode of synchronizing is one folder and one line of the registry; what other rooms ask of it are its rules."""

import ast
from pathlib import Path

import pytest

from ringleader.spec import JobSpec
from ringleader.spec.sync_keys import SyncKeys
from ringleader.train.modes import registry
from ringleader.train.modes.registry import MODES, mode_of


def test_each_folder_of_modes_is_registered() -> None:
    folders = {path.parent.name for path in Path(registry.__file__).parent.glob("*/loop.py")}
    assert set(MODES) == folders


SERVERS = {"inter_node": "parameter_server", "intra_node": "parameter_server"}


@pytest.mark.parametrize(
    ("sync", "mode"),
    [
        ("ring", "synchronous"),
        ("parameter_server", "synchronous"),
        ("local_sgd", "local_sgd"),
        ("token_ring", "token_ring"),
        (SERVERS | {"consistency": "async"}, "async_server"),
        (SERVERS | {"consistency": "ssp", "staleness": 0}, "async_server"),
        (SERVERS | {"backup_workers": 1}, "async_server"),
    ],
)
def test_a_job_has_the_mode_of_its_sync(sync: object, mode: str) -> None:
    spec = JobSpec.parse({"name": "a", "entrypoint": "m:f", "workers": {"min": 3, "max": 3}, "sync": sync})
    assert mode_of(spec.sync) is MODES[mode]


TRAIN = Path(registry.__file__).parent.parent
NUMBERS = {"outer_step", "round_steps", "same_bits", "token_staleness", "why_many_scales", "why_other_bits"}
"""What follows from the keys of `sync:` and is a number, a reason, or the promise of bits, and names no mode."""
FLAGS = {"consistency", "inter_node", "intra_node"} | {
    name for name, value in vars(SyncKeys).items() if isinstance(value, property) and name not in NUMBERS
}


def flags_read(path: Path) -> list[str]:
    """The lines of a file that read what names the mode in a job's `sync`."""
    return [
        f"{path.relative_to(TRAIN)}:{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in FLAGS
        and ast.unparse(node.value).rpartition(".")[2] == "sync"
    ]


def test_no_room_but_that_of_the_modes_asks_which_mode_a_job_has() -> None:
    outside = [path for path in TRAIN.rglob("*.py") if not path.is_relative_to(TRAIN / "modes")]
    assert len(outside) > 100
    found = [line for path in sorted(outside) for line in flags_read(path)]
    # It is passed on to the exchange, and the levels are named in a sentence to the user.
    allowed = {"generation/exchange_layout.py": 1, "unmet_requests.py": 6}
    for path, count in allowed.items():
        assert sum(line.startswith(f"{path}:") for line in found) == count, path
    assert [line for line in found if not line.startswith(tuple(f"{path}:" for path in allowed))] == []
