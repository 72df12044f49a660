"""Whatever keys of `sync:` meet: a refusal names one, its value and what is allowed, and taking it away helps."""

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, get_args

import pytest

from ringleader.errors import SpecInvalid
from ringleader.spec import JobSpec
from ringleader.spec.sync import Sync
from ringleader.spec.sync_keys import Architecture

VALUES: dict[str, tuple[Any, ...]] = {
    "algorithm": ("auto", "direct", "ring", "native"),
    "reproducible": (True, False),
    "codec": ("none", "topk"),
    "servers": (1, 2),
    "server_backups": (0, 1),
    "consistency": ("sync", "ssp", "async"),
    "backup_workers": (0, 1),
    "inner_steps": (4,),
    "outer": ("nesterov",),
    "tokens": (1, 4),
    "staleness": (0, 3),
}
LEVELS = [*product(get_args(Architecture), repeat=2)]


def test_all_keys_are_tried() -> None:
    assert {"inter_node", "intra_node", *VALUES} == set(Sync.model_fields)


def refused(sync: dict[str, Any]) -> dict[str, Any] | None:
    """The first finding of a job file; None where it is accepted."""
    try:
        JobSpec.parse({"name": "any", "entrypoint": "any:any", "workers": {"min": 2, "max": 4}, "sync": sync})
    except SpecInvalid as error:
        return error.errors[0]
    return None


def files(inter: str, intra: str) -> Iterator[dict[str, Any]]:
    """Up to two keys beside the levels."""
    for count in range(3):
        for keys in combinations(VALUES, count):
            for values in product(*(VALUES[key] for key in keys)):
                yield {"inter_node": inter, "intra_node": intra, **dict(zip(keys, values, strict=True))}


@pytest.mark.parametrize(("inter", "intra"), LEVELS)
def test_a_refusal_says_what_is_wrong_and_who_leaves_that_out_gets_on(inter: str, intra: str) -> None:
    for sync in files(inter, intra):
        left = dict(sync)
        while (finding := refused(left)) is not None:
            key = finding["pointer"].removeprefix("/sync/")
            assert key in left, (left, finding)
            assert finding["value"] == left.pop(key), (sync, finding)
            assert finding["message"].endswith(f"; allowed: {finding['allowed']}"), (sync, finding)
