"""What those functions of a program go by that run with each step: `on_commit` callbacks, hooks of optimizers, the
functions of registered schedules.

A worker that comes later has not run them for the steps before, nor has one that was given a step. Where they keep a
count, an average or a place in a list for themselves, it goes on from another one. So these values travel as texts with
the committed state, and whoever takes that over compares its own.
"""

from collections.abc import Callable, Collection, Iterator
from inspect import unwrap
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.program_text.current_line import running_place
from ringleader.program_text.loop_bodies import text_of
from ringleader.program_text.program_scope import Key
from ringleader.program_text.statement_flow import MATTERS
from ringleader.train.between_calls.call_variables import alike_values
from ringleader.train.between_calls.findings import VariableFinding
from ringleader.train.between_calls.objects.joined_flows import JoinedFlows
from ringleader.train.between_calls.objects.program_objects import ProgramObject, files_of, objects_in
from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.between_calls.value_fingerprints import ValueReader, place_of_function
from ringleader.train.between_calls.variables import ProgramVariables
from ringleader.train.generation.context import MemberContext
from ringleader.train.state.training_state import TrainingState

HOW = "is not what the others have, and what runs with each step goes by it"
CURE = (
    "who comes later has not run it for the steps before: go by session.global_step, or keep it with "
    "session.keep(name, object)"
)
HOOKS, LAYERS = "the set of hooks and callbacks", "the set of layers with their settings"
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_HOOKS_OF_MODELS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_post_accumulate_grad_hooks",
)
_OF_OTHERS = ("ringleader.", "torch.")
Texts = dict[str, str]


class StepFunctions:
    """One member's functions that run with each step. Called from its training thread."""

    def __init__(
        self, context: MemberContext, sections: ProgramSections, variables: ProgramVariables
    ) -> None:
        self._context = context
        self._sections = sections
        self._variables = variables
        self._theirs: Texts | None = None

    def state(self) -> Texts:
        """Texts of what they go by, as they stand here; those of others where lines have yet to run."""
        if self._theirs is not None:
            return self._theirs
        return {name: text for name, text, _ in self._texts()} if self._context.same_bits else {}

    def restore(self, state: Texts) -> None:
        """Take others' texts, to be compared once the lines before the call that they are of have run here."""
        self._theirs = state
        self.arrive()

    def arrive(self) -> None:
        """Compare, unless lines have yet to run, or nothing was taken over."""
        theirs = self._theirs
        if not theirs or self._sections.catches_up:
            return
        self._theirs = None
        for name, text, line in self._texts():
            if theirs.get(name, text) != text:
                self._variables.find(VariableFinding(name, line, CURE, HOW))

    def _texts(self) -> Iterator[tuple[str, str, str]]:
        """Each value that matters: its name, its text, and "file:line" of what sets it."""
        held, reader = self._context.held, ValueReader(self._context.held, {})
        layers = _layers_of(held, self._variables.passing)
        for name, parts in ((HOOKS, _hooks_of(held)), (LAYERS, layers)):
            # Of many a digest: it travels with each state that is taken over.
            yield name, reader.text("; ".join(parts)) or "", f"above {running_place()}"
        functions = list(_functions_of(held))
        if not functions:
            return
        roots: list[tuple[Key, Any]] = [(MATTERS, each) for each in functions]
        roots += [(("", name), value) for each in functions for name, value in _globals_of(each).items()]
        objects = list(objects_in(roots, lambda value: _is_committed(reader, value)))
        files = {file for each in objects for file in files_of(each.value)}
        flows = JoinedFlows(text for text in map(text_of, files) if text is not None)
        # Of models: buffers that nobody saves, which the other reader leaves out with those that are committed.
        unsaved = ValueReader(TrainingState(), {})
        models = [each for each in objects if isinstance(each.value, nn.Module)]
        others = [each for each in objects if not isinstance(each.value, nn.Module)]
        loose = (*_schedules_of(functions), *_changed_globals(functions))
        for reads, values in (
            (reader, (*loose, *self._values_of(others, flows))),
            (unsaved, self._values_of(models, flows)),
        ):
            for name, key, value in values:
                text = reads.text(value) if flows.matters(key) else None
                if text is not None:
                    yield name, text, flows.line_of(key) or "its source is not available"

    def _values_of(self, objects: list[ProgramObject], flows: JoinedFlows) -> Iterator[tuple[str, Key, Any]]:
        passing = self._variables.passing
        for each in objects:
            for shown, key, value in alike_values(each.value):
                # Turns leave what they like in an attribute that each of them sets first.
                if key[1].lstrip(".") not in passing and any(flows.matters(way) for way in each.keys):
                    name = each.name or _name_of(each.value)
                    yield (name + shown).lstrip(".:"), key, value


def _hooks_of(held: TrainingState) -> Iterator[str]:
    """The program's functions that run with a model's forward or backward, with an optimizer's or a schedule's step, or
    with a commit, each with the name of what it is put on."""
    for name, kind, hook in _registered(held):
        function = unwrap(getattr(hook, "__func__", hook))
        if isinstance(function, FunctionType) and not function.__module__.startswith(_OF_OTHERS):
            yield f"{name} {kind} {place_of_function(function)}"


def _registered(held: TrainingState) -> Iterator[tuple[str, str, Any]]:
    """Hooks and callbacks, each with what it is put on and as what."""
    parts: list[tuple[str, Any, tuple[str, ...]]] = []
    for number, model in enumerate(held.models):
        named: list[tuple[str, Any]] = [*model.named_modules(), *model.named_parameters()]
        parts += [(f"{number}.{name}", part, _HOOKS_OF_MODELS) for name, part in named]
    parts += [(f"optimizer {number}", each, _HOOKS) for number, (each, _) in enumerate(held.optimizers)]
    for name, part, kinds in parts:
        for kind in kinds:
            yield from ((name, kind, hook) for hook in (getattr(part, kind, None) or {}).values())
    for number, scheduler in enumerate(held.schedulers):
        yield from ((f"schedule {number}", "", each) for each in getattr(scheduler, "lr_lambdas", ()))
    yield from (("", "on_commit", each) for each in held.callbacks)


def _layers_of(held: TrainingState, passing: Collection[str]) -> Iterator[str]:
    """The layers of the models by class, those of torch with their settings: `dropout.p`, `norm.eps`.

    Args:
        passing: attributes that each turn sets first.
    """
    for number, model in enumerate(held.models):
        for name, layer in model.named_modules():
            kind = type(layer)
            # Attributes of a program's own layers may be what its forwards leave, on each worker others.
            own = vars(layer) if kind.__module__.startswith("torch.nn.modules.") else {}
            settings = [
                f"{key}={value!r}"
                for key, value in sorted(own.items())
                if isinstance(value, int | float | str | tuple) and not key.startswith("_")
                if key != "training" and key not in passing
            ]
            yield " ".join([f"{number}.{name} {kind.__module__}.{kind.__qualname__}", *settings])


def _functions_of(held: TrainingState) -> Iterator[Callable[..., Any]]:
    for function in _wrapped_functions_of(held):
        # Below decorators such as torch.no_grad().
        yield unwrap(function) if isinstance(function, FunctionType) else function


def _wrapped_functions_of(held: TrainingState) -> Iterator[Callable[..., Any]]:
    yield from held.callbacks
    for optimizer, _ in held.optimizers:
        for hooks in _HOOKS:
            yield from getattr(optimizer, hooks, {}).values()
        if "step" in vars(optimizer):  # one that the program has put in its place
            yield optimizer.step
    left: list[Any] = list(held.schedulers)
    while left:
        scheduler = left.pop()
        yield from getattr(scheduler, "lr_lambdas", ())
        left += getattr(scheduler, "_schedulers", ())  # of those that chain others


def _name_of(function: Any) -> str:
    """The name of a callable object; none of a function, whose variables have names of their own."""
    return "" if isinstance(function, FunctionType) else type(function).__name__


def _function_in(value: Any) -> FunctionType | None:
    function = value.__func__ if isinstance(value, MethodType) else getattr(value, "func", value)
    return unwrap(function) if isinstance(function, FunctionType) else None


def _globals_of(value: Any) -> dict[str, Any]:
    """The globals that a function names."""
    function = _function_in(value)
    known = {} if function is None else function.__globals__
    names = () if function is None else function.__code__.co_names
    return {name: known[name] for name in names if name in known}


def _schedules_of(functions: list[Callable[..., Any]]) -> Iterator[tuple[str, Key, Any]]:
    """The schedules whose `step` is one of the functions."""
    for each in functions:
        owner = getattr(each, "__self__", None)
        if isinstance(owner, LRScheduler):
            yield type(owner).__name__, MATTERS, owner


def _changed_globals(functions: list[Callable[..., Any]]) -> Iterator[tuple[str, Key, Any]]:
    """Those of them that functions of their file change."""
    for each in functions:
        function = _function_in(each)
        text = None if function is None else text_of(function.__code__.co_filename)
        for name, value in _globals_of(each).items():
            if text is not None and name in text.changing_globals and not isinstance(value, ModuleType):
                yield name, ("", name), value


def _is_committed(reader: ValueReader, value: Any) -> bool:
    """Whether the session commits all of the value, or it is one of ours. What a model, or a kept object, has beside
    its `state_dict` nobody commits."""
    ours = type(value).__module__.startswith("ringleader.")
    return ours or (isinstance(value, Optimizer) and reader.is_left_out(value))
