"""Every way of keeping workers in step that a job file can ask for learns what the ring learns."""

from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from forks import processes
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LinearLR

from ringleader.bench.exchange.nodes import NODES, WORKERS, pretended
from ringleader.bench.processes import members
from ringleader.bench.training.modes import MODES, REFERENCE, ModeCase
from ringleader.comm.codecs import NAMES
from ringleader.errors import SpecInvalid
from ringleader.exchange.coded_sums import is_coded
from ringleader.exchange.registry import ARCHITECTURES
from ringleader.spec import JobSpec
from ringleader.spec.sync import Sync
from ringleader.spec.sync_keys import Architecture, Consistency
from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader_jobs.digits import Digits

EPOCHS, RATE = 12, 0.1
POINT = 0.01
TIMING = 0.04
"""For modes whose result depends on who is where when: on busy cores eight runs of servers over token rings gave 342 to
350 of 360 images (a standard deviation of 0.8 points) where the ring always gives 347."""
HIDDEN = 256
"""As many as make the first matrix one that is coded: smaller ones go as they are."""

CONFORM_ELSEWHERE = {"algorithm"}
"""Which sums are added how is checked for every schedule and changes no result but its last bits."""


def train(session: Session) -> None:
    """A dense network on real digits, with a learning rate that falls to the end, as the coarse codecs need it."""
    rows, epochs = Digits(train=True), session.params["epochs"]
    net = session.model(dense())
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=session.params["lr"], momentum=0.9))
    session.scheduler(LinearLR(optimizer, 1.0, 0.02, session.total_steps(rows, epochs=epochs)))
    for _ in range(epochs):
        for batch in session.batches(rows):
            session.step(F.cross_entropy(net(batch["image"]), batch["label"]))
    session.evaluate(
        Digits(train=False), lambda b: {"accuracy": (net(b["image"]).argmax(1) == b["label"]).float()}
    )


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


def asked(mode: ModeCase) -> JobSpec:
    """A worker on each of two nodes that share no memory; where weights travel as tokens two, because what concurrent
    moves do to each other grows with the workers."""
    workers = WORKERS if mode.family == "tokens" else NODES
    return JobSpec.parse(
        {
            "name": mode.name,
            "entrypoint": "test_convergence:train",
            "params": {"epochs": EPOCHS, "lr": RATE * mode.rate},
            "workers": {"min": workers, "max": workers},
            "sync": dict(mode.sync),
        }
    )


def choices() -> dict[str, set[Any]]:
    """What each key of the job file's `sync:` that is one of some words may be."""
    return {
        name: {word for part in (field.annotation, *get_args(field.annotation)) for word in words(part)}
        for name, field in Sync.model_fields.items()
        if name not in CONFORM_ELSEWHERE
    }


def words(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def test_every_word_that_a_job_file_admits_is_part_of_some_mode() -> None:
    defaults = Sync().model_dump()
    for key, admitted in choices().items():
        assert admitted <= {mode.sync.get(key, defaults[key]) for mode in MODES}, key


def combination(sync: Sync) -> tuple[str, str, str]:
    return sync.inter_node, sync.intra_node, sync.consistency or "sync"


def admitted() -> set[tuple[str, str, str]]:
    """What a job file may ask for between nodes, inside them, and of its servers."""
    levels, consistencies = get_args(Architecture), (None, *get_args(Consistency))
    found = set()
    for inter, intra, consistency in product(levels, levels, consistencies):
        sync = {"inter_node": inter, "intra_node": intra, "consistency": consistency}
        with suppress(SpecInvalid):
            spec = JobSpec.parse({"name": "any", "entrypoint": "any:train", "sync": sync})
            found.add(combination(spec.sync))
    return found


def test_every_combination_of_levels_and_consistency_that_a_job_file_admits_is_a_mode() -> None:
    measured = {combination(asked(mode).sync) for mode in MODES}
    assert len(admitted()) > len(get_args(Architecture))
    assert admitted() == measured
    assert {asked(mode).sync.architecture for mode in MODES} == set(ARCHITECTURES)


def test_modes_have_names_of_their_own() -> None:
    assert len({mode.name for mode in MODES}) == len({mode.label for mode in MODES}) == len(MODES)


@pytest.mark.parametrize("shards", [1, 4])
def test_a_token_ring_of_one_worker_reaches_it_too(tmp_path: Path, shards: int) -> None:
    tokens = next(mode for mode in MODES if mode.name == "token-ring")
    spec = asked(tokens).model_dump(mode="json")
    spec |= {"workers": {"min": 1, "max": 1}, "batch": {"logical_shards": shards}}
    finished, _ = run_local(spec, train, tmp_path)
    assert finished.scores["accuracy"] >= accuracy(REFERENCE.name) - POINT


@pytest.mark.parametrize("codec", NAMES)
def test_every_codec_codes_something_of_the_network(codec: str) -> None:
    assert any(is_coded(parameter, codec) for parameter in dense().parameters())


@pytest.fixture(scope="module", autouse=True)
def _forked() -> None:
    """Members come from a server that has loaded what they import."""
    processes()


@cache
def accuracy(mode_name: str) -> float:
    """On 360 held-out images; all workers report the same."""
    (mode,) = (mode for mode in MODES if mode.name == mode_name)
    ended = members.train(pretended("a test needs no links"), mode.name, asked(mode), train, deadline_s=240)
    (found,) = {worker.finished.scores["accuracy"] for worker in ended}
    assert {worker.finished.samples for worker in ended} == {EPOCHS * len(Digits(train=True))}
    return found


def test_all_train_at_the_learning_rate_of_the_ring_but_diloco() -> None:
    """Its outer step makes the mean move up to 0.7 / (1 - 0.9) = 7 times as long, by momentum: what fits the others is
    too much for it (see `ModeCase.rate`)."""
    slower = {mode.name: mode.rate for mode in MODES if mode.rate != REFERENCE.rate}
    assert slower == {"diloco": 0.25}
    assert {mode.name for mode in MODES if mode.sync.get("outer") == "nesterov"} == set(slower)


def tolerance(mode: ModeCase) -> float:
    sync = asked(mode).sync
    return TIMING if sync.leased or sync.circulates else POINT


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_every_mode_at_its_learning_rate_reaches_the_accuracy_of_the_ring(mode: ModeCase) -> None:
    """At the ring's, but for DiLoCo: within a point, and within four where the result depends on timing."""
    assert accuracy(mode.name) >= accuracy(REFERENCE.name) - tolerance(mode)


def test_the_wider_tolerance_is_for_modes_that_promise_no_bits() -> None:
    assert {mode.name for mode in MODES if tolerance(mode) == TIMING} == {
        *("ps-ssp", "ps-async", "ps-backup"),
        *("token-ring", "hybrid-tokens-ring", "hybrid-tokens-ps", "hybrid-ps-tokens"),
    }
