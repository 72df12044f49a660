"""Training functions in which several optimizers step by turns: as they are written for GANs, actors and critics."""

from typing import Any

import torch
from programs import EPOCHS, Program, accuracy, network, rows
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

from ringleader.train import Session

BY_PHASES: dict[str, Program] = {}
NOISE = 3


def program(function: Program) -> Program:
    BY_PHASES[function.__name__] = function
    return function


def faked(generator: nn.Module, count: int) -> Tensor:
    """Noise is drawn in every turn."""
    fake: Tensor = generator(torch.randn(count, NOISE))
    return fake


def gan_nets(session: Session, norm: type[nn.Module]) -> tuple[nn.Module, nn.Module]:
    generator = nn.Sequential(nn.Linear(NOISE, 8), norm(8), nn.ReLU(), nn.Linear(8, 6))
    critic = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    return session.model(generator), session.model(critic)


def critic_loss(critic: nn.Module, generator: nn.Module, real: Tensor) -> Tensor:
    fake = faked(generator, len(real)).detach()
    return F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()


@program
def gan(session: Session) -> None:
    """Dropout, BatchNorm, noise; a schedule for one of the optimizers; evaluations between steps."""
    generator, critic = gan_nets(session, nn.BatchNorm1d)
    critics = session.optimizer(torch.optim.Adam(critic.parameters(), lr=0.02, betas=(0.5, 0.9)))
    generators = session.optimizer(torch.optim.RMSprop(generator.parameters(), lr=0.01), clip_norm=0.5)
    session.scheduler(torch.optim.lr_scheduler.StepLR(generators, step_size=3, gamma=0.8))
    for _ in range(EPOCHS):
        for by_critic, by_generator in session.steps(rows(), phases=[critics, generators]):
            for real, _ in by_critic:
                loss = critic_loss(critic, generator, real)
                session.step(loss, critic_loss=loss)
            for real, _ in by_generator:
                loss = F.softplus(-critic(faked(generator, len(real)))).mean()
                session.step(loss, generator_loss=loss)
            if session.global_step % 4 == 2:
                fooled = session.evaluate(rows(2, 20), lambda batch: {"score": critic(batch[0])[:, 0]})
                session.best(generator, fooled["score"])
    session.load_best(generator)


@program
def wasserstein_gan(session: Session) -> None:
    """Two updates of the critic for one of the generator, each from half of the rows, with a gradient penalty."""
    generator, critic = gan_nets(session, nn.LayerNorm)
    critics = session.optimizer(torch.optim.Adam(critic.parameters(), lr=0.01, betas=(0.0, 0.9)))
    generators = session.optimizer(torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.0, 0.9)))
    average = session.ema(generator, 0.8)
    phases: list[Any] = [critics, critics, generators]
    for _ in range(EPOCHS):
        for *by_critic, by_generator in session.steps(rows(), phases=phases):
            for number, turns in enumerate(by_critic):
                for batch, _ in turns:
                    real = batch[number::2]
                    fake = faked(generator, len(real)).detach()
                    share = torch.rand(len(real), 1)
                    between = (share * real + (1 - share) * fake).requires_grad_()
                    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
                    penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
                    session.step(critic(fake).mean() - critic(real).mean() + 10 * penalty)
            for batch, _ in by_generator:
                session.step(-critic(faked(generator, len(batch))).mean())
    average.load_into(generator)


class Returns:
    """The running mean of what was scored between the phases. Implements Stateful."""

    def __init__(self) -> None:
        self.mean, self.count = 0.0, 0

    def hear(self, value: float) -> None:
        self.count += 1
        self.mean += (value - self.mean) / self.count

    def state_dict(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, float]) -> None:
        vars(self).update(state)


@program
def actor_and_critic(session: Session) -> None:
    """The actor draws actions, and its advantage is by the values of the critic that has just been updated; lines
    between the phases keep a number that the actor's turns read."""
    actor, critic = session.model(network()), session.model(nn.Linear(6, 1))
    values = session.optimizer(torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.9))
    policy = session.optimizer(torch.optim.AdamW(actor.parameters(), lr=0.02))
    returns = Returns()
    session.keep("returns", returns)
    for _ in range(EPOCHS):
        for by_critic, by_actor in session.steps(rows(), phases=[values, policy]):
            for state, best in by_critic:
                session.step(F.mse_loss(critic(state)[:, 0], (best == 1).float()))
            with torch.no_grad():
                returns.hear(critic.weight.sum().item() + torch.rand(()).item())
            for state, best in by_actor:
                chances = Categorical(logits=actor(state))
                action = chances.sample()
                with torch.no_grad():
                    advantage = (action == best).float() - critic(state)[:, 0] + 0.1 * returns.mean
                session.step(-(chances.log_prob(action) * advantage).mean(), entropy=chances.entropy())
            returns.hear(0.5)
        accuracy(session, actor)


@program
def encoder_and_decoder_by_turns(session: Session) -> None:
    """Two losses, both of which reach both parts; two optimizers step together in the last phase."""
    encoder, decoder, head = (session.model(nn.Linear(*shape)) for shape in ((6, 4), (4, 6), (4, 3)))
    encoders = session.optimizer(torch.optim.SGD(encoder.parameters(), lr=0.1))
    decoders = session.optimizer(torch.optim.Adagrad(decoder.parameters(), lr=0.1), clip_norm=0.1)
    heads = session.optimizer(torch.optim.Adam(head.parameters(), lr=0.05), clip_norm=0.2)
    for _ in range(EPOCHS):
        for phases in session.steps(rows(), phases=[encoders, (decoders, heads)]):
            for x, y in phases[0]:
                x.add_(0.1 * torch.randn(x.shape))  # the next phase has the rows as they were
                session.step(F.cross_entropy(head(encoder(x)), y))
            for x, y in phases[1]:
                code = encoder(x)
                session.step(F.mse_loss(decoder(code), x) + F.cross_entropy(head(code), y))
