"""What a job asks of its exchange and does not get is said: in a play, and for devices that are not here."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cast import Cast
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import ringleader
from ringleader.spec import JobSpec
from ringleader.train.modes.mode_rules import ModeRules
from ringleader.train.modes.registry import mode_of
from ringleader.train.unmet_requests import unmet

torch.set_num_threads(1)
SERVERS_OVER_RINGS = {"inter_node": "parameter_server", "intra_node": "ring"}


def spec(**keys: Any) -> JobSpec:
    source = {
        "name": "unmet",
        "entrypoint": "m:f",
        "workers": {"min": 2, "max": 2},
        "batch": {"global_size": 8},
    }
    return JobSpec.parse(source | keys)


def rules_of(job: JobSpec) -> ModeRules:
    return mode_of(job.sync).rules(job.sync)


def train(session: ringleader.Session) -> None:
    width = int(session.params.get("width", 4))
    net = session.model(nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2)))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
    x = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        for rows, labels in session.batches(TensorDataset(x, (x.sum(dim=1) > 0).long())):
            session.step(F.cross_entropy(net(rows), labels))


@pytest.mark.parametrize(
    ("keys", "nodes", "about"),
    [
        ({"sync": {"codec": "int8"}}, {}, ["codec"]),
        ({"sync": {"codec": "int8"}, "params": {"width": 8192}}, {}, []),
        ({"sync": SERVERS_OVER_RINGS}, {}, ["levels"]),
        ({"sync": SERVERS_OVER_RINGS}, {"w1": 1}, []),
        ({"sync": "ring"}, {}, []),
    ],
    ids=["nothing to code", "large layers", "one node", "two nodes", "nothing asked"],
)
def test_what_a_generation_has_no_use_for_is_one_event(
    keys: dict[str, Any], nodes: dict[str, int], about: list[str], tmp_path: Path
) -> None:
    play = Cast(spec(**keys), train, artifacts=tmp_path, nodes=nodes).play()
    assert play.outcome == "succeeded", play.message
    told = play.reported("warning")
    assert [warning["about"] for warning in told] == about
    assert all(warning["message"] and warning["hint"] for warning in told)


@pytest.mark.parametrize(
    ("sync", "apart", "says"),
    [
        ("ring", True, ""),
        ("local_sgd", True, ""),
        ({"algorithm": "native"}, True, ""),
        ("ring", False, "not every member has its own GPU"),
        ("parameter_server", True, "with sync: parameter_server"),
        ("token_ring", True, "with sync: token_ring"),
        ({"algorithm": "halving_doubling"}, True, "with sync.algorithm: halving_doubling"),
    ],
    ids=str,
)
def test_devices_whose_gradients_go_through_host_memory_are_said(sync: Any, apart: bool, says: str) -> None:
    transport: Any = SimpleNamespace(shared=False, groups=(), together=object() if apart else None)
    job = spec(workers={"min": 2, "max": 2, "gpus": 1}, sync=sync)
    found = list(unmet(job.sync, rules_of(job), [], transport, on_devices=True))
    assert [about for about, _, _ in found] == (["host_memory"] if says else [])
    assert all(says in message for _, message, _ in found)
    on_cpus = list(unmet(job.sync, rules_of(job), [], transport, on_devices=False))
    assert not on_cpus, "on the CPU there is no other memory"


def test_levels_that_members_with_devices_cannot_tell_apart_are_said() -> None:
    transport: Any = SimpleNamespace(shared=False, groups=(), together=None)
    job = spec(workers={"min": 2, "max": 2, "gpus": 1}, sync=SERVERS_OVER_RINGS)
    found = [about for about, _, _ in unmet(job.sync, rules_of(job), [], transport, on_devices=True)]
    assert found == ["levels", "host_memory"]
