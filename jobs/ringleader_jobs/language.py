"""A small language model over bytes: paragraphs of a text packed into sequences, a transformer, the best weights."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import cast

import fsspec
import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR

import ringleader
from ringleader.data import Packed

BYTES = 256
HELD_OUT = 0.1


class Paragraphs:
    """The paragraphs of a text, each a document of bytes: a source of our own, blocks of 64 of them."""

    schema = pa.schema([("input_ids", pa.list_(pa.uint8()))])

    def __init__(self, text: bytes) -> None:
        self._documents = [part + b"\n\n" for part in text.split(b"\n\n") if part]
        self._edges = [*range(0, len(self._documents), 64), len(self._documents)]
        self.block_rows = np.diff(self._edges)
        self.digest = sha256(text).hexdigest()

    def read(self, block: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        documents = [list(part) for part in self._documents[self._edges[block] : self._edges[block + 1]]]
        return pa.RecordBatch.from_arrays(
            [pa.array(documents, self.schema.field(0).type)], schema=self.schema
        )

    def name(self, block: int) -> str:
        return f"paragraphs {self._edges[block]} to {self._edges[block + 1]}"


def sequences(uri: str, length: int) -> tuple[Packed, Packed]:
    """A text as sequences of bytes to train on, and those of its last tenth."""
    with fsspec.open(uri, "rb") as file:
        text = file.read()
    cut = text.rindex(b"\n\n", 0, int(len(text) * (1 - HELD_OUT)))
    return Packed(Paragraphs(text[:cut]), length), Packed(Paragraphs(text[cut:]), length)


class Block(nn.Module):
    """Attention, then two dense layers, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """(n, length, width), and (n, 1, length, length) which token sees which."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3 * self.heads, -1)).transpose(1, 2).chunk(3, dim=1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2))
        return cast(Tensor, x + self.dense(self.norm2(x)))


class LanguageModel(nn.Module):
    """Logits of the byte behind each byte, which sees those before it in its own document."""

    def __init__(self, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(BYTES, width), nn.Embedding(length, width)
        for table in (self.byte, self.place):
            nn.init.normal_(table.weight, std=0.02)  # of 1, torch's default, attention learns late
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, BYTES))

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """(n, length, 256)."""
        document = batch["document_ids"]
        seen = (document[:, :, None] == document[:, None, :]).tril().unsqueeze(1)
        x = self.byte(batch["input_ids"]) + self.place(batch["position_ids"])
        for block in self.blocks:
            x = block(x, seen)
        return cast(Tensor, self.head(x))


def losses(net: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(n, length - 1) nats of each next byte, and which count: those of the same document."""
    document = batch["document_ids"]
    counts = (document[:, 1:] == document[:, :-1]) & (document[:, 1:] >= 0)
    logits = net(batch)[:, :-1].transpose(1, 2)
    return F.cross_entropy(logits, batch["input_ids"][:, 1:], reduction="none") * counts, counts


def train(session: ringleader.Session) -> None:
    """Params: `text` (a path or URI), `length`, `width`, `layers`, `heads`, `lr`, `epochs`, `evaluate_every`."""
    params = session.params
    length, epochs = params.get("length", 128), params.get("epochs", 2)
    train_set, test_set = sequences(params["text"], length)

    net = session.model(
        LanguageModel(length, params.get("width", 64), params.get("layers", 2), params.get("heads", 4))
    )
    peak = params.get("lr", 3e-3)
    optimizer = session.optimizer(torch.optim.AdamW(net.parameters(), lr=peak), clip_norm=1.0)
    session.scheduler(OneCycleLR(optimizer, peak, total_steps=session.total_steps(train_set, epochs=epochs)))

    def score(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        nats, counts = losses(net, batch)
        return {"test_loss": nats.sum(1) / counts.sum(1)}

    for _ in range(epochs):
        for step in session.steps(train_set):
            for batch in step:
                nats, counts = losses(net, batch)
                session.step(nats.sum() / counts.sum(), weight=float(counts.sum()))
            if session.global_step % params.get("evaluate_every", 50) == 0:
                session.best(net, session.evaluate(test_set, score)["test_loss"], lowest=True)
    session.load_best(net)
