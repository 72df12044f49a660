"""The attributes of a program's objects that turns of the running loop change, and which of them they hand on.

The functions that a turn calls may stand in other files than the loop: in those of the classes of the objects at hand.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from ringleader.program_text.current_line import BELOW
from ringleader.program_text.dataset_caches import reads_rows
from ringleader.program_text.loop_bodies import SourceText, text_of
from ringleader.program_text.program_scope import Key
from ringleader.program_text.statement_order import Loop
from ringleader.program_text.turn_order import CarriedAttribute, TurnUses, read_for_losses, uses_in
from ringleader.train.between_calls.objects.joined_flows import JoinedFlows
from ringleader.train.between_calls.objects.program_objects import ProgramObject, attributes_of, is_users
from ringleader.train.between_calls.objects.program_objects import objects_in as reached

MOST_DEPTH = 3
MISSING = object()


@dataclass(frozen=True, slots=True)
class HeldAttribute:
    """An attribute of an object that turns change and hand on.

    Attributes:
        name: as a finding tells it.
        line: "file:line" of what changes it.
        in_forward: a model's forward does.
    """

    holder: Any
    attribute: str
    name: str
    line: str
    in_forward: bool

    @property
    def value(self) -> Any:
        """What it is now, in the object or in its class; `MISSING` where neither has it."""
        if isinstance(self.holder, ModuleType):
            return vars(self.holder).get(self.attribute, MISSING)
        found = attributes_of(self.holder).get(self.attribute, MISSING)
        return getattr(type(self.holder), self.attribute, MISSING) if found is MISSING else found


class TurnAttributes:
    """The attributes in the turns of one loop.

    Args:
        text: of the file that has the loop.
        variables: what is in reach there, by name.
        kept: what the session keeps, by identity.

    Attributes:
        passing: the attributes that a turn sets before it reads them.
        handed_on: those that a turn reads before it sets them, of the objects in reach.
        read: those that go into its loss as it finds them, which nothing in the text changes, likewise.
        tables: those that are filled as tables: an entry that is there stays as it is.
        hooked: those that forward hooks set before a turn reads them, where these hooks run.
    """

    def __init__(
        self, text: SourceText, loop: Loop, variables: Mapping[str, Any], kept: Collection[int]
    ) -> None:
        scope = text.scope_at(loop.lineno)
        by_key = {scope.key(name): value for name, value in variables.items()}
        reachable = list(_reachable(by_key, kept))
        objects = [(each.name, each.value) for each in reachable]
        files = {file for _, each in objects for file in _files_of(type(each))}
        others = {each for each in map(text_of, files) if each is not None and each is not text}
        texts = (text, *sorted(others, key=lambda each: each.file))
        kinds = {kind.__name__ for _, each in objects for kind in type(each).__mro__}
        reached = (frozenset(text.together_with(scope.name)),)
        uses, read = _uses(
            loop, texts, reached + tuple(frozenset(_scopes(each, kinds)) for each in texts[1:])
        )
        self.passing = uses.passing
        held = {id(holder): (name, holder) for name, holder in objects}.values()
        flows = JoinedFlows(texts)
        say = _with_say(by_key | dict(_entries(text, by_key)), reachable, flows)
        changed = list(_held(uses.carried, [each for each in held if id(each[1]) in say], texts))
        self.handed_on = [each for each in changed if not flows.is_table(("", f".{each.attribute}"))]
        # What forwards leave in torch's own layers, and data sets keep of rows, is seen in other ways.
        own = [each for each in held if not _is_seen_elsewhere(type(each[1]))]
        tables = {
            name: each for name, each in {**uses.carried, **read}.items() if flows.is_table(("", f".{name}"))
        }
        self.tables = list(_held(tables, own, texts))
        as_found = {name: each for name, each in read.items() if name not in tables}
        self.read = list(_held({n: each for n, each in as_found.items() if not each.by_hook}, own, texts))
        self.hooked = list(_held({n: each for n, each in as_found.items() if each.by_hook}, own, texts))

    def leave_out(self, shown: Callable[[HeldAttribute], bool]) -> None:
        """Leave out what a turn changes for people alone."""
        self.handed_on = [each for each in self.handed_on if not shown(each)]
        self.read = [each for each in self.read if not shown(each)]


def _is_seen_elsewhere(kind: Any) -> bool:
    return kind.__module__.startswith("torch.") or reads_rows(kind)


def _held(
    attributes: Mapping[str, CarriedAttribute],
    objects: Iterable[tuple[str, Any]],
    texts: tuple[SourceText, ...],
) -> Iterator[HeldAttribute]:
    """These attributes of those of the objects that have them."""
    for name, holder in objects if attributes else ():
        # Of a file, too, what others set there: `config.scale = loss.item()`.
        has = vars(holder) if isinstance(holder, ModuleType) else attributes_of(holder)
        for attribute, each in attributes.items():
            if attribute in has or (is_users(holder) and hasattr(type(holder), attribute)):
                line = f"{Path(texts[each.file].file).name}:{each.line}"
                yield HeldAttribute(holder, attribute, f"{name}.{attribute}", line, each.in_forward)


def objects_in(variables: Mapping[str, Any], kept: Collection[int]) -> Iterator[tuple[str, Any]]:
    """The objects of the program's classes, the modules inside of models and Python's own, each with its name."""
    for each in _reachable({("", name): value for name, value in variables.items()}, kept):
        yield each.name, each.value


def _reachable(variables: Mapping[Key, Any], kept: Collection[int]) -> Iterator[ProgramObject]:
    yield from reached(variables.items(), lambda value: id(value) in kept, depth=MOST_DEPTH)


def _with_say(variables: Mapping[Key, Any], objects: Sequence[ProgramObject], flows: JoinedFlows) -> set[int]:
    """The identities of those objects that some variable on a way to them lets have a say in training."""
    ways: dict[int, set[Key]] = {id(each.value): set(each.keys) for each in objects}
    attributes = [part for each in objects for part in attributes_of(each.value).items()]
    for key, value in (*variables.items(), *((("", f".{name}"), part) for name, part in attributes)):
        if id(value) in ways:
            ways[id(value)].add(key)
    # `self` stands for whatever its class does.
    named = {holder: {key for key in keys if key[1] != "self"} for holder, keys in ways.items()}
    return {
        holder
        for holder, keys in named.items()
        if not keys or any(flows.has_say(key, by_methods=True) for key in keys)
    }


def _entries(text: SourceText, variables: Mapping[Key, Any]) -> Iterator[tuple[Key, Any]]:
    """The entries of dicts that the text takes for variables of their own: `tools["meter"]`."""
    for key, value in variables.items():
        if isinstance(value, dict):
            yield from ((own, value[name]) for name, own in text.entries_of(key).items() if name in value)


@lru_cache(maxsize=64)
def _uses(
    loop: Loop, texts: tuple[SourceText, ...], scopes: tuple[frozenset[str], ...]
) -> tuple[TurnUses, Mapping[str, CarriedAttribute]]:
    flows = [text.flows for text in texts]
    return uses_in(loop, flows, scopes), read_for_losses(loop, flows, scopes)


def _scopes(text: SourceText, kinds: set[str]) -> Iterator[str]:
    """The outermost functions of a file, and those classes that objects at hand have."""
    for top, scope in text.flows.scopes.items():
        if not isinstance(top, ast.ClassDef) or scope.name in kinds:
            yield scope.name


def _files_of(kind: type) -> Iterator[str]:
    for each in kind.__mro__:
        file = str(getattr(sys.modules.get(each.__module__), "__file__", "") or "")
        if file and not file.startswith(BELOW):
            yield file


def in_reach(frame: FrameType) -> dict[str, Any]:
    """The function's variables, and the globals that it names."""
    names = frame.f_code.co_names
    return _locals(frame) | {name: frame.f_globals[name] for name in names if name in frame.f_globals}


def _locals(frame: FrameType) -> dict[str, Any]:
    """A copy of its variables. Up to Python 3.12 the frame would hold on to them, a batch or an iterator among them."""
    given = frame.f_locals
    copied = dict(given)
    # From 3.13 on it is a proxy that writes through, and a module's are its own globals: neither may be
    # cleared.
    if type(given) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        given.clear()
    return copied
