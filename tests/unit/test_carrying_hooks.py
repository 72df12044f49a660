"""What a hook carries from one call to the next is another one for each number of workers: it is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.program_text.carrying_hooks import carried_by
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("elsewhere")
Hook = Callable[..., Any]


def running_mean() -> Hook:
    stats = {"mean": torch.zeros(3)}

    def centred(module: nn.Module, _: Any, out: Tensor) -> Tensor:
        if module.training:
            stats["mean"] = 0.9 * stats["mean"] + 0.1 * out.detach().mean(0)
        return out - stats["mean"]

    return centred


def moved_in_place() -> Hook:
    mean = torch.zeros(3)

    def centred(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        mean.lerp_(out.detach().mean(0), 0.1)
        return out - mean

    return centred


def first_mean() -> Hook:
    means: dict[str, Tensor] = {}

    def centred(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        if "first" not in means:
            means["first"] = out.detach().mean(0)
        return out - means["first"]

    return centred


class Annealed:
    def __init__(self) -> None:
        self.calls = 0

    def hook(self, _: nn.Module, __: Any, out: Tensor) -> Tensor:
        self.calls += 1
        return out / (1 + 0.01 * self.calls)


def features() -> Hook:
    kept: dict[str, Tensor] = {}

    def keep(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        kept["newest"] = out.detach()
        return out + 0 * kept["newest"]

    return keep


def shown() -> Hook:
    norms: list[float] = []

    def keep(_: nn.Module, __: Any, out: Tensor) -> None:
        norms.append(float(out.detach().norm()))
        print(len(norms))

    return keep


def plain() -> Hook:
    return lambda _, __, out: out.clamp(-9, 9)


def mask() -> Hook:
    cache: dict[str, Tensor] = {}

    def masked(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        if "mask" not in cache:
            cache["mask"] = torch.ones(out.shape[1:], dtype=torch.float32, device=out.device)
        return out * cache["mask"]

    return masked


def scale() -> Hook:
    factor: float | None = None

    def scaled(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        nonlocal factor
        if factor is None:
            factor = out.shape[-1] ** -0.5
        return out * factor

    return scaled


def moved_as_another_name() -> Hook:
    cache: dict[str, Tensor] = {}

    def centred(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        if "mean" not in cache:
            cache["mean"] = torch.zeros(out.shape[1:])
        moved = cache["mean"]
        moved.lerp_(out.detach().mean(0), 0.1)
        return out - moved

    return centred


def drawn_once() -> Hook:
    noise: dict[str, Tensor] = {}

    def noisy(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        if "noise" not in noise:
            noise["noise"] = torch.randn(out.shape[1:])
        return out + noise["noise"]

    return noisy


def only_the_first() -> Hook:
    first = True

    def scaled(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        nonlocal first
        factor = 1 + 1 * first
        if first:
            first = False
        return out / factor

    return scaled


def counted_once() -> Hook:
    positive: dict[str, int] = {}

    def scaled(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        if "count" not in positive:
            positive["count"] = out[out > 0].shape[0]
        return out * (1 + positive["count"])

    return scaled


CARRYING = {
    "stats": running_mean,
    "mean": moved_in_place,
    "means": first_mean,
    "calls": lambda: Annealed().hook,
    "cache": moved_as_another_name,
    "noise": drawn_once,
    "positive": counted_once,
    "first": only_the_first,
}


@pytest.mark.parametrize("name", CARRYING)
def test_a_hook_goes_on_from_what_it_left(name: str) -> None:
    assert [found.removeprefix(".") for found, _ in carried_by(CARRYING[name]())] == [name]


@pytest.mark.parametrize("make", [features, shown, plain, mask, scale, lambda: print, lambda: torch.relu])
def test_what_a_hook_only_leaves_or_shows_is_not_carried(make: Callable[[], Hook]) -> None:
    assert carried_by(make()) == ()


def train(session: Session, make: Callable[[], Hook], of_gradients: bool = False) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = session.model(nn.Linear(4, 3))
        data = TensorDataset(torch.randn(16, 4), torch.arange(16) % 3)
    hook = make()
    if of_gradients:
        net.weight.register_hook(lambda gradient: hook(net, None, gradient.T).T)
        net.bias.register_hook(hook_of_a_gradient())
    else:
        net.register_forward_hook(hook)
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for x, y in session.batches(data):
        session.step(F.cross_entropy(net(x), y))


def hook_of_a_gradient() -> Hook:
    seen: dict[str, Tensor] = {}

    def scaled(gradient: Tensor) -> Tensor:
        seen["size"] = 0.9 * seen.get("size", torch.ones(())) + 0.1 * gradient.abs().mean()
        return gradient / seen["size"]

    return scaled


def why(make: Callable[[], Hook], place: Path, **how: Any) -> str:
    spec = JobSpec.parse({"name": "hooks", "entrypoint": "hooks:train", "batch": {"global_size": 4}})
    finished, _ = run_local(spec, lambda session: train(session, make, **how), place)
    return finished.reproducible_why


@pytest.mark.parametrize("name", CARRYING)
def test_what_a_forward_hook_carries_is_named(name: str, tmp_path: Path) -> None:
    assert why(CARRYING[name], tmp_path).startswith(f"the program's {name} (test_carrying_hooks.py:")


def test_what_a_hook_of_a_gradient_carries_is_named(tmp_path: Path) -> None:
    told = why(plain, tmp_path, of_gradients=True)
    assert told.startswith("the program's seen (test_carrying_hooks.py:")
    assert "from one call of a hook to the next" in told


@pytest.mark.parametrize("make", [features, shown, plain, mask, scale])
def test_hooks_that_carry_nothing_are_not(make: Callable[[], Hook], tmp_path: Path) -> None:
    assert why(make, tmp_path) == ""
