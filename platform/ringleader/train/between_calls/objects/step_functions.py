"""What those functions of a program go by that run with each step: `on_commit` callbacks, hooks of optimizers, the
functions of registered schedules.

A worker that comes later has not run them for the steps before, nor has one that was given a step. Where they keep a
count, an average or a place in a list for themselves, it goes on from another one. So these values travel as texts with
the committed state, and whoever takes that over compares its own.
"""

from collections.abc import Callable, Iterator
from inspect import unwrap
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.program_text.current_line import running_frames, running_lines, running_place
from ringleader.program_text.loop_bodies import text_of
from ringleader.program_text.program_scope import Key
from ringleader.program_text.statement_flow import MATTERS
from ringleader.program_text.variables.apart import plain
from ringleader.train.between_calls.call_variables import alike_values
from ringleader.train.between_calls.derived_weights import derived_of, values_now
from ringleader.train.between_calls.findings import VariableFinding
from ringleader.train.between_calls.objects.joined_flows import JoinedFlows
from ringleader.train.between_calls.objects.left_by_lines import left_by_lines
from ringleader.train.between_calls.objects.process_settings import process_settings
from ringleader.train.between_calls.objects.program_objects import (
    ProgramObject,
    files_of,
    objects_in,
    of_program,
)
from ringleader.train.between_calls.objects.value_kinds import KIND, layers_of, place_of_function, plain_name
from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.between_calls.value_fingerprints import ValueReader
from ringleader.train.between_calls.variables import ProgramVariables
from ringleader.train.generation.context import MemberContext
from ringleader.train.state.training_state import TrainingState

HOW = "is not what the others have, and what runs with each step goes by it"
CURE = (
    "who comes later has not run it for the steps before: go by session.global_step, or keep it with "
    "session.keep(name, object)"
)
HOOKS, LAYERS = "the set of hooks and callbacks", "the set of layers with their settings"
LINES, OVER, DUE = "the lines after the newest step", "over", "due"
"""Whether the texts of a member in a loop over steps are of after its lines behind the newest step, or of before."""
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
        # Of a loop over steps: it runs; where this member's lines were over last; where it compares, and what it had
        # before the lines there.
        self._by_steps = False
        self._over_at = (-1, 0)
        self._waits_at: tuple[int, int] | None = None
        self._before: Texts | None = None

    def state(self) -> Texts:
        """Texts of what they go by, as they stand here; those of others where lines have yet to run."""
        if self._theirs is not None:
            return self._theirs
        if not self._context.same_bits:
            return {}
        progress = self._context.progress
        within = self._by_steps and (progress.calls.offset or progress.phases)
        lines = {LINES: OVER if self._over_at == progress.stands else DUE} if within else {}
        return {name: text for name, text, _ in self._texts()} | lines

    def restore(self, state: Texts) -> None:
        """Take others' texts, to be compared once the lines before the call that they are of have run here, and those
        after the step."""
        self._theirs, self._waits_at, self._before = state, None, None
        self._arrive()

    def begin_call(self) -> None:
        """Compare as a session call begins, unless lines have yet to run, or nothing was taken over."""
        self._by_steps = False
        if self._waits_at is not None:  # of a loop that is over without the lines after that step
            self._theirs = self._waits_at = None
        self._arrive()

    def begin_steps(self) -> None:
        """Note that a loop over steps begins."""
        self._by_steps = True

    def lines_over(self) -> None:
        """Compare where the lines after a step are over, or wait for an evaluation, if others' texts are of there."""
        self._over_at = self._context.progress.stands
        if self._waits_at == self._over_at:
            self._compare()
        if self._waits_at is not None:
            self._theirs = self._waits_at = None

    def of_updates(self) -> Iterator[tuple[str, str, str]]:
        """The values that hooks of optimizers and functions of schedules go by: name, text, and "file:line" of what
        sets it. Of the objects in their reach only what the functions, and what they call there, name."""
        functions = [each for each in _functions_of_updates(self._context.held) if not _is_ours(each)]
        for name, text, line in self._of(functions, ValueReader(self._context.held, {}), only_named=True):
            yield plain_name(name), text, line

    def _arrive(self) -> None:
        theirs, stands = self._theirs, self._context.progress.stands
        if not theirs or self._sections.catches_up:
            return
        if LINES in theirs and self._over_at != stands:
            self._waits_at = stands
            due = theirs[LINES] == DUE
            self._before = {name: text for name, text, _ in self._texts()} if due else None
            return
        self._compare()
        self._theirs = None

    def _compare(self) -> None:
        theirs, before = self._theirs or {}, self._before
        self._before = None
        for name, text, finding in self._texts():
            # Where theirs are of before these lines, what the lines have changed here they have changed there.
            changed = before is not None and before.get(name) != text
            if theirs.get(name, text) != text and not changed:
                self._variables.find(finding)

    def _texts(self) -> Iterator[tuple[str, str, VariableFinding]]:
        """Each value that matters: its name, its text, and the finding where it differs."""
        held, reader = self._context.held, ValueReader(self._context.held, {})
        passing = self._variables.passing
        layers = (
            f"{number}.{layer}"
            for number, model in enumerate(held.models)
            for layer in layers_of(model, passing)
        )
        for name, parts in ((HOOKS, _hooks_of(held)), (LAYERS, layers)):
            # Of many a digest: it travels with each state that is taken over.
            text = reader.text("; ".join(parts)) or ""
            yield name, text, VariableFinding(name, f"above {running_place()}", CURE, HOW)
        functions = list(functions_of_steps(held))
        for name, text, line in (
            *process_settings(_namespaces(functions), reader),
            *self._of(functions, reader),
        ):
            yield name, text, VariableFinding(plain_name(name), line, CURE, HOW)
        yield from left_by_lines(held, passing)

    def _of(
        self, functions: list[Callable[..., Any]], reader: ValueReader, *, only_named: bool = False
    ) -> Iterator[tuple[str, str, str]]:
        """The values that these functions go by: name, text, and "file:line" of what sets it.

        Args:
            only_named: of attributes those that the functions name, also where each turn sets them first.
        """
        if not functions:
            return
        roots: list[tuple[Key, Any]] = [(MATTERS, each) for each in functions]
        roots += [(("", name), value) for each in functions for name, value in _globals_of(each).items()]
        objects = list(objects_in(roots, lambda value: _is_committed(reader, value)))
        named = _named_by(functions, objects) if only_named else None
        files = {file for each in objects for file in files_of(each.value)}
        flows = JoinedFlows((text for text in map(text_of, files) if text is not None), running_lines())
        # Of models: buffers that nobody saves, which the other reader leaves out with those that are committed.
        unsaved = ValueReader(TrainingState(), {})
        models = [each for each in objects if isinstance(each.value, nn.Module)]
        others = [each for each in objects if not isinstance(each.value, nn.Module)]
        # A forward computes these anew from committed ones: who comes later has had none yet.
        derived = {id(weight) for weight in values_now(derived_of(each.value for each in models))}
        loose = (*_schedules_of(functions), *_changed_globals(functions))
        for reads, values in (
            (reader, (*loose, *self._values_of(others, flows, named))),
            (unsaved, self._values_of(models, flows, named)),
        ):
            for name, key, value in values:
                if not flows.matters(key) or id(value) in derived:
                    continue
                line = flows.line_of(key) or "its source is not available"
                kind = reader.kind(value, self._variables.passing) if flows.is_given_on(key) else None
                for shown, text in ((name, reads.text(value)), (name + KIND, kind)):
                    if text is not None:
                        yield shown, text, line

    def _values_of(
        self, objects: list[ProgramObject], flows: JoinedFlows, named: set[str] | None
    ) -> Iterator[tuple[str, Key, Any]]:
        passing = self._variables.passing
        for each in objects:
            for shown, key, value in alike_values(each.value):
                # Turns leave what they like in an attribute that each of them sets first.
                attribute = plain(key[1]).lstrip(".")
                wanted = key[1].lstrip(".") not in passing if named is None else attribute in named
                if wanted and any(flows.matters(way) for way in each.keys):
                    name = each.name or _name_of(each.value)
                    yield (name + shown).lstrip(".:"), key, value


def _is_ours(function: Any) -> bool:
    """Whether it is none of the program's."""
    inner = _function_in(function)
    return (inner or type(function)).__module__.startswith(_OF_OTHERS)


def _named_by(functions: list[Callable[..., Any]], objects: list[ProgramObject]) -> set[str]:
    """The names in the text of these functions, and of functions and methods in their reach that they name."""
    methods: dict[str, list[CodeType]] = {}
    for each in objects:
        kinds = each.value.__mro__ if isinstance(each.value, type) else type(each.value).__mro__
        members = [member for kind in kinds for member in vars(kind).items()]
        for name, value in [(getattr(each.value, "__name__", ""), each.value), *members]:
            inner = _function_in(getattr(value, "fget", value))
            if inner is not None:
                methods.setdefault(name, []).append(inner.__code__)
    left = [inner.__code__ for each in functions if (inner := _function_in(each)) is not None]
    left += [code for each in functions for code in methods.get("__call__", []) if _function_in(each) is None]
    named: set[str] = set()
    while left:
        code = left.pop()
        new = {*code.co_names, *code.co_freevars} - named
        named |= new
        left += [each for each in code.co_consts if isinstance(each, CodeType)]
        left += [each for name in new for each in methods.get(name, ())]
    return named


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


def functions_of_steps(held: TrainingState) -> Iterator[Callable[..., Any]]:
    """The callbacks, the hooks of optimizers, and the functions of registered schedules."""
    for function in _wrapped_functions_of(held):
        # Below decorators such as torch.no_grad().
        yield unwrap(function) if isinstance(function, FunctionType) else function


def _wrapped_functions_of(held: TrainingState) -> Iterator[Callable[..., Any]]:
    yield from held.callbacks
    yield from _functions_of_updates(held)


def _functions_of_updates(held: TrainingState) -> Iterator[Callable[..., Any]]:
    """The hooks of optimizers, and the functions of registered schedules."""
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
    """The globals that a function, or the `__call__` of an object, names, also those of the program's other files
    (`state.SHARED`)."""
    function = _function_in(value) or _function_in(type(value).__call__)
    known = {} if function is None else function.__globals__
    names = () if function is None else function.__code__.co_names
    named = {name: known[name] for name in names if name in known}
    files = [
        vars(each) for each in named.values() if isinstance(each, ModuleType) and of_program(each.__name__)
    ]
    return {name: file[name] for file in files for name in names if name in file} | named


def _namespaces(functions: list[Callable[..., Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files of the functions that run, and of these, with their variables."""
    found = {frame.f_code.co_filename: frame.f_globals | frame.f_locals for frame in running_frames()}
    for function in filter(None, map(_function_in, functions)):
        found.setdefault(function.__code__.co_filename, function.__globals__)
    yield from found.items()


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
