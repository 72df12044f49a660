"""A recommender: who likes what, from two sparse tables of which a batch touches few rows, and a dense head."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import ringleader

SEED = 20
TASTES = 6
"""The traits that decide who likes what."""


class Ratings(Dataset[dict[str, Tensor]]):
    """Drawn ratings: a user, an item, and whether the user liked it, more likely where their traits agree.

    Users rate popular items more often. Those held out are other pairs of the same users and items.
    """

    def __init__(self, users: int, items: int, ratings: int, *, train: bool) -> None:
        # Generators of their own: the ratings must not depend on the job's seed.
        world, draw = torch.Generator().manual_seed(SEED), torch.Generator().manual_seed(SEED + 1 + train)
        tastes = torch.randn(users, TASTES, generator=world)
        traits = torch.randn(items, TASTES, generator=world)
        fame = torch.randn(items, generator=world)
        self.user = torch.randint(0, users, (ratings,), generator=draw)
        self.item = torch.multinomial(fame.exp(), ratings, replacement=True, generator=draw)
        agreement = (tastes[self.user] * traits[self.item]).sum(1) + fame[self.item] / 2
        self.liked = (torch.rand(ratings, generator=draw) < agreement.sigmoid()).float()
        # Of whoever knows the traits: no model has less.
        self.least_loss = float(F.binary_cross_entropy_with_logits(agreement, self.liked))

    def __len__(self) -> int:
        return len(self.liked)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"user": self.user[row], "item": self.item[row], "liked": self.liked[row]}


class Recommender(nn.Module):
    """(n,) users and items → (n,) logits: their vectors' product, and what a small network makes of both."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        # Only the rows that a batch touches have gradients, are sent, and change.
        self.users = nn.Embedding(users, width, sparse=True)
        self.items = nn.Embedding(items, width, sparse=True)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)
        self.head = nn.Sequential(nn.Linear(3 * width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        user, item = self.users(batch["user"]), self.items(batch["item"])
        both = user * item
        logits: Tensor = self.head(torch.cat([user, item, both], dim=1)).squeeze(1) + both.sum(1)
        return logits


def train(session: ringleader.Session) -> None:
    """Params: `users`, `items`, `ratings`, `width`, `table_lr`, `lr`, `epochs`."""
    params = session.params
    users, items = params.get("users", 800), params.get("items", 400)
    ratings = params.get("ratings", 60_000)
    train_set = Ratings(users, items, ratings, train=True)
    test_set = Ratings(users, items, ratings // 10, train=False)

    net = session.model(Recommender(users, items, params.get("width", 8)))
    tables = [net.users.weight, net.items.weight]
    session.optimizer(torch.optim.SparseAdam(tables, lr=params.get("table_lr", 0.01)))
    session.optimizer(torch.optim.Adam(net.head.parameters(), lr=params.get("lr", 0.002)))

    def score(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        logits = net(batch)
        return {
            "accuracy": ((logits > 0) == (batch["liked"] > 0.5)).float(),
            "test_loss": F.binary_cross_entropy_with_logits(logits, batch["liked"], reduction="none"),
        }

    for _ in range(params.get("epochs", 6)):
        for batch in session.batches(train_set):
            session.step(F.binary_cross_entropy_with_logits(net(batch), batch["liked"]))
        scores = session.evaluate(test_set, score)
        # Tables learn the ratings by heart in time: the best epoch is kept.
        session.best(net, scores["test_loss"], lowest=True)
    session.load_best(net)
