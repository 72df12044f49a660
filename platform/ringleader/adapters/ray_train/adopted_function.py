"""Functions written for Ray Train on a session, unchanged: `framework: ray_train` in the job file.

The function is that of one worker: its world has size 1, and its loader's batch is the job's. `report`, `get_context`,
`get_dataset_shard`, `prepare_model` and `prepare_data_loader` are the session's while it runs.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn

from ringleader.adapters.library import needed
from ringleader.adapters.ray_train.calls import RayTrainCalls
from ringleader.adapters.ray_train.data import AdoptedLoader
from ringleader.adapters.ray_train.torch_loops import TorchLoops
from ringleader.adapters.session_loop import refuse
from ringleader.errors import EntrypointImport
from ringleader.train import Session
from ringleader.train.run import TrainingFunction, call_program, load_function

with needed("ray", "engine"):
    import ray.train.torch
    from ray.train.v2._internal.execution import train_fn_utils

_running: list["AdoptedFunction"] = []
"""The function that this process runs; a process has one at a time."""


def training_function(entrypoint: str) -> TrainingFunction:
    """Import a function of Ray Train, `module:function`, as one that takes the session.

    Raises:
        EntrypointImport: it cannot be imported, or takes more than the configuration.
    """
    # Before: the module may import names of Ray's.
    _serve_names()
    function = load_function(entrypoint)
    needs = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if len(needs) > 1:
        raise EntrypointImport(
            f"{entrypoint} takes {', '.join(needs)}, and a function of Ray Train takes its configuration, or nothing.",
            hint="Give it one parameter, which gets `params` of the job file.",
        )

    @wraps(function)
    def train(session: Session) -> None:
        AdoptedFunction(session).run(function, [dict(session.params)] if needs else [])

    return train


class AdoptedFunction:
    """One function of Ray Train on one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.loops = TorchLoops(session)

    def run(self, function: Callable[..., Any], given: list[Any]) -> None:
        """Run it to its end."""
        with self._current(), self.loops.served():
            call_program(function, *given)

    @contextmanager
    def _current(self) -> Iterator[None]:
        before = train_fn_utils._train_fn_utils
        train_fn_utils.set_train_fn_utils(RayTrainCalls(self.session, self.loops))
        _running.append(self)
        try:
            yield
        finally:
            _running.pop()
            train_fn_utils.set_train_fn_utils(before)

    def prepare_model(
        self,
        model: nn.Module,
        move_to_device: Any = True,
        parallel_strategy: str | None = "ddp",
        parallel_strategy_kwargs: dict[str, Any] | None = None,
    ) -> nn.Module:
        """Register a model. It is its own `module`: programs look there for what a wrapper would hold."""
        if parallel_strategy == "fsdp":
            refuse("prepare_model(parallel_strategy='fsdp')", "A session splits no model: leave it out.")
        if not any(model is known for known in self.loops.models):
            self.loops.register(model)
        if not hasattr(model, "module"):
            # Past `__setattr__`, which would make it a part of itself.
            model.__dict__["module"] = model
        return model

    def prepare_data_loader(
        self,
        data_loader: Any,
        add_dist_sampler: bool = True,
        move_to_device: bool = True,
        auto_transfer: bool = True,
    ) -> AdoptedLoader:
        """A loader whose loops are the session's where the models train, and plain ones where they evaluate."""
        return AdoptedLoader(self.loops, data_loader)

    def clip_grad_norm_(self, *given: Any, **named: Any) -> torch.Tensor:
        return self.loops.clip_grad_norm_(*given, **named)

    def get_device(self) -> torch.device:
        return self.session.device

    def get_devices(self) -> list[torch.device]:
        return [self.session.device]


_SERVED = {
    **dict.fromkeys(("prepare_model", "prepare_data_loader", "get_device", "get_devices"), ray.train.torch),
    "clip_grad_norm_": torch.nn.utils,
}
"""Functions that the running function is answered, by name, with the module that programs import them from."""


def running_session() -> Session:
    """The session of the function that runs. Not for programs: measurements look at it."""
    return _running[-1].session


def _serve_names() -> None:
    """Have these functions lead to the one that runs, and where none does to what they were; in modules that have
    imported them before, too."""
    for name, home in _SERVED.items():
        own = getattr(home, name)
        served = own if hasattr(own, "ringleader_serves") else _served(name, own)
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is own:
                setattr(module, name, served)


def _served(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def call(*given: Any, **named: Any) -> Any:
        return (getattr(_running[-1], name) if _running else own)(*given, **named)

    call.ringleader_serves = name  # type: ignore[attr-defined]
    return call
