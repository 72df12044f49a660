"""Speech, drawn: spectrograms of some sounds in a row, a network of convolutions and a recurrent layer, CTC."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset

import ringleader

FRAMES, BANDS = 64, 24
SOUNDS, MOST = 8, 6
"""Kinds of sounds, and sounds of an utterance at most."""
BLANK = 0
"""What the network says where it says no sound; sounds are numbered from 1."""
SEED = 20


class Utterances(Dataset[dict[str, Tensor]]):
    """Spectrograms of two to six sounds under noise. A sound is two bands of energy that glide, each its own way.

    `sounds` are filled up with zeros behind the `count` that are there.
    """

    def __init__(self, rows: int, *, train: bool) -> None:
        # Generators of their own: utterances must not depend on the job's seed.
        voice = torch.Generator().manual_seed(SEED)
        # (sounds + 1, 2 bands, at the begin and at the end)
        self.bands = 2 + torch.rand(SOUNDS + 1, 2, 2, generator=voice) * (BANDS - 4)
        draw = torch.Generator().manual_seed(SEED + 1 + train)
        self.count = torch.randint(2, MOST + 1, (rows,), generator=draw)
        self.sounds = torch.randint(1, SOUNDS + 1, (rows, MOST), generator=draw)
        self.sounds *= torch.arange(MOST) < self.count[:, None]
        self.frames = torch.stack([self._spoken(row, draw) for row in range(rows)])

    def _spoken(self, row: int, draw: torch.Generator) -> Tensor:
        """(frames, bands), with sounds and breaks of different lengths."""
        frames = 0.3 * torch.randn(FRAMES, BANDS, generator=draw)
        at = 0
        for sound in self.sounds[row, : self.count[row]]:
            at += int(torch.randint(1, 4, (), generator=draw))
            length = int(torch.randint(4, 8, (), generator=draw))
            way = torch.linspace(0, 1, length)[:, None]
            centers = self.bands[sound, :, 0] * (1 - way) + self.bands[sound, :, 1] * way  # (length, 2)
            energy = torch.exp(-((torch.arange(BANDS) - centers[:, :, None]) ** 2) / 3).sum(1)
            frames[at : at + length] += energy
            at += length
        return frames

    def __len__(self) -> int:
        return len(self.count)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"frames": self.frames[row], "sounds": self.sounds[row], "count": self.count[row]}


class SpeechNet(nn.Module):
    """(n, frames, bands) → (n, frames / 2, sounds + 1) log-probabilities of a sound, or of none, in each half frame."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.near = nn.Sequential(
            nn.Conv1d(BANDS, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2),
            nn.ReLU(),
        )
        self.far = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, SOUNDS + 1)

    def forward(self, frames: Tensor) -> Tensor:
        heard, _ = self.far(self.near(frames.transpose(1, 2)).transpose(1, 2))
        said: Tensor = self.head(heard).log_softmax(2)
        return said


def ctc(said: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """(n,) nats of the sounds, over all ways to lay them on the frames (Graves et al., 2006), a sound."""
    lengths = torch.full((len(said),), said.shape[1])
    nats = F.ctc_loss(
        said.transpose(0, 1), batch["sounds"], lengths, batch["count"], blank=BLANK, reduction="none"
    )
    return nats / batch["count"]


def understood(said: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """(n,) whether all sounds are there in their order, where each frame says what is likeliest."""
    best = said.argmax(2)
    begins = (best != BLANK) & (best != F.pad(best, (1, 0), value=BLANK)[:, :-1])
    heard = torch.zeros(len(best), MOST + 1, dtype=torch.long)
    places = begins.cumsum(1).clamp(max=MOST + 1)
    for row, frame in begins.nonzero().tolist():
        heard[row, places[row, frame] - 1] = best[row, frame]
    return (heard == F.pad(batch["sounds"], (0, 1))).all(1)


def train(session: ringleader.Session) -> None:
    """Params: `rows`, `width`, `lr`, `epochs`."""
    params, epochs = session.params, session.params.get("epochs", 8)
    train_set = Utterances(params.get("rows", 2000), train=True)
    test_set = Utterances(400, train=False)

    net = session.model(SpeechNet(params.get("width", 48)))
    peak = params.get("lr", 5e-3)
    # Clipped: gradients through time are large where the alignment is first found.
    optimizer = session.optimizer(torch.optim.AdamW(net.parameters(), lr=peak), clip_norm=1.0)
    session.scheduler(OneCycleLR(optimizer, peak, total_steps=session.total_steps(train_set, epochs=epochs)))

    def score(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        said = net(batch["frames"])
        return {"understood": understood(said, batch).float(), "test_loss": ctc(said, batch)}

    for _ in range(epochs):
        for batch in session.batches(train_set):
            session.step(ctc(net(batch["frames"]), batch).mean())
        session.evaluate(test_set, score)
