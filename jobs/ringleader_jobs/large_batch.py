"""Handwritten digits in batches of half the set: two steps an epoch, with rates that follow the batch and warm up."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

import ringleader
from ringleader.optim import LAMB, LARS, WarmUp, layer_groups, scaled_rate
from ringleader_jobs.digits import Digits, digit_scores, digits_net

BASE_BATCH = 64
"""Rows for which the rates below are tuned."""

OPTIMIZERS: Mapping[str, tuple[float, Literal["linear", "sqrt"], Callable[[nn.Module, float], Optimizer]]] = {
    "sgd": (0.1, "linear", lambda net, lr: SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)),
    "lars": (
        0.1,
        "linear",
        lambda net, lr: LARS(layer_groups(net, weight_decay=1e-4), lr=lr, trust_coefficient=0.02),
    ),
    "lamb": (0.02, "sqrt", lambda net, lr: LAMB(layer_groups(net, weight_decay=0.01), lr=lr)),
}
"""By name: the rate for a batch of BASE_BATCH, how it grows with the batch, and the optimizer."""


def train(session: ringleader.Session) -> None:
    """Params: `optimizer` (sgd, lars, lamb), `epochs`, `warm_up` (steps)."""
    train_set, test_set = Digits(train=True), Digits(train=False)
    epochs = session.params.get("epochs", 30)
    base, how, make = OPTIMIZERS[session.params.get("optimizer", "lars")]

    net = session.model(digits_net())
    rate = scaled_rate(base, BASE_BATCH, session.global_batch, how)
    optimizer = session.optimizer(make(net, rate))
    steps = session.total_steps(train_set, epochs=epochs)
    session.scheduler(WarmUp(optimizer, session.params.get("warm_up", 10), total_steps=steps, power=2.0))

    for _ in range(epochs):
        for batch in session.batches(train_set):
            session.step(F.cross_entropy(net(batch["image"]), batch["label"]))
        session.evaluate(test_set, partial(digit_scores, net))
