"""What goes on from slice to slice beside a loop's body is named: generators and iterators around the batches, objects
in dicts, and what a `with` block enters."""

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from cast import Cast
from programs import BATCH, EPOCHS, SHARDS, Program, rows, sgd
from torch import Tensor, nn, zeros
from torch.nn import functional as F

from ringleader.spec import JobSpec
from ringleader.train import Session

Batches = Iterable[tuple[Tensor, Tensor]]


def with_the_last(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    last = zeros(1, 6)
    for x, y in batches:
        yield x - 0.1 * last.mean(0), y
        last = x


class Centred:
    def __init__(self, batches: Batches) -> None:
        self.batches, self.mean = iter(batches), zeros(6)

    def __iter__(self) -> "Centred":
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        x, y = next(self.batches)
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean, y


class Recent:
    def __init__(self) -> None:
        self.values: deque[float] = deque(maxlen=4)

    def __call__(self, value: float) -> float:
        self.values.append(value)
        return sum(self.values) / len(self.values)


class Entered:
    def __init__(self) -> None:
        self.times = 0

    def __enter__(self) -> float:
        self.times += 1
        return 1.0 / (1.0 + 0.1 * self.times)

    def __exit__(self, *_: object) -> None: ...


def made(session: Session) -> nn.Module:
    net = session.model(nn.Linear(6, 3))
    sgd(session, net)
    return net


def generator(session: Session) -> None:
    net = made(session)
    for _ in range(EPOCHS):
        for x, y in with_the_last(session.batches(rows())):
            session.step(F.cross_entropy(net(x), y))


def iterator(session: Session) -> None:
    net = made(session)
    for _ in range(EPOCHS):
        for x, y in Centred(session.batches(rows())):
            session.step(F.cross_entropy(net(x), y))


def entry(session: Session) -> None:
    net, tools = made(session), {"recent": Recent()}
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            loss = F.cross_entropy(net(x), y)
            session.step(loss * (1.0 + tools["recent"](loss.item())))


def block(session: Session) -> None:
    net, scaling = made(session), Entered()
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            with scaling as scale:
                session.step(F.cross_entropy(net(x), y) * scale)


@pytest.mark.parametrize(
    ("program", "variable"),
    [
        (generator, "last"),
        (iterator, "Centred().mean"),
        (entry, "tools['recent'].values"),
        (block, "scaling.times"),
    ],
)
def test_what_goes_on_beside_a_body_is_named(program: Program, variable: str, tmp_path: Path) -> None:
    job = {"name": "around", "entrypoint": "m:f", "workers": {"min": 2, "max": 2}, "sync": "ring"}
    spec = JobSpec.parse({**job, "batch": {"global_size": BATCH, "logical_shards": SHARDS}})
    play = Cast(spec, program, artifacts=tmp_path).play()
    assert {each["variable"] for each in play.reported("program.differs")} == {variable}, play.message
    assert not any(end.reproducible for end in play.finished.values())
