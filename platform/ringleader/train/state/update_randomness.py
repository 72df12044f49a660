"""The random draws of updates: streams keyed by the step, and whether the draws depend on who updates what."""

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from ringleader.train.generation.context import MemberContext
from ringleader.train.rows.random_streams import Generator, generators_of_optimizers, seed_all, seed_own
from ringleader.train.state.hidden_state import looked_at

IN_PARTS = (
    "optimizers draw random numbers, and each parameter server draws its own for its part of the weights: use "
    "sync.servers: 1, or sync: ring"
)


class UpdateRandomness:
    """One member's draws. The finding is healed and checkpointed."""

    def __init__(self, context: MemberContext) -> None:
        self._context = context
        self._matters = context.same_bits and context.rules.in_parts
        self._found = False
        self._updates = 0

    def begin(self, *stream: int | str) -> None:
        """Begin an update: set the global streams, and the generators that optimizers keep, to streams of its own."""
        seed = self._context.spec.seed
        seed_all(seed, "update", *stream)
        seed_own(self._own, seed, "update", *stream)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch, in some of the updates, whether a stream moves while the optimizers step."""
        self._updates += 1
        # To see where all streams stand takes 0.3 ms: in the first six updates, then more and more seldom.
        if self._found or not (self._matters and self._in_part and looked_at(self._updates)):
            yield
            return
        before = self._stand()
        yield
        self._found = self._stand() != before

    def tell(self) -> None:
        """Tell all members, who call this together, what one server has found. Raises ExchangeBroken."""
        generation = self._context.generation
        if not self._matters:
            return
        said = torch.zeros(len(generation.plan.members), dtype=torch.float64)
        said[generation.rank] = self._found
        self._found = bool(generation.exchange.all_reduce(said).any())

    @property
    def why_other_bits(self) -> str:
        return IN_PARTS if self._found else ""

    def state(self) -> bool:
        return self._found

    def restore(self, state: bool) -> None:
        """Take over others' finding; this member's own stays."""
        self._found |= state

    @property
    def _in_part(self) -> bool:
        """Whether others update weights that this member does not."""
        generation = self._context.current
        part = generation.exchange.part if generation is not None else None
        return part is not None and len(part) < len(self._context.parameters)

    @property
    def _own(self) -> list[tuple[str, Generator]]:
        return generators_of_optimizers(optimizer for optimizer, _ in self._context.held.optimizers)

    def _stand(self) -> list[bytes]:
        """The states of all streams, as bytes."""
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        states = [torch.get_rng_state(), *devices]
        states += [own.get_state() for _, own in self._own if isinstance(own, torch.Generator)]
        others = [own for _, own in self._own if not isinstance(own, torch.Generator)]
        return [
            *(state.numpy().tobytes() for state in states),
            *map(pickle.dumps, (np.random.get_state(), random.getstate(), *others)),
        ]
