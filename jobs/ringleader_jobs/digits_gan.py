"""A GAN on handwritten digits: a critic and a generator by turns in each step, and an average of the generator.

The critic's slope at real digits is penalised (R1; Mescheder, Geiger, Nowozin 2018, "Which training methods for GANs do
actually converge?"): without it the critic wins, and the generator ends worse than one grey mean of all digits.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

import ringleader
from ringleader_jobs.digits import Digits

NOISE = 32
SHOWN = 512
"""Generated digits among which the nearest is looked for."""


def generator_net() -> nn.Module:
    """(n, 32) noise → (n, 1, 8, 8) pixels in 0..1."""
    return nn.Sequential(
        nn.Linear(NOISE, 256),
        nn.LayerNorm(256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.LayerNorm(256),
        nn.ReLU(),
        nn.Linear(256, 64),
        nn.Sigmoid(),
        nn.Unflatten(1, (1, 8, 8)),
    )


def critic_net() -> nn.Module:
    """(n, 1, 8, 8) pixels → (n, 1): how real they look."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 256),
        nn.LeakyReLU(0.2),
        nn.Linear(256, 256),
        nn.LeakyReLU(0.2),
        nn.Linear(256, 1),
    )


def critic_loss(critic: nn.Module, real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
    """The critic's loss, (), and its scores of the real digits, (n, 1)."""
    real = real.clone().requires_grad_()
    score = critic(real)
    (slope,) = torch.autograd.grad(score.sum(), real, create_graph=True)
    penalty = slope.square().flatten(1).sum(dim=1).mean()
    return F.softplus(-score).mean() + F.softplus(critic(fake)).mean() + penalty, score


def nearest(generator: Callable[[Tensor], Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For each real digit its distance to the nearest of some generated ones: blurred, wrong and missing digits all
    show in it. The noise is the same for every row, whoever scores it."""
    noise = torch.randn(SHOWN, NOISE, generator=torch.Generator().manual_seed(0))
    fake = generator(noise.to(batch["image"].device))
    return {"distance": torch.cdist(batch["image"].flatten(1), fake.flatten(1)).min(dim=1).values}


def train(session: ringleader.Session) -> None:
    """Params: `lr`, `epochs`."""
    train_set, test_set = Digits(train=True), Digits(train=False)
    epochs, lr = session.params.get("epochs", 15), session.params.get("lr", 1e-3)

    generator, critic = session.model(generator_net()), session.model(critic_net())
    generators = session.optimizer(Adam(generator.parameters(), lr=lr, betas=(0.5, 0.99)))
    critics = session.optimizer(Adam(critic.parameters(), lr=lr, betas=(0.5, 0.99)))
    average = session.ema(generator, 0.98)

    for _ in range(epochs):
        for by_critic, by_generator in session.steps(train_set, phases=[critics, generators]):
            for batch in by_critic:
                noise = torch.randn(len(batch["image"]), NOISE, device=session.device)
                # The generator's weights get no gradient in this phase anyway: this spares its backward.
                loss, score = critic_loss(critic, batch["image"], generator(noise).detach())
                session.step(loss, taken_for_real=(score > 0).float())
            for batch in by_generator:
                noise = torch.randn(len(batch["image"]), NOISE, device=session.device)
                session.step(F.softplus(-critic(generator(noise))).mean())  # the critic as it is by now
        session.evaluate(test_set, partial(nearest, average))
    average.load_into(generator)
