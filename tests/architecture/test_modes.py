"""A mode of synchronizing is one folder and one line of the registry."""

from pathlib import Path

import pytest

from ringleader.spec import JobSpec
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
