"""What an optimizer carries from step to step outside its state where that is not committed with it, seen around its
steps. Nor do workers have the settings that a step changes on a parameter server.

The text of `step` shows attributes that it sets (`optimizer_attributes.py`). It does not show what arrays, lists,
dicts, other optimizers and objects of the program in attributes hold, nor what is deleted: that is compared, and counts
where a step reads the attribute.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import getsourcefile
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.errors import StepMisuse
from ringleader.program_text.loop_bodies import text_of
from ringleader.program_text.optimizer_attributes import text_of_steps
from ringleader.train.between_calls.findings import VariableFinding
from ringleader.train.between_calls.variables import ProgramVariables
from ringleader.train.body.saved_settings import SavedSettings
from ringleader.train.modes.mode_rules import ModeRules
from ringleader.train.state.coupled_updates import CoupledUpdates, finding_of, is_of_program
from ringleader.train.state.hidden_state import looked_at
from ringleader.train.state.optimizers.lone_steps import is_coupled
from ringleader.train.state.optimizers.own_attributes import COMMITTED, AttributePath, SeenAttribute
from ringleader.train.state.training_state import TrainingState

Seen = dict[AttributePath, SeenAttribute]

HOW = "is carried from one step of the optimizer to the next, but is not in its state_dict"
CURE = (
    "keep it in self.state[parameter], as torch's own optimizers do, or in a parameter group: plain attributes are "
    "lost in a worker that joins and after a pause"
)


class UnsavedAttributes:
    """The watch over one member's optimizers. Called from its training thread."""

    def __init__(
        self, rules: ModeRules, held: TrainingState, variables: ProgramVariables, *, matters: bool
    ) -> None:
        self._own = held.attributes
        self._variables = variables
        self._matters = matters
        # Rounds average what is in `state`, whatever else the optimizer's own `state_dict` holds.
        self._in_rounds = rules.averages
        # Servers that step parts would each have others.
        self._in_parts = rules.in_parts and not rules.servers_are_copies
        self._travel = not self._in_parts
        self._served = rules.has_servers
        # Weak: a program that makes one anew in each epoch would keep the states of all.
        self._steps: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()

    def add(self, optimizer: Optimizer) -> None:
        """Find by the text of its `step` what an optimizer that is registered will lose, and by steps of copies whether
        servers with parts make others."""
        if self._matters and not self._travel:
            text = text_of_steps(type(optimizer))
            for name, line in text.carried():
                if not text.made_once(name):
                    self._find(optimizer, name, line)
            if is_of_program(optimizer) and is_coupled(optimizer):
                self._variables.find(finding_of(optimizer))

    @contextmanager
    def watched(self, optimizer: Optimizer) -> Iterator[None]:
        """Compare before and after a step, in the second to the seventh and then ever more seldom: the first step may
        make tables.

        Raises:
            StepMisuse: on a parameter server, a step has changed settings.
        """
        number = self._steps.get(optimizer, 0)
        self._steps[optimizer] = number + 1
        if not (
            self._matters and self._in_parts and CoupledUpdates.matters(optimizer) and looked_at(number + 1)
        ):
            with self._compared(optimizer, number):
                yield
            return
        coupled = CoupledUpdates(optimizer)
        with self._compared(optimizer, number), coupled:
            yield
        if coupled.found:
            self._variables.find(finding_of(optimizer))

    @contextmanager
    def _compared(self, optimizer: Optimizer, number: int) -> Iterator[None]:
        if self._served and self._matters and number == 0:
            groups = [(SavedSettings.of(group), group) for group in optimizer.param_groups]
            yield
            _refuse_changed(optimizer, groups)
            return
        if not self._matters or not looked_at(number):
            yield
            return
        before = self._own.marks(optimizer)
        yield
        if self._own.may_keep(optimizer):
            self._compare(optimizer, before, self._own.marks(optimizer))

    def _compare(self, optimizer: Optimizer, before: Seen, now: Seen) -> None:
        travels = self._travel and self._own.sent(optimizer) is not None
        # What is in an object of the program is never sent.
        lost = {p: seen for p, seen in now.items() if not (travels and isinstance(seen.owner, Optimizer))}
        gone = {p: s for p, s in before.items() if not (travels and isinstance(s.owner, Optimizer))}
        deleted = {path: seen.owner for path, seen in gone.items() if path[-1] not in vars(seen.owner)}
        if not travels:  # since it was registered: a first step is not looked at
            deleted |= dict.fromkeys(self._own.deleted(optimizer), optimizer)
        for path, owner in deleted.items():
            if _may_read(optimizer, owner, path[-1]):
                self._find(optimizer, path[0], _line_setting(type(optimizer), path[0]))
        if lost:
            saved = _Saved(optimizer, in_rounds=self._in_rounds, in_parts=self._in_parts)
            lost = {path: seen for path, seen in lost.items() if not saved.has(seen.value)}
            self._name_lost(optimizer, before, lost)

    def _name_lost(self, optimizer: Optimizer, before: Seen, lost: Seen) -> None:
        text = text_of_steps(type(optimizer))
        for name, line in text.carried():
            seen = lost.get((name,))
            if seen is not None and (not text.made_once(name) or _has_values(seen.value)):
                self._find(optimizer, name, line)
        for path, seen in lost.items():
            shown = seen.owner is optimizer and text.known
            changed = seen.changed_inside(before.get(path)) if shown else seen.changed(before.get(path))
            if changed and _may_read(optimizer, seen.owner, path[-1]):
                self._find(optimizer, path[0], _line_setting(type(optimizer), path[0]))

    def _find(self, optimizer: Optimizer, name: str, line: str) -> None:
        self._variables.find(VariableFinding(f"{type(optimizer).__name__}.{name}", line, CURE, HOW))


def _refuse_changed(optimizer: Optimizer, groups: list[tuple[SavedSettings, dict[str, Any]]]) -> None:
    changed = next(filter(None, (saved.change(group) for saved, group in groups)), None)
    if changed is not None:
        raise StepMisuse(
            f"{type(optimizer).__name__}.step() changes the setting {changed.key!r} of a parameter group, which "
            f"happens on parameter servers and comes to no worker: members would differ.",
            hint=f"Keep it in self.state[parameter][{changed.key!r}], which servers save, or use sync: ring.",
        )


class _Saved:
    """What an optimizer's `state_dict` of its own brings to others."""

    def __init__(self, optimizer: Optimizer, *, in_rounds: bool, in_parts: bool) -> None:
        own = type(optimizer).state_dict is not Optimizer.state_dict and not in_rounds
        saved = optimizer.state_dict() if own else {}
        # Servers that hold parts give each other the states of parameters.
        tensors = torch.utils._pytree.tree_leaves(saved.get("state") if in_parts else saved)
        self._tensors = {id(leaf) for leaf in tensors if isinstance(leaf, Tensor)}
        # Of numbers a step that a parameter's state counts says nothing.
        others = {key: value for key, value in saved.items() if key not in COMMITTED and not in_parts}
        self._others = torch.utils._pytree.tree_leaves(others)

    def has(self, value: Any) -> bool:
        """Whether all of a value is in it."""
        if not (self._tensors or self._others):
            return False
        leaves = torch.utils._pytree.tree_leaves(value)
        return all(id(leaf) in self._tensors or any(_same(leaf, o) for o in self._others) for leaf in leaves)


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other) or isinstance(one, Tensor):
        return False
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def _has_values(value: Any) -> bool:
    """Whether a value may be made of gradients; whole numbers and texts in a table are sizes and flags."""
    leaves = torch.utils._pytree.tree_leaves(value)
    values = (leaf for leaf in leaves if not isinstance(leaf, nn.Parameter))
    return any(isinstance(leaf, float | complex | np.generic | np.ndarray | Tensor) for leaf in values)


def _may_read(optimizer: Optimizer, owner: Any, name: str) -> bool:
    if (
        isinstance(owner, Optimizer)
        and owner is not optimizer
        and type(owner).__module__.startswith("torch.")
    ):
        return True
    return any(text_of_steps(kind).may_read(name) for kind in {type(optimizer), type(owner)})


def _line_setting(kind: type[Optimizer], name: str) -> str:
    """ "file:line" of what sets an attribute."""
    file = getsourcefile(kind) or ""
    text = text_of(file)
    line = text.line_of(("", f".{name}"), 0) if text is not None else 0
    return f"{Path(file).name}:{line}"
