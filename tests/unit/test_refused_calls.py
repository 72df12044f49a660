"""Session calls that cannot be the same on every worker, or in the thread of the program, are refused in words."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.errors import RingleaderError
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local

SPEC = JobSpec.parse(
    {
        "name": "refused",
        "entrypoint": "refused:train",
        "workers": {"min": 1, "max": 2},
        "batch": {"global_size": 8, "logical_shards": 2},
        "checkpoint": {"every_steps": None},
    }
)
DATA = TensorDataset(torch.linspace(-1, 1, 48).view(16, 3), torch.arange(16) % 2)


def made(session: Session, **setting: Any) -> nn.Module:
    net = session.model(nn.Linear(3, 2))
    session.optimizer(torch.optim.SGD([{"params": net.parameters(), **setting}], lr=0.1))
    return net


def epoch(session: Session, net: nn.Module) -> None:
    for x, y in session.batches(DATA):
        session.step(F.cross_entropy(net(x), y))


def function_in_a_group(session: Session) -> None:
    epoch(session, made(session, rate=lambda number: 0.1 / (1 + number)))


def score_that_raises(session: Session) -> None:
    net = made(session)

    def score(batch: Any) -> Any:
        raise ValueError("a bad row")

    try:
        session.evaluate(DATA, score)
    except ValueError:
        epoch(session, net)


def loop_in_a_thread(session: Session) -> None:
    net, raised = made(session), list[BaseException]()

    def run() -> None:
        try:
            epoch(session, net)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="trains")
    thread.start()
    thread.join()
    raise raised[0]


def batches_ahead_by_a_thread(session: Session) -> None:
    net, batches = made(session), iter(session.batches(DATA))
    with ThreadPoolExecutor(1, thread_name_prefix="loads") as pool:
        x, y = pool.submit(next, batches).result()
        session.step(F.cross_entropy(net(x), y))


REFUSED = {
    function_in_a_group: "cannot be sent to another worker, nor saved: Can't pickle",
    score_that_raises: "left by an exception of its score that the program has caught (ValueError: a bad row)",
    loop_in_a_thread: "the session is used in the thread 'trains'",
    batches_ahead_by_a_thread: "the session is used in the thread 'loads_0'",
}


@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.__name__)
def test_what_cannot_be_carried_through_is_refused_in_words(
    program: Callable[[Session], None], tmp_path: Path
) -> None:
    with pytest.raises(RingleaderError) as refused:
        run_local(SPEC, program, tmp_path)
    assert REFUSED[program] in str(refused.value)
    assert "Traceback" not in str(refused.value)
