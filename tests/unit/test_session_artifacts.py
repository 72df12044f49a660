"""Artifacts that a training function saves: those of committed steps, each once, whoever is lost or comes later."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faults import FaultPlan
from PIL import Image
from play import Play
from safetensors.torch import load
from test_leaving import COPIES, LEASED, RING, ROUNDS, SERVERS, job, made, rows, worker
from test_steps import hits
from threaded_cast import ThreadedCast
from torch import nn
from torch.nn import functional as F
from undisturbed import undisturbed

from ringleader.errors import StepMisuse
from ringleader.train import Session
from ringleader.train.generation.settled_artifacts import SettledArtifacts
from ringleader.train.local import RecordedOutput, run_local
from ringleader.train.session_base.encodings import histogram_encoding, image_encoding, object_encoding
from ringleader.wire.artifacts import MOST_AT_ONCE, MOST_BYTES, SavedArtifact

torch.set_num_threads(1)
MODES = {"ring": RING, "servers": SERVERS, "copies": COPIES, "local_sgd": ROUNDS}


def saving(session: Session) -> None:
    """Saves at the top, behind steps, between two loops, and at the end: what it saves depends on the weights."""
    net, data = made(session), rows()
    session.save("asked", dict(session.params))
    for _ in range(2):
        for step in session.steps(data):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            if session.global_step % 4 == 0:
                session.log_histogram("weights", net[0].weight)
        session.save("net", net.state_dict())
        session.log_text("score", f"{hits(session, net, data)}")


def by_loops(session: Session) -> None:
    net, data = made(session), rows()
    for _ in range(3):
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))
        session.save("net", net.state_dict())
        hits(session, net, data)
        session.log_text("score", "behind an evaluation")


def stored(*plays: Play) -> dict[str, bytes]:
    """The artifacts that reached the supervisor, each content once."""
    found: dict[str, bytes] = {}
    for artifact in [each for play in plays for each in play.artifacts]:
        assert found.setdefault(artifact.file, artifact.content) == artifact.content
    return found


def alone(program: Callable[[Session], None], sync: dict[str, Any]) -> dict[str, bytes]:
    _, sink = undisturbed(job(sync), program)
    return {file: artifact.content for file, artifact in sink.artifacts.items()}


@pytest.mark.parametrize(
    ("at", "phase"),
    [(5, "committed"), (6, "exchange"), (6, "evaluate"), (7, "committed"), (12, "evaluate"), (12, "finish")],
)
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_a_kill_costs_no_artifact(
    sync: dict[str, Any], at: int, victim: int, phase: str, tmp_path: Path
) -> None:
    faults = FaultPlan().kill(worker(sync, victim), at_step=at, phase=phase)
    play = ThreadedCast(job(sync), saving, faults, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert stored(play) == alone(saving, sync)


def test_who_came_in_alone_has_what_is_not_sent_yet(tmp_path: Path) -> None:
    """It joined behind an evaluation, and the member that had made the artifact dies before its next commit."""
    faults = FaultPlan().resize(at_step=6, workers_min=1, workers_max=2)
    faults = faults.linger("w0", since_step=6, for_generation=2).kill("w0", at_step=6, phase="exchange")
    play = ThreadedCast(job(RING, workers={"min": 1, "max": 1}), by_loops, faults, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert stored(play) == alone(by_loops, RING)


@pytest.mark.parametrize("at", [0, 6])
@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_who_joins_makes_none_again(sync: dict[str, Any], at: int, tmp_path: Path) -> None:
    faults = FaultPlan().resize(at_step=at, workers_min=1, workers_max=3)
    faults = faults.linger(worker(sync, 0), since_step=at, for_generation=2)
    spec = job(sync, workers={"min": 1, "max": 2})
    play = ThreadedCast(spec, saving, faults, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert stored(play) == alone(saving, sync)


@pytest.mark.parametrize("program", [saving, by_loops], ids=["steps", "loops"])
@pytest.mark.parametrize("at", [1, 6, 7])
@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_a_pause_loses_none(
    sync: dict[str, Any], at: int, program: Callable[[Session], None], tmp_path: Path
) -> None:
    saved, spec = str(tmp_path / "saved"), job(sync, checkpoint={"every_steps": 3})
    faults = FaultPlan().pause(at_step=at)
    for number in range(3):
        faults = faults.linger(worker(sync, number), since_step=at, for_generation=2)
    first = ThreadedCast(spec, program, faults, artifacts=tmp_path / "1", checkpoints=saved).play()
    plays = [first]
    if first.outcome == "paused":
        again = job(sync, checkpoint={"every_steps": 3}, workers={"min": 2, "max": 2})
        plays.append(
            ThreadedCast(again, program, artifacts=tmp_path / "2", checkpoints=saved, attempt=2).play()
        )
    assert plays[-1].outcome == "succeeded", (plays[-1].reason, plays[-1].message)
    assert stored(*plays) == alone(program, sync)


@pytest.mark.parametrize("at", [6, 7, 12])
@pytest.mark.parametrize("victim", ["w0", "w1"])
def test_leased_items_settle_artifacts_too(at: int, victim: str, tmp_path: Path) -> None:
    faults = FaultPlan().kill(victim, at_step=at)
    play = ThreadedCast(job(LEASED), by_loops, faults, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert set(stored(play)) == {f"{n}-{s:08d}.{e}" for s in (6, 12, 18) for n, e in FILES}


FILES = [("net", "safetensors"), ("score", "txt")]


def test_an_artifact_is_of_the_weights_of_its_step(tmp_path: Path) -> None:
    made_at: dict[int, Any] = {}

    def train(session: Session) -> None:
        net, data = made(session), rows()
        for step in session.steps(data):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            session.save("net", net.state_dict())
            made_at[session.global_step] = {name: each.clone() for name, each in net.state_dict().items()}

    _, sink = run_local(job(RING), train, tmp_path)
    files = {file: artifact.content for file, artifact in sink.artifacts.items()}
    for step, state in made_at.items():
        held = load(files[f"net-{step:08d}.safetensors"])
        assert held.keys() == state.keys()
        assert all(torch.equal(held[name], state[name]) for name in state)
    assert (tmp_path / "net-00000006.safetensors").read_bytes() == files["net-00000006.safetensors"]


def refused(program: Callable[[Session, nn.Module], None], place: Path) -> str:
    def train(session: Session) -> None:
        program(session, made(session))

    with pytest.raises(StepMisuse) as caught:
        run_local(job(RING), train, place)
    return str(caught.value)


def in_a_body(session: Session, net: nn.Module) -> None:
    for x, y in session.batches(rows()):
        session.log_text("a", "b")
        session.step(F.cross_entropy(net(x), y))


def between_slices(session: Session, net: nn.Module) -> None:
    for step in session.steps(rows()):
        for x, y in step:
            session.step(F.cross_entropy(net(x), y))
            session.log_text("a", "b")


def twice(session: Session, _: nn.Module) -> None:
    session.log_text("a", "b")
    session.log_text("a", "b")
    session.log_text("a", "c")


def too_much(session: Session, _: nn.Module) -> None:
    for number in range(MOST_AT_ONCE // MOST_BYTES + 1):
        session.log_text(f"a{number}", "b" * MOST_BYTES)


def saves(name: str, value: Any) -> Callable[[Session, nn.Module], None]:
    return lambda session, _: session.save(name, value)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (in_a_body, "session.log_text was called inside a loop over session.batches"),
        (between_slices, "session.log_text was called between two slices of a step"),
        (twice, "two different artifacts were saved as 'a' at step 0"),
        (too_much, "larger than 64 MiB together"),
        (saves("../a", 1), "session.save got the name '../a'"),
        (saves(".a", 1), "session.save got the name '.a'"),
        (saves("a/b", 1), "session.save got the name 'a/b'"),
        (saves("a" * 101, 1), "session.save got the name"),
        (
            saves("a", nn.Linear(1, 1)),
            "session.save got a Linear, which a file without pickled code cannot hold",
        ),
        (saves("a", {"f": print}), "session.save got a builtin_function_or_method"),
        (saves("a", {(1, 2): 3}), "session.save got a dict with the key (1, 2)"),
        (saves("a", np.array(["x"])), "session.save got an array of <U1"),
        (saves("a", torch.zeros(2, 2).to_sparse()), "session.save got a tensor of layout torch.sparse_coo"),
        (saves("a", torch.zeros(MOST_BYTES // 4)), "an artifact has at most 16777216"),
        (lambda session, _: session.log_image("a", torch.zeros(2, 3)[None, None]), "the shape (1, 1, 2, 3)"),
        (lambda session, _: session.log_image("a", torch.full((2, 3), 2.0)), "not all from 0 to 1"),
        (lambda session, _: session.log_image("a", torch.zeros(2, 3, dtype=torch.int64)), "pixels of int64"),
        (lambda session, _: session.log_image("a", "cat.png"), "session.log_image got a str"),
        (lambda session, _: session.log_image("a", torch.zeros(2, 3), channels=3), "got channels=3"),
        (lambda session, _: session.log_histogram("a", [1, 2]), "session.log_histogram got a list"),
        (lambda session, _: session.log_histogram("a", torch.zeros(3), bins=0), "bins=0"),
        (lambda session, _: session.log_text("a", 3), "session.log_text got a int"),
    ],
)
def test_what_cannot_be_saved_is_refused_in_words(program: Any, told: str, tmp_path: Path) -> None:
    assert told in refused(program, tmp_path)


def test_objects_are_saved_without_pickled_code() -> None:
    suffix, content = object_encoding({"a": torch.arange(6).reshape(2, 3).T, "b": np.float32(2)})
    assert suffix == "safetensors"
    assert torch.equal(load(content)["a"], torch.arange(6).reshape(2, 3).T)
    suffix, content = object_encoding({"rates": [0.1, 1e-30], "name": "é", "none": None})
    assert (suffix, json.loads(content)) == ("json", {"rates": [0.1, 1e-30], "name": "é", "none": None})
    suffix, content = object_encoding({"state": {0: torch.ones(2)}, "pair": (1, "x"), "raw": b"\0"})
    assert suffix == "pt"
    held = torch.load(io.BytesIO(content), weights_only=True)
    assert (held["pair"], held["raw"]) == ((1, "x"), b"\0")
    assert torch.equal(held["state"][0], torch.ones(2))


def test_a_saved_view_holds_its_own_elements_alone() -> None:
    _, content = object_encoding({"state": {0: torch.zeros(1_000_000)[:2]}})
    assert len(content) < 10_000


@pytest.mark.parametrize(
    ("image", "mode"),
    [
        (torch.arange(6, dtype=torch.uint8).reshape(2, 3), "L"),
        (torch.arange(18, dtype=torch.uint8).reshape(3, 2, 3), "RGB"),
        (np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "RGBA"),
        (torch.linspace(0, 1, 6).reshape(1, 2, 3), "L"),
        (Image.new("RGB", (3, 2)), "RGB"),
    ],
)
def test_images_are_png(image: Any, mode: str) -> None:
    suffix, content = image_encoding(image)
    picture = Image.open(io.BytesIO(content))
    assert (suffix, picture.format, picture.mode, picture.size) == ("png", "PNG", mode, (3, 2))


@pytest.mark.parametrize(
    ("image", "channels"),
    [
        (torch.arange(12, dtype=torch.uint8).reshape(1, 4, 3), "last"),
        (torch.arange(12, dtype=torch.uint8).reshape(3, 1, 4), "first"),
        (np.arange(12, dtype=np.uint8).reshape(3, 1, 4), "first"),
        (np.arange(12, dtype=np.uint8).reshape(1, 4, 3), "last"),
    ],
)
def test_an_image_has_its_channels_where_it_is_said(image: Any, channels: str) -> None:
    picture = Image.open(io.BytesIO(image_encoding(image, channels)[1]))
    assert (picture.mode, picture.size) == ("RGB", (4, 1))


def drawing(session: Session) -> None:
    net, data = made(session), rows()
    for x, y in session.batches(data):
        session.step(F.cross_entropy(net(x), y))
    session.log_image("plain", torch.zeros(3, 8, 8))
    session.log_image("said", torch.zeros(3, 8, 3), channels="first")
    session.log_image("unsaid", torch.zeros(3, 8, 3))


def test_where_the_channels_are_is_said_of_an_image_that_does_not_show_it(tmp_path: Path) -> None:
    _, told = run_local(job(RING), drawing, tmp_path)
    warnings = [
        data["message"] for kind, data in told.events if kind == "warning" and data["about"] == "image"
    ]
    assert len(warnings) == 1
    assert "'unsaid' of shape (3, 8, 3)" in warnings[0]
    assert "it takes the first" in warnings[0]


def test_a_histogram_counts_what_is_finite() -> None:
    _, content = histogram_encoding(torch.tensor([0.0, 1.0, 1.0, float("nan")]), 2)
    told = json.loads(content)
    assert (told["counts"], told["edges"]) == ([1, 2], [0.0, 0.5, 1.0])
    assert (told["count"], told["not_finite"], told["mean"]) == (3, 1, pytest.approx(2 / 3))
    assert json.loads(histogram_encoding(np.zeros(0), 2)[1])["counts"] == []


class Acknowledging(RecordedOutput):
    """A sink whose supervisor has stored the records of these steps."""

    stored = 0

    def recorded_step(self) -> int:
        return self.stored


def test_stored_artifacts_are_forgotten() -> None:
    sink = Acknowledging()
    artifacts = SettledArtifacts(sink)
    for step in range(1, 5):
        artifacts.add(SavedArtifact("a", step, "text", "txt", b""))
        artifacts.settle()
    sink.stored = 4
    artifacts.settle()
    assert [each[1] for each in artifacts.state()[1]] == [3, 4]
