"""The best weights so far, kept as committed state: one copy, however often they improve."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ringleader.errors import StepMisuse

SCORE, WEIGHTS = "ringleader.best.score", "ringleader.best.weights"
"""Names of the two kept objects. The score is small, so every boundary records it and re-run lines find their own."""


class BestScore:
    """The best score so far. Implements Stateful."""

    def __init__(self) -> None:
        self.value: float | None = None

    def improves(self, score: float, *, lowest: bool) -> bool:
        """Record `score` if it is better than all before. Returns whether it is."""
        better = self.value is None or (score < self.value if lowest else score > self.value)
        if better:
            self.value = score
        return better

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class BestWeights:
    """A copy of a model's state. Implements Stateful; its state is replaced, never changed, so copies share it."""

    def __init__(self) -> None:
        self._weights = _Frozen({})

    def keep(self, model: nn.Module) -> None:
        """Copy the model's state."""
        copied = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self._weights = _Frozen(copied)

    def put_back(self, model: nn.Module) -> None:
        """Load the copied state into the model.

        Raises:
            StepMisuse: no state was copied.
        """
        if not self._weights.values:
            raise StepMisuse(
                "there are no best weights to load.",
                hint="Call session.best(model, score) after a loop first.",
            )
        model.load_state_dict(self._weights.values)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self._weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._weights = state["weights"]


class _Frozen:
    """Tensors that are never written to."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        self.values = values

    # Kept objects are deep-copied at every commit and boundary; these tensors are only replaced, so all share them.
    def __deepcopy__(self, memo: dict[int, Any]) -> "_Frozen":
        return self


def best_of(
    kept: Mapping[str, Any], keep: Callable[[str, BestScore | BestWeights], object]
) -> tuple[BestScore, BestWeights]:
    """The best score and its weights among the kept objects, kept from now on where they are not yet."""
    if SCORE not in kept:
        # Two objects: boundaries always record the small score, the weights only where the program touches them.
        keep(SCORE, BestScore())
        keep(WEIGHTS, BestWeights())
    best, weights = kept[SCORE], kept[WEIGHTS]
    assert isinstance(best, BestScore)
    assert isinstance(weights, BestWeights)
    return best, weights


FrozenTensors = _Frozen
"""Its public name. The other one is in the texts of variables that checkpoints hold."""
