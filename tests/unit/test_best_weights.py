"""session.best keeps the best weights as committed state."""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_leaving import RING, job, made, rows
from torch.nn import functional as F

from ringleader.errors import StepMisuse
from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.state.fingerprints import weights_sha256


def scored(scores: list[float], seen: list[Any], *, lowest: bool = False) -> Any:
    def train(session: Session) -> None:
        net = made(session)
        for score in scores:
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(net(x), y))
            seen.append((session.best(net, score, lowest=lowest), weights_sha256(net)))
        session.load_best(net)
        seen.append(weights_sha256(net))

    return train


@pytest.mark.parametrize(("lowest", "best"), [(False, 1), (True, 2)])
def test_the_weights_of_the_best_score_come_back(lowest: bool, best: int, tmp_path: Path) -> None:
    seen: list[Any] = []
    finished, _ = run_local(job(RING), scored([0.5, 0.9, 0.1], seen, lowest=lowest), tmp_path)
    assert [better for better, _ in seen[:3]] == [True, not lowest, lowest]
    assert seen[3] == seen[best][1] == finished.digest


def test_no_boundary_grows_by_what_is_kept(tmp_path: Path) -> None:
    """What `best` reads is not recorded again for lines that run again."""
    recorded: list[int] = []

    def train(session: Session) -> None:
        net = made(session)
        for score in (0.1, 0.2):
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(net(x), y))
            session.best(net, score)
        recorded.extend(values[4] for values in session._member.sections.state()[1])

    run_local(job(RING), train, tmp_path)
    assert recorded == [0, 0]


def test_weights_that_nobody_kept_cannot_be_loaded(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        session.load_best(made(session))

    with pytest.raises(StepMisuse, match="no best weights"):
        run_local(job(RING), train, tmp_path)


def test_a_copy_of_the_kept_state_shares_its_tensors() -> None:
    import copy

    from ringleader.train.best_weights import BestWeights

    best = BestWeights()
    best.keep(torch.nn.Linear(2, 2))
    state = best.state_dict()
    assert copy.deepcopy(state)["weights"] is state["weights"]
