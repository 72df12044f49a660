"""LARS and LAMB do what the papers' formulas say, layer by layer; rates follow the global batch and warm up."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ringleader.optim import LAMB, LARS, WarmUp, layer_groups, scaled_rate
from ringleader.optim.layer_norms import BLOCK, ROW, layer_norms

torch.set_num_threads(1)
STEPS = 6


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
        )


def rows(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 2, 6, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def trained(make: Callable[[nn.Module], torch.optim.Optimizer], steps: int = STEPS) -> nn.Module:
    net = network()
    optimizer = make(net)
    for step in range(steps):
        x, y = rows(step)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


def followed(make: Callable[[nn.Module], torch.optim.Optimizer], by_hand: Callable[..., np.ndarray]) -> float:
    """Train, and make each update from the same gradient by hand, in float64, too. Returns the largest relative error
    of an update."""
    net, worst = network(), 0.0
    optimizer = make(net)
    memory: list[dict[str, Any]] = [{} for _ in net.parameters()]
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for step in range(STEPS):
        x, y = rows(step)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        before = [p.detach().double().numpy().copy() for p in net.parameters()]
        gradients = [p.grad.double().numpy().copy() for p in net.parameters() if p.grad is not None]
        optimizer.step()
        for kept, w, g, p in zip(memory, before, gradients, net.parameters(), strict=True):
            wanted = by_hand(kept, w, g, step + 1, groups[id(p)])
            moved = p.detach().double().numpy() - w
            # Weights of float32 hold a move to 2^-24 of their own size.
            error = np.maximum(np.abs(moved - wanted) - np.abs(w) * 2.0**-23, 0.0)
            worst = max(worst, float(error.max() / np.abs(wanted).max()))
    return worst


def lars_by_hand(kept: dict[str, Any], w: np.ndarray, g: np.ndarray, _step: int, group: Any) -> np.ndarray:
    decay, weights, slope = group["weight_decay"], np.linalg.norm(w), np.linalg.norm(g)
    ratio = 1.0
    if group["adapt"] and weights and slope:
        ratio = group["trust_coefficient"] * weights / (slope + decay * weights + group["eps"])
    kept["v"] = group["momentum"] * kept.get("v", 0.0) + ratio * (g + decay * w)
    return -group["lr"] * kept["v"]


def lamb_by_hand(kept: dict[str, Any], w: np.ndarray, g: np.ndarray, step: int, group: Any) -> np.ndarray:
    one, two = group["betas"]
    kept["m"] = one * kept.get("m", 0.0) + (1 - one) * g
    kept["v"] = two * kept.get("v", 0.0) + (1 - two) * g**2
    corrected = (1 - one**step, 1 - two**step) if group["bias_correction"] else (1.0, 1.0)
    r = (
        kept["m"] / corrected[0] / (np.sqrt(kept["v"] / corrected[1]) + group["eps"])
        + group["weight_decay"] * w
    )
    weights, length = np.linalg.norm(w), np.linalg.norm(r)
    ratio = 1.0
    if group["adapt"] and weights and length:
        ratio = (np.clip(weights, *group["clamp"]) if group["clamp"] else weights) / length
    return -group["lr"] * ratio * r


LARS_OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "decay": {"weight_decay": 0.01},
    "no momentum": {"momentum": 0.0, "trust_coefficient": 0.02},
    "no layers": {"adapt": False, "weight_decay": 0.01},
}
LAMB_OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no decay": {"weight_decay": 0.0},
    "clamped": {"clamp": (0.5, 2.0)},
    "no correction": {"bias_correction": False, "betas": (0.8, 0.95)},
    "no layers": {"adapt": False},
}
CLOSE = 1e-4
"""Of an update's largest entry: ten steps in float32 round to 2^-24 each, Adam's quotient of two small numbers more."""


@pytest.mark.parametrize("options", LARS_OPTIONS.values(), ids=LARS_OPTIONS)
def test_lars_makes_the_update_of_the_paper(options: dict[str, Any]) -> None:
    assert followed(lambda net: LARS(net.parameters(), lr=0.5, **options), lars_by_hand) < CLOSE


@pytest.mark.parametrize("options", LAMB_OPTIONS.values(), ids=LAMB_OPTIONS)
def test_lamb_makes_the_update_of_the_paper(options: dict[str, Any]) -> None:
    assert followed(lambda net: LAMB(net.parameters(), lr=0.02, **options), lamb_by_hand) < CLOSE


@pytest.mark.parametrize(("kind", "by_hand"), [(LARS, lars_by_hand), (LAMB, lamb_by_hand)])
def test_biases_and_norms_are_left_out_by_groups(kind: Any, by_hand: Any) -> None:
    groups = layer_groups(network(), weight_decay=0.05)
    assert [[p.dim() for p in group["params"]] for group in groups] == [[4, 2], [1, 1, 1]]
    assert [group.get("adapt", True) for group in groups] == [True, False]
    assert followed(lambda net: kind(layer_groups(net, weight_decay=0.05), lr=0.1), by_hand) < CLOSE


def test_without_layers_lars_has_the_bits_of_sgd() -> None:
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    ours = trained(lambda net: LARS(net.parameters(), adapt=False, **settings))
    theirs = trained(lambda net: torch.optim.SGD(net.parameters(), **settings))
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_without_layers_lamb_trains_as_adamw() -> None:
    ours = trained(lambda net: LAMB(net.parameters(), lr=0.01, adapt=False, eps=1e-8))
    theirs = trained(lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.01))
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        # The same formula in another order of roundings, over six steps.
        assert torch.allclose(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_weights_of_zeros_and_gradients_of_zeros_leave_no_trace_but_zeros(kind: Any) -> None:
    zeros, idle = nn.Parameter(torch.zeros(4, 4)), nn.Parameter(torch.ones(3, 3))
    optimizer = kind([zeros, idle], lr=0.1, weight_decay=0.0)
    zeros.grad, idle.grad = torch.ones(4, 4), torch.zeros(3, 3)
    optimizer.step()
    assert torch.isfinite(zeros).all()
    assert zeros.abs().min() > 0  # it can leave zero: the ratio is 1
    assert torch.equal(idle, torch.ones(3, 3))


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_a_state_dict_goes_on_where_it_was(kind: Any) -> None:
    whole = trained(lambda net: kind(layer_groups(net), lr=0.1))
    net = trained(lambda net: kind(layer_groups(net), lr=0.1), steps=0)
    optimizer = kind(layer_groups(net), lr=0.1)
    for step in range(STEPS):
        if step == 3:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = kind(layer_groups(net), lr=0.7)
            optimizer.load_state_dict(saved)
        x, y = rows(step)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    for mine, other in zip(net.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_all_layers_at_once_have_the_bits_of_one_after_the_other(kind: Any) -> None:
    """As on a device, where few kernels update all of them."""
    nets = network(), network()
    one, other = (kind(net.parameters(), lr=0.1) for net in nets)
    for net in nets:
        F.cross_entropy(net(rows(0)[0]), rows(0)[1]).backward()
    one.step()
    with torch.no_grad():
        other._update(list(nets[1].parameters()), other.param_groups[0])
    for parameter, same in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(parameter, same)


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_a_sparse_gradient_is_refused(kind: Any) -> None:
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = kind(table.parameters(), lr=0.1)
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=f"{kind.__name__} does not support sparse gradients"):
        optimizer.step()


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (LARS, {"lr": 0.0}, "LARS got lr=0; allowed: a number above 0"),
        (LARS, {"lr": float("nan")}, "LARS got lr=nan; allowed: a number above 0"),
        (LARS, {"trust_coefficient": -0.1}, "LARS got trust_coefficient=-0.1; allowed: a number above 0"),
        (LARS, {"momentum": 1.0}, "LARS got momentum=1; allowed: a number at least 0 and below 1"),
        (LARS, {"weight_decay": -1.0}, "LARS got weight_decay=-1; allowed: a number at least 0"),
        (LAMB, {"lr": -1.0}, "LAMB got lr=-1; allowed: a number above 0"),
        (LAMB, {"betas": (0.9, 1.0)}, r"LAMB got betas\[1\]=1; allowed: a number at least 0 and below 1"),
        (LAMB, {"eps": -1.0}, "LAMB got eps=-1; allowed: a number at least 0"),
        (LAMB, {"clamp": (2.0, 1.0)}, r"LAMB got clamp\[1\]=1; allowed: a number above 2"),
    ],
)
def test_an_option_out_of_its_bounds_is_named(kind: Any, options: dict[str, Any], said: str) -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ValueError, match=said):
        kind([weight], **{"lr": 0.1, **options})
    with pytest.raises(ValueError, match=said):
        kind([{"params": [weight], **options}], lr=0.1)


# --- norms ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, ROW - 1, ROW, ROW + 1, BLOCK, 3 * BLOCK + 5 * ROW + 7])
def test_a_norm_has_the_same_bits_whatever_the_threads_and_the_layout(count: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(count))
    first = layer_norms([values])
    assert np.isclose(first.item(), np.linalg.norm(values.double().numpy()), rtol=1e-12)
    moved = torch.empty(count + 3)[3:].copy_(values)
    spread = torch.empty(count, 2)[:, 1].copy_(values)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for one in (values, moved, spread):
                assert torch.equal(layer_norms([one]), first)
    finally:
        torch.set_num_threads(1)


def test_a_kernel_has_the_same_norm_in_any_order_of_memory() -> None:
    kernel = torch.randn(8, 5, 3, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(layer_norms([kernel]), layer_norms([kernel.clone(memory_format=torch.channels_last)]))


# --- rates ----------------------------------------------------------------------------------------------------------


def test_rates_scale_with_the_batch() -> None:
    assert scaled_rate(0.1, 256, 1024) == pytest.approx(0.4)
    assert scaled_rate(0.1, 256, 1024, how="sqrt") == pytest.approx(0.2)
    assert scaled_rate(0.1, 256, 64, "sqrt") == pytest.approx(0.05)
    assert scaled_rate(0.1, 256, 256) == 0.1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0.0, 1, 1), "base=0; allowed: a rate above 0"),
        ((0.1, 0, 1), "base_batch=0; allowed: 1 row or more"),
        ((0.1, 1, -3), "batch=-3; allowed: 1 row or more"),
        ((0.1, 1, 2, "cubic"), "how='cubic'; allowed: 'linear' or 'sqrt'"),
    ],
)
def test_a_rate_that_cannot_be_scaled_is_named(arguments: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        scaled_rate(*arguments)


def rates(steps: int, *arguments: Any, **options: Any) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=2.0)
    schedule = WarmUp(optimizer, *arguments, **options)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_a_rate_warms_up_in_equal_steps_and_stays() -> None:
    assert rates(6, 4) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert rates(2, 0) == [2.0, 2.0]


def test_a_rate_falls_behind_the_warm_up_along_a_power() -> None:
    assert rates(7, 2, total_steps=6) == [1.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0]
    assert rates(6, 2, total_steps=6, power=2.0) == [1.0, 2.0, 2.0, 1.125, 0.5, 0.125]


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((-1,), {}, "steps=-1; allowed: 0 or more"),
        ((5,), {"total_steps": 5}, "total_steps=5; allowed: more than steps=5"),
        ((5,), {"power": 0.0}, "power=0; allowed: a number above 0"),
    ],
)
def test_a_warm_up_that_makes_no_sense_is_named(arguments: Any, options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rates(1, *arguments, **options)
