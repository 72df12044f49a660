"""An optimizer's state as the program sees it where parameter servers keep it: workers have none of it, and of several
servers each has a part.

The program may clear it, set it, save all of it and put that back: every member does so with what it has. Values read
from it would differ by member, or be missing: reading is refused, with the line.
"""

import copy
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.optim import Optimizer

import ringleader
from ringleader.errors import StepMisuse
from ringleader.program_text.current_line import calling_line
from ringleader.train.state.training_state import TrainingState

State = MutableMapping[Any, dict[str, Any]]
OURS = str(Path(ringleader.__file__).parent)
TORCHS = str(Path(torch.optim.__file__).with_name("optimizer.py"))
CURE = (
    "With sync: ring every worker has all of it. On servers it can be cleared with optimizer.state.clear(), and saved "
    "and restored as a whole: kept = copy.deepcopy(optimizer.state_dict()), optimizer.load_state_dict(kept)."
)


class ServedOptimizerStates:
    """The states of all registered optimizers of one member.

    Args:
        on: parameter servers step the optimizers.

    """

    def __init__(self, held: TrainingState, *, on: bool) -> None:
        self._held = held
        self._on = on
        self._hidden = False

    def serve(self, on: bool) -> None:
        """Say anew whether servers step the optimizers; before the first of them is registered."""
        self._on = on

    @property
    def closed(self) -> bool:
        """Whether the program's lines run, and servers step the optimizers."""
        return self._on and self._hidden

    def add(self, optimizer: Optimizer) -> None:
        """Hook into an optimizer that is being registered. Raises StepMisuse: it has no hooks."""
        if self._on and not hasattr(optimizer, "_optimizer_load_state_dict_post_hooks"):
            raise StepMisuse(
                f"{type(optimizer).__name__} never calls torch.optim.Optimizer.__init__, so its state cannot be kept "
                f"on parameter servers.",
                hint="Call super().__init__(…) there, or register the optimizer that it wraps.",
            )
        if self._on:
            # torch may read a closed state to make a state dict, which would show the program what it holds.
            optimizer.register_state_dict_post_hook(self._saved)
            optimizer.register_load_state_dict_pre_hook(_opened_for)
            # torch puts a new, open state in place of the old one here.
            optimizer.register_load_state_dict_post_hook(self._loaded)

    def hide(self) -> None:
        """Close the states: the program's own lines go on."""
        self._hidden = True
        for optimizer, _ in self._held.optimizers if self._on else ():
            self._loaded(optimizer)

    def show(self) -> None:
        """Open the states: the session goes on."""
        self._hidden = False
        for optimizer, _ in self._held.optimizers if self._on else ():
            state: Any = optimizer.state
            if isinstance(state, ClosedState):
                optimizer.state = state.opened  # type: ignore[assignment]

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Close the states while a block of the program's runs."""
        self.hide()
        try:
            yield
        finally:
            self.show()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Open the states while a block of the session's runs, in the middle of the program's lines."""
        self.show()
        try:
            yield
        finally:
            self.hide()

    def _loaded(self, optimizer: Optimizer) -> None:
        """Close the state that the optimizer has now, maybe another one than before."""
        state: Any = optimizer.state
        if self._hidden and not isinstance(state, ClosedState):
            optimizer.state = LiveState(state, _parameters_of(optimizer))  # type: ignore[assignment]

    def _saved(self, optimizer: Optimizer, saved: dict[str, Any]) -> None:
        if self._hidden:
            parameters = _parameters_of(optimizer)
            # A `state_dict` numbers the parameters through all groups.
            numbers = list(range(len(parameters)))
            saved["state"] = ClosedState(saved["state"], numbers, tuple(map(id, parameters)))


class ClosedState(MutableMapping[Any, Any]):
    """An optimizer's state that only our code can read, as `state_dict` gives it.

    Args:
        opened: the member's own part.
        keys: those of all that any member may have.
        parameters: the optimizer's, by identity and in their order: each server keeps the state of some of them.

    Attributes:
        what: its name, for people.
        readers: the files and folders whose code may read what a member has, whatever it is.
    """

    what = "the state of an optimizer"
    readers: tuple[str, ...] = (OURS,)

    def __init__(self, opened: State, keys: list[Any], parameters: tuple[int, ...] = ()) -> None:
        self._opened = opened
        self._keys = keys
        self._parameters = parameters

    @property
    def opened(self) -> State:
        """The member's own part."""
        return self._opened

    def opened_for(self, optimizer: Optimizer) -> State:
        """The member's own part, to be loaded into an optimizer. Raises StepMisuse: it is one of other parameters."""
        if self._parameters != tuple(map(id, _parameters_of(optimizer))):
            raise StepMisuse(
                f"the state of an optimizer was loaded into one of other parameters ({calling_line()}): parameter "
                "servers keep it, each for parameters of its own, so none could hand it over.",
                hint="With sync: ring every worker has all of it. On servers, load it into an optimizer of the same "
                "parameters in the same order, copy the settings alone (rate, momentum), or begin with none: "
                "optimizer.state.clear().",
            )
        return self._opened

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._opened) if self._readable() else self._keys)

    def __getitem__(self, key: Any) -> Any:
        return self._opened[key] if self._readable() else ServedEntry(self._opened, key)

    def __setitem__(self, key: Any, values: Any) -> None:
        self._opened[key] = values.opened_for(key) if isinstance(values, ServedEntry) else values

    def __delitem__(self, key: Any) -> None:
        self._opened.pop(key, None)

    def pop(self, key: Any, *_default: Any) -> Any:
        """Remove an entry and return it, closed as it was."""
        return ClosedState({key: self._opened.pop(key, {})}, [key])[key]

    def clear(self) -> None:
        self._opened.clear()

    def __len__(self) -> int:
        return len(self._opened) if self._readable() else self._refuse()

    def __contains__(self, key: object) -> bool:
        return key in self._opened if self._readable() else self._refuse()

    def __eq__(self, other: object) -> bool:
        return self is other or self._refuse()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.what}, which parameter servers keep>"

    def __copy__(self) -> "ClosedState":
        return type(self)(self._opened, self._keys, self._parameters)

    def __deepcopy__(self, known: dict[int, Any]) -> "ClosedState":
        return ClosedState(copy.deepcopy(self._opened, known), list(self._keys), self._parameters)

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        self._refuse()

    def _readable(self) -> bool:
        return _is_read_by(self.readers)

    def _refuse(self) -> NoReturn:
        raise StepMisuse(
            f"{self.what} was read ({calling_line()}): it is kept on the parameter servers, in parts if there are "
            f"several, and workers do not have it.",
            hint=CURE,
        )


class LiveState(ClosedState):
    """`optimizer.state` of a registered optimizer while the program runs: torch reads it to make a state dict."""

    readers = (OURS, TORCHS)

    def __deepcopy__(self, known: dict[int, Any]) -> ClosedState:
        return SealedState(copy.deepcopy(self._opened, known), copy.deepcopy(self._keys, known))


class SealedState(ClosedState):
    """The state of a copy of an optimizer: the session does not know the copy, so it cannot keep it whole."""

    what = "the state of a copy of an optimizer"

    def __deepcopy__(self, known: dict[int, Any]) -> ClosedState:
        return SealedState(copy.deepcopy(self._opened, known), copy.deepcopy(self._keys, known))

    def _readable(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys) if not _is_read_by((OURS, TORCHS)) else self._refuse()


class ServedEntry(MutableMapping[str, Any]):
    """An optimizer's closed state of one parameter."""

    def __init__(self, opened: State, key: Any) -> None:
        self._closed = ClosedState(opened, [key])
        self._key = key

    def opened_for(self, key: Any) -> dict[str, Any]:
        """What the member has of it, to be put back. Raises StepMisuse: as another parameter's."""
        if key is not self._key and not (isinstance(key, int) and key == self._key):
            self._closed._refuse()
        return self._closed.opened.get(self._key, {})

    def __getitem__(self, _name: str) -> Any:
        self._closed._refuse()

    def __iter__(self) -> Iterator[str]:
        self._closed._refuse()

    def __len__(self) -> int:
        return len(self._closed)

    def __contains__(self, _name: object) -> bool:
        self._closed._refuse()

    def __setitem__(self, name: str, value: Any) -> None:
        self._closed.opened.setdefault(self._key, {})[name] = value

    def __delitem__(self, name: str) -> None:
        self._closed.opened.get(self._key, {}).pop(name, None)

    def clear(self) -> None:
        self._closed.opened.get(self._key, {}).clear()

    def __repr__(self) -> str:
        return repr(self._closed)


def _opened_for(optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any] | None:
    """What torch is to load in place of a saved state that is closed."""
    # torch reads what it is given to load item by item, as a program might: only here it is open.
    state = saved.get("state")
    return {**saved, "state": state.opened_for(optimizer)} if isinstance(state, ClosedState) else None


def _parameters_of(optimizer: Optimizer) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_read_by(readers: tuple[str, ...]) -> bool:
    """Whether the code that reads a state, past frames of this file and of `collections`, is in one of these files."""
    frame = sys._getframe(1)
    # The methods that MutableMapping adds (items, update) run in frames of a frozen module.
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, "<frozen _collections_abc>"):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(readers)
