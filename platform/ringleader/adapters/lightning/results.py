"""What a Lightning module logs while it trains: means over all rows of a step, the same on every member."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ringleader.adapters.library import needed
from ringleader.adapters.session_loop import refuse

with needed("lightning", "lightning"):
    from lightning.pytorch.trainer.connectors.logger_connector.result import (
        _Metadata,
        _ResultCollection,
        _ResultMetric,
        _Sync,
    )

_SETTINGS = (
    "fx",
    "name",
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "enable_graph",
    "add_dataloader_idx",
    "dataloader_idx",
)
_TAKEN = frozenset(["loss", "weight"])


class StepResults(_ResultCollection):  # type: ignore[misc]
    """The trainer's results of training. What `training_step` logs is collected slice by slice, and counts once the
    step is committed."""

    def __init__(self, reduce: Any) -> None:
        super().__init__(training=True)
        self._reduce = reduce
        self._collected: dict[str, Tensor] | None = None
        self._asked: dict[str, tuple[str, dict[str, Any]]] = {}

    def log(self, fx: str, name: str, value: Any, **asked: Any) -> None:
        """Log a value, or collect it."""
        if not isinstance(value, Tensor):
            refuse(
                f"self.log({name!r}) of a {type(value).__name__} while training",
                "Log a number: its mean over all rows of the step is recorded.",
            )
        if self._collected is None:
            super().log(fx, name, value, **asked)
            return
        if asked.get("reduce_fx", torch.mean) not in (torch.mean, "mean", "avg"):
            refuse(
                f"self.log({name!r}, reduce_fx=…) in training_step",
                "What is logged there are means over rows.",
            )
        self._asked[name] = fx, asked | {"batch_size": None}
        self._collected[name] = value.detach()

    @contextmanager
    def collected(self) -> Iterator[dict[str, Tensor]]:
        """What the block logs, by name."""
        values: dict[str, Tensor] = {}
        self._collected = values
        try:
            yield values
        finally:
            self._collected = None

    @property
    def collects(self) -> bool:
        """Whether a training step runs."""
        return self._collected is not None

    def recorded_name(self, name: str) -> str:
        """The name under which to record a number of the trainer's logs; empty for those of a single step that
        `training_step` has logged, which are recorded with it."""
        if name.removesuffix("_step") in self._asked and name not in self._asked:
            return ""
        if name not in self._asked:
            return name
        return f"{name}_epoch" if self._asked[name][1]["on_epoch"] else ""

    def metrics_of(self, values: dict[str, Tensor], loss: Tensor) -> dict[str, Tensor]:
        """The metrics of a slice, for its `session.step`: what it has logged, without the loss."""
        for name in _TAKEN & values.keys():
            if name != "loss" or not torch.equal(values[name], loss.detach().to(values[name].dtype)):
                refuse(f"self.log({name!r}) in training_step", "The name is taken: log it under another one.")
        return {name: value for name, value in values.items() if name not in _TAKEN}

    def give(self, connector: Any, loss: float, means: Sequence[float], rows: int) -> None:
        """Log the means of a committed step over its rows, for the trainer's `connector`."""
        self.batch_size = rows
        names = sorted(self._asked.keys() - _TAKEN)
        for name, mean in [("loss", loss), *zip(names, means, strict=False)]:
            if name in self._asked:
                fx, asked = self._asked[name]
                # As where the module has logged it: members without a slice did not.
                connector._current_fx = fx
                super().log(fx, name, torch.tensor(mean), **asked)

    def state(self) -> list[Any]:
        """What was logged in this epoch so far, for JSON."""
        return [
            (
                key,
                _settings(metric.meta),
                (metric.meta.sync.should, metric.meta.sync.rank_zero_only),
                plain(metric.value),
                plain(getattr(metric, "cumulated_batch_size", None)),
                plain(metric._forward_cache),
                metric.has_reset,
            )
            for key, metric in self.items()
        ]

    def load(self, state: list[Any]) -> None:
        """Go on from what another member has logged."""
        self.clear()
        for key, settings, (should, rank_zero_only), value, count, cache, has_reset in state:
            meta = _Metadata(**settings | {"reduce_fx": getattr(torch, settings["reduce_fx"])})
            meta.sync = _Sync(fn=self._reduce, _should=should, rank_zero_only=rank_zero_only)
            metric = self[key] = _ResultMetric(meta, is_tensor=True)
            metric.value, metric._forward_cache, metric.has_reset = unplain(value), unplain(cache), has_reset
            metric._update_count = 1
            if count is not None:
                metric.cumulated_batch_size = unplain(count)


def _settings(meta: Any) -> dict[str, Any]:
    """How a number is logged, for JSON."""
    return {name: getattr(meta, name) for name in _SETTINGS} | {"reduce_fx": meta.reduce_fx.__name__}


def plain(value: Any) -> Any:
    """A logged number for JSON, which keeps its bits: a tensor as its value and type."""
    return [value.item(), str(value.dtype).removeprefix("torch.")] if isinstance(value, Tensor) else value


def unplain(value: Any) -> Any:
    """The number that `plain` gave."""
    return torch.tensor(value[0], dtype=getattr(torch, value[1])) if isinstance(value, list) else value
