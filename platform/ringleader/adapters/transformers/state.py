"""What transformers' `Trainer` knows of its training, as committed state: rolled back, healed and checkpointed."""

import json
from dataclasses import fields
from typing import Any

import torch

from ringleader.adapters.library import needed

with needed("transformers", "hf"):
    from transformers import TrainerState
    from transformers.trainer_callback import ExportableState

_NOT_ALIKE = frozenset(
    ["log_history", "is_local_process_zero", "is_world_process_zero", "stateful_callbacks"]
)
_MEASURED = ("_runtime", "_per_second", "_time")
_FIELDS = tuple(field.name for field in fields(TrainerState) if field.name not in _NOT_ALIKE)


class TrainingProgress:
    """The trainer's state and control, its sums of losses, and the states of callbacks that have one.

    Attributes:
        epoch: the number of the running epoch.
        rate: the learning rate of the newest step.
        since: the time at which training began here.
        ignored_keys: outputs of the model that evaluations leave out.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._steps, self._first = 1, 0
        self.epoch = 0
        self.rate = self._next_rate = 0.0
        self.since = 0.0
        self.ignored_keys: list[str] | None = None

    def begin(self) -> None:
        """Begin a training: its sums are the trainer's from here on."""
        trainer = self._trainer
        trainer._tr_loss = torch.tensor(0.0, device=trainer.args.device)
        trainer._total_loss_scalar, trainer._globalstep_last_logged = 0.0, trainer.state.global_step
        self._next_rate = trainer._get_learning_rate()

    def epoch_begins(self, epoch: int, told: dict[str, Any]) -> None:
        """Begin an epoch, with what the trainer tells of it."""
        self.epoch, self._steps = epoch, told["num_update_steps_per_epoch"]
        self._first = self._trainer.session.global_step
        self.since, self.ignored_keys = told["start_time"], told["ignore_keys_for_eval"]

    def count_step(self) -> None:
        """Count the step that is committed now."""
        trainer, state = self._trainer, self._trainer.state
        state.global_step += 1
        state.epoch = self.epoch + (trainer.session.global_step - self._first) / self._steps
        state.is_local_process_zero = state.is_world_process_zero = trainer.session.is_main
        trainer._tr_loss += trainer.session.loss
        self.rate = self._next_rate

    def next_rate(self) -> None:
        """Note the rate of the step to come: the schedule has advanced."""
        self._next_rate = self._trainer._get_learning_rate()

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "state": {name: getattr(trainer.state, name) for name in _FIELDS},
            "callbacks": [callback.state() for callback in self._stateful()],
            "sums": (
                float(trainer._tr_loss),
                trainer._total_loss_scalar,
                trainer._globalstep_last_logged,
            ),
            "rates": (self.rate, self._next_rate),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        trainer = self._trainer
        for name, value in state["state"].items():
            setattr(trainer.state, name, value)
        for callback, given in zip(self._stateful(), state["callbacks"], strict=True):
            for name, value in (given["args"] | given["attributes"]).items():
                setattr(callback, name, value)
        total, trainer._total_loss_scalar, trainer._globalstep_last_logged = state["sums"]
        trainer._tr_loss.fill_(total)
        self.rate, self._next_rate = state["rates"]

    def _stateful(self) -> list[Any]:
        trainer = self._trainer
        return [
            each
            for each in (*trainer.callback_handler.callbacks, trainer.control)
            if isinstance(each, ExportableState)
        ]


class LogHistory:
    """The trainer's log history, without times that each member measures itself. Apart from the rest: it grows, and
    lines between loops only add to it."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._written: tuple[int, str] = (0, "[]")

    def state_dict(self) -> dict[str, Any]:
        history = self._trainer.state.log_history
        # Each commit asks for it, and few of them have logged.
        if self._written[0] != len(history):
            told = [{n: v for n, v in log.items() if not n.endswith(_MEASURED)} for log in history]
            self._written = (len(history), json.dumps(told))
        return {"history": self._written[1]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # In place: callbacks may hold it.
        self._trainer.state.log_history[:] = json.loads(state["history"])
        self._written = (len(self._trainer.state.log_history), state["history"])


class StepEnd:
    """The callback of a committed step."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def __call__(self) -> None:
        self._trainer.end_step()
