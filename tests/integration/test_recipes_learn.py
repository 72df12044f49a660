"""The recipes of further kinds learn what they are for, in one process and at sizes of seconds."""

from importlib import import_module
from pathlib import Path

import pytest
import torch

import ringleader_jobs
from ringleader.spec import JobSpec
from ringleader.train.local import RecordedOutput, run_local
from ringleader.train.run import WorkerResult
from ringleader_jobs.detector import NOTHING, Canvases, overlap
from ringleader_jobs.recommender import Ratings
from ringleader_jobs.speech import MOST, SOUNDS, understood

JOBS = Path(ringleader_jobs.__file__).parent
SHAKESPEARE = Path(__file__).parents[2].parent / "shared/data/tinyshakespeare.txt"


def trained(name: str, place: Path, **params: object) -> tuple[WorkerResult, RecordedOutput]:
    """The recipe by its job file, with other params."""
    torch.set_num_threads(1)
    spec = JobSpec.load(JOBS / f"{name}.yaml")
    spec = spec.model_copy(update={"params": {**spec.params, **params}})
    return run_local(spec, import_module(f"ringleader_jobs.{name}").train, place)


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="../shared/data/tinyshakespeare.txt is not here")
def test_the_language_recipe_learns_more_than_which_bytes_are_frequent(tmp_path: Path) -> None:
    text = SHAKESPEARE.read_bytes()[:200_000]
    (tmp_path / "text.txt").write_bytes(text)
    finished, told = trained("language", tmp_path, text=str(tmp_path / "text.txt"), width=32, length=64)
    shares = torch.bincount(torch.tensor(list(text))) / len(text)
    alone = float(-(shares * shares.clamp(min=1e-9).log()).sum())
    assert alone > 3.2
    scores = [values["test_loss"] for values in told.values.values() if "test_loss" in values]
    assert len(scores) == finished.steps // 50 >= 2
    assert min(scores) < alone - 0.6


def test_the_recommender_recipe_learns_tastes_and_the_best_epoch_is_kept(tmp_path: Path) -> None:
    """Between a guess, 0.69, and who knows all traits."""
    sizes = {"users": 200, "items": 100, "ratings": 20_000, "epochs": 4}
    _, told = trained("recommender", tmp_path, **sizes)
    losses = [values["test_loss"] for values in told.values.values() if "test_loss" in values]
    assert len(losses) == 4
    assert Ratings(200, 100, 2000, train=False).least_loss < min(losses) < 0.64


def test_the_speech_recipe_understands(tmp_path: Path) -> None:
    finished, _ = trained("speech", tmp_path, rows=1500, width=32)
    assert finished.scores["understood"] > 0.5


def test_understood_takes_the_sounds_in_their_order_and_nothing_else() -> None:
    said = torch.full((4, 12, SOUNDS + 1), -9.0)
    spoken = [
        [1, 1, 0, 2, 2, 3, 0, 0, 0, 0, 0, 0],  # 1 2 3
        [1, 0, 1, 2, 0, 3, 0, 0, 0, 0, 0, 0],  # 1 1 2 3
        [3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [1, 2, 3, 1, 2, 3, 1, 2, 3, 0, 0, 0],  # more than an utterance has
    ]
    for row, frames in enumerate(spoken):
        said[row, torch.arange(12), torch.tensor(frames)] = 0.0
    sounds = torch.zeros(4, MOST, dtype=torch.long)
    sounds[:, :3] = torch.tensor([1, 2, 3])
    assert understood(said, {"sounds": sounds}).tolist() == [True, False, False, False]


def test_the_detector_recipe_begins_to_find_digits(tmp_path: Path) -> None:
    finished, _ = trained("detector", tmp_path, rows=800, epochs=10)
    assert finished.scores["found"] > 0.1
    assert finished.scores["false_alarms"] < 1.0


def test_canvases_hold_what_their_cells_say() -> None:
    held_out = Canvases(train=False, rows=50)
    for row in range(50):
        canvas = held_out[row]
        there = canvas["kinds"] != NOTHING
        assert 1 <= int(there.sum()) <= 4
        assert torch.equal(canvas["image"], held_out[row]["image"])  # the same at each read
        boxes = canvas["boxes"][:, there].T
        assert bool(((boxes >= 0) & (boxes <= 1)).all())
        pairs = overlap(boxes[:, None].expand(-1, len(boxes), -1).flatten(0, 1), boxes.repeat(len(boxes), 1))
        assert torch.allclose(pairs.view(len(boxes), -1), torch.eye(len(boxes)))  # no digit hides another
