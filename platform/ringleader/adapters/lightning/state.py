"""What Lightning's trainer knows of its training, as committed state: how far its loops are, what was logged, and the
states of its callbacks."""

import json
from collections.abc import Iterator
from typing import Any

from ringleader.adapters.library import needed
from ringleader.adapters.lightning.results import StepResults, plain, unplain
from ringleader.adapters.lightning.schedules import PlateauAtEpochs

with needed("lightning", "lightning"):
    from lightning.pytorch import Callback
    from lightning.pytorch.loops import _Loop
    from lightning.pytorch.loops.progress import _BaseProgress


class FitState:
    """The trainer as it stands where it asks for a step: nothing of that step has begun. Implements Stateful.

    Attributes:
        given: another member's state has come since the newest `take`.
    """

    def __init__(self, trainer: Any, results: StepResults, plateaus: list[PlateauAtEpochs]) -> None:
        self._trainer = trainer
        self._results = results
        self._plateaus = plateaus
        self._numbers = list(_numbers(trainer.fit_loop))
        self._callbacks = [
            callback for callback in trainer.callbacks if type(callback).state_dict is not Callback.state_dict
        ]
        self._state: dict[str, Any] = {}
        self.given = False
        self.take()

    @property
    def over(self) -> bool:
        """Whether it is of the end of the fit."""
        return bool(self._state["over"])

    def take(self, *, over: bool = False) -> None:
        """Take the state of the trainer as it is now."""
        trainer, connector = self._trainer, self._trainer._logger_connector
        counts = {
            "numbers": [holder[name] for holder, name in self._numbers],
            "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
            "should_stop": trainer.should_stop,
            "logging": (connector._first_loop_iter, connector._current_fx),
            "metrics": [
                {name: plain(value) for name, value in metrics.items()}
                for metrics in (
                    connector._callback_metrics,
                    connector._logged_metrics,
                    connector._progress_bar_metrics,
                )
            ],
            "results": self._results.state(),
        }
        # One text: each commit copies the state, and a text is copied as it is.
        self._state = {
            "counts": json.dumps(counts),
            "callbacks": [callback.state_dict() for callback in self._callbacks],
            "plateaus": [plateau.state_dict() for plateau in self._plateaus],
            "over": over,
        }
        self.given = False

    def put(self) -> None:
        """Have the trainer stand there."""
        trainer, connector, state = self._trainer, self._trainer._logger_connector, self._state
        counts = json.loads(state["counts"])
        for (holder, name), value in zip(self._numbers, counts["numbers"], strict=True):
            holder[name] = value
        epoch_loop = trainer.fit_loop.epoch_loop
        epoch_loop._batches_that_stepped = counts["stepped"]
        trainer.fit_loop._data_fetcher.fetched = epoch_loop.batch_progress.current.ready
        trainer.should_stop = counts["should_stop"]
        connector._first_loop_iter, connector._current_fx = counts["logging"]
        connector._callback_metrics, connector._logged_metrics, connector._progress_bar_metrics = (
            {name: unplain(value) for name, value in metrics.items()} for metrics in counts["metrics"]
        )
        self._results.load(counts["results"])
        for callback, given in zip(self._callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(given)
        for plateau, given in zip(self._plateaus, state["plateaus"], strict=True):
            plateau.load_state_dict(given)

    def step_plateaus(self) -> None:
        """Let rates follow what was monitored in the epoch that is over, between its loop and the next one."""
        stepped = [plateau.catch_up() for plateau in self._plateaus]
        if any(stepped):
            self._state["plateaus"] = [plateau.state_dict() for plateau in self._plateaus]

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state, self.given = state, True


def _numbers(loop: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """The counters of a loop and of those in it."""
    for name, value in vars(loop).items():
        if isinstance(value, _Loop | _BaseProgress):
            yield from _numbers(value)
        elif isinstance(loop, _BaseProgress):
            yield vars(loop), name
