"""Training functions whose lines need a CUDA device, or behave otherwise on one: written as people write them there."""

import copy
from typing import Any

import torch
from programs import EPOCHS, Ema, Program, epoch, sgd
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.train import Session

ON_GPU: dict[str, Program] = {}
IMAGES, LENGTH = 48, 128


def program(function: Program) -> Program:
    ON_GPU[function.__name__] = function
    return function


def images() -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(IMAGES, 3, 16, 16, generator=draw)
    return TensorDataset(points, torch.randint(0, 10, (IMAGES,), generator=draw))


def words() -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    text = torch.randint(0, 32, (IMAGES, LENGTH + 1), generator=draw)
    return TensorDataset(text[:, :-1], text[:, 1:])


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2)),
        *(
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        *(nn.Dropout(0.5), nn.Linear(64, 10)),
    )


class Reader(nn.Module):
    """Two layers of attention over words."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(32, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 32)

    def forward(self, text: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        seen = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return self.head(self.layers(seen, mask=mask, is_causal=True))


def read(session: Session, net: nn.Module) -> None:
    for x, y in session.batches(words()):
        session.step(F.cross_entropy(net(x).flatten(0, 1), y.flatten()))


@program
def dropout_behind_convolutions(session: Session) -> None:
    net = session.model(convolutions())
    session.optimizer(torch.optim.Adam(net.parameters(), lr=0.01))
    for _ in range(EPOCHS):
        epoch(session, net, images())


@program
def attention(session: Session) -> None:
    net = session.model(Reader())
    session.optimizer(torch.optim.AdamW(net.parameters(), lr=0.01), clip_norm=1.0)
    for _ in range(EPOCHS):
        read(session, net)


@program
def attention_in_half(session: Session) -> None:
    """The program's own autocast, in which attention takes other kernels."""
    net = session.model(Reader())
    session.optimizer(torch.optim.AdamW(net.parameters(), lr=0.01), clip_norm=1.0)
    for _ in range(EPOCHS):
        for x, y in session.batches(words()):
            with torch.autocast(session.device.type, dtype=torch.bfloat16):
                loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
            session.step(loss)


@program
def fused_adam_looked_at(session: Session) -> None:
    """Its counts of steps are on the device, and lines between loops read its state."""
    net = session.model(convolutions())
    fused = session.device.type == "cuda"
    optimizer = session.optimizer(torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused))
    for _ in range(EPOCHS):
        epoch(session, net, images())
        steps = [float(state["step"]) for state in optimizer.state.values()]
        optimizer.param_groups[0]["lr"] *= 1 - sum(steps) / 10_000


@program
def adafactor_looked_at(session: Session) -> None:
    """Its state has other shapes than the weights."""
    net = session.model(convolutions())
    optimizer = session.optimizer(torch.optim.Adafactor(net.parameters(), lr=0.01))
    for _ in range(EPOCHS):
        epoch(session, net, images())
        seen = sum(float(s["row_var"].sum()) for s in optimizer.state.values() if "row_var" in s)
        optimizer.param_groups[0]["lr"] *= 0.9 if seen > 0 else 0.8


class LateEma(Ema):
    """It copies the weights at its first update."""

    def __init__(self, net: nn.Module) -> None:
        self.net, self.mean = net, {}

    def update(self) -> None:
        self.mean = self.mean or {name: value.clone() for name, value in self.net.state_dict().items()}
        super().update()


@program
def average_begun_late(session: Session) -> None:
    net = session.model(convolutions())
    sgd(session, net)
    ema = LateEma(net)
    session.keep("ema", ema)
    session.on_commit(ema.update)
    for _ in range(EPOCHS):
        epoch(session, net, images())
    net.load_state_dict(ema.state_dict())


@program
def tensors_in_variables(session: Session) -> None:
    """Tensors on the device in variables: compared by value, and remade by lines that run again."""
    net = session.model(convolutions())
    optimizer = sgd(session, net)
    best: dict[str, Tensor] = {}
    lowest = torch.full((), torch.inf, device=session.device)
    history: list[Tensor] = []
    for _ in range(EPOCHS):
        epoch(session, net, images())
        with torch.no_grad():
            x, y = (tensor.to(session.device) for tensor in images().tensors)
            loss = F.cross_entropy(net.eval()(x), y)
        net.train()
        history.append(loss)
        if loss < lowest:
            lowest, best = loss, copy.deepcopy(net.state_dict())
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + float(torch.stack(history).mean()))
    net.load_state_dict(best)


@program
def drawn_on_the_device(session: Session) -> None:
    """Draws in the body, between loops and in a score; a generator of the device between loops."""
    net = session.model(convolutions())
    optimizer = sgd(session, net)
    own = torch.Generator(session.device).manual_seed(3)
    for _ in range(EPOCHS):
        for x, y in session.batches(images()):
            session.step(F.cross_entropy(net(x + 0.1 * torch.randn_like(x)), y))
        drawn = torch.rand((), device=session.device, generator=own) + torch.rand((), device=session.device)
        hit = session.evaluate(images(), lambda b: {"s": torch.rand(len(b[0]), device=b[0].device)})["s"]
        optimizer.param_groups[0]["lr"] = 0.01 * (1 + float(drawn) + hit)


@program
def made_on_the_device(session: Session) -> None:
    """The program says where its tensors are made, around the lines that make them."""
    with session.device:
        net = session.model(convolutions())
    optimizer = sgd(session, net)
    for _ in range(EPOCHS):
        for x, y in session.batches(images()):
            with session.device:
                session.step(F.cross_entropy(net(x) + torch.zeros(10), y))
        hit = session.evaluate(images(), lambda b: {"s": (net(b[0]).argmax(1) == b[1]).float()})["s"]
        optimizer.param_groups[0]["lr"] *= 0.9 + hit / 100


@program
def kept_on_the_device(session: Session) -> None:
    """An average that is large, and is read between loops."""
    net = session.model(convolutions())
    sgd(session, net)
    ema: Any = Ema(net)
    session.keep("ema", ema)
    session.on_commit(ema.update)
    for _ in range(EPOCHS):
        epoch(session, net, images())
        print(sum(value.float().sum().item() for value in ema.mean.values()))
    net.load_state_dict(ema.state_dict())


@program
def rows_of_a_table(session: Session) -> None:
    """Gradients that are rows."""
    table = session.model(nn.EmbeddingBag(32, 16, sparse=True, mode="sum"))
    head = session.model(nn.Linear(16, 32))
    session.optimizer(torch.optim.SparseAdam(list(table.parameters()), lr=0.05))
    session.optimizer(torch.optim.SGD(head.parameters(), lr=0.05))
    for _ in range(EPOCHS):
        for x, y in session.batches(words()):
            session.step(F.cross_entropy(head(table(x)), y[:, 0]))


@program
def rate_on_the_device(session: Session) -> None:
    net = session.model(convolutions())
    rate = torch.tensor(0.01, device=session.device)
    session.optimizer(torch.optim.Adam(net.parameters(), lr=rate, capturable=session.device.type == "cuda"))
    for _ in range(EPOCHS):
        epoch(session, net, images())
        rate.mul_(0.7)


class Upscaled(nn.Module):
    """An operation without a deterministic kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        grid = F.affine_grid(
            torch.eye(2, 3, device=x.device).expand(len(x), 2, 3), [len(x), 8, 20, 20], False
        )
        return self.last(F.grid_sample(self.first(x), grid, align_corners=False).amax((2, 3)))


@program
def without_a_kernel(session: Session) -> None:
    net = session.model(Upscaled())
    sgd(session, net)
    for _ in range(2):
        epoch(session, net, images())
