"""The page of a job's events: their names and data as the code sends them.

Events are found where they are sent: at calls of the few functions that do it. A call whose event cannot be read off
the code is a mistake here unless `PASSED_ON` names it, so that none is missed.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from reference.event_words import EVENTS
from reference.markdown import code, page, prose, sentence, table
from reference.sources import Module, called, calls, functions, modules, text_of

LEAD = """A job's history, numbered: `GET /api/v1/jobs/{job_id}/events`, `job.events()`, `ringleader events`. Each
has a `type`, the time `at`, the `attempt`, the `generation`, and its `data`, whose fields are listed here. New
fields and new events may come; those that are there keep their meaning."""
KIND = re.compile(r"[a-z]+\.[a-z_]+|warning|recovered")
SENDERS = {"Report": 0, "event": 0, "say": 0, "tell": 0, "_tell": 0, "record": 2, "_told": 2}
"""By function that sends an event, the argument that is its type; its data is the last one."""
PASSED_ON = frozenset(
    {
        ("api/ringleader_api/services/records/ingest.py", "item.type"),
        ("api/ringleader_api/store/moves.py", "f'job.{to.value}'"),
        ("platform/ringleader/elastic/facts.py", "f'worker.{what}'"),
        ("platform/ringleader/runtime/records/record_log.py", "happened.kind"),
        ("platform/ringleader/runtime/records/record_log.py", "kind"),
        ("platform/ringleader/runtime/supervisor/attempt.py", "report.type"),
        ("platform/ringleader/runtime/worker/member.py", "kind"),
        ("platform/ringleader/train/generation/settled_records.py", "kind"),
    }
)
"""Calls that pass on what another one has named: (file, argument). The states of `job.…` are those of `wire.states`,
the words behind `worker.` are arguments of `_told`."""
OTHERS = frozenset(
    {
        ("platform/ringleader/runtime/worker/account_process.py", "kind"),
        ("platform/ringleader/train/modes/token_ring/gossip.py", "item"),
    }
)
"""Calls of functions with these names that send no event."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An event that a call sends.

    Attributes:
        kind: its type; None where it is an expression, `shown`.
        fields: of its data, as far as the call shows them.
    """

    file: str
    kind: str | None
    shown: str
    fields: tuple[str, ...]


def events_page() -> str:
    rows = {
        kind: table(
            ("field", "what it says"), [(code(name), prose(words)) for name, words in told.fields.items()]
        )
        for kind, told in EVENTS.items()
    }
    parts = [
        f"## {kind}\n\n{prose(sentence(EVENTS[kind].says))}\n\n{rows[kind]}".strip()
        for kind in sorted(EVENTS)
    ]
    return page("Events", LEAD, *parts)


def sent() -> Iterator[Sent]:
    """Every event that the code sends."""
    from ringleader.wire.states import State

    yield from (Sent("api/ringleader_api/store/moves.py", f"job.{state.value}", "", ()) for state in State)
    for module in modules().values():
        for function in functions(module):
            for call in calls(function):
                yield from _sent(module, function, call)


def unread() -> list[tuple[str, str]]:
    """Calls that send an event which cannot be read off the code, and are not known for that."""
    found = {(one.file, one.shown) for one in sent() if one.kind is None}
    return sorted(found - PASSED_ON - OTHERS)


def _sent(module: Module, function: ast.AST, call: ast.Call) -> Iterator[Sent]:
    sender = called(call)
    place = SENDERS.get(sender)
    if place is None or len(call.args) <= place or (sender == "record" and len(call.args) < 5):
        return
    kinds, data = _choices(call.args[place], function), _choices(call.args[-1], function)
    for number, node in enumerate(kinds):
        # The data of a choice of events is a choice, too: one each.
        built = [data[number]] if len(kinds) == len(data) else [call.args[-1]]
        fields = tuple(sorted(set().union(*(_fields(one, function, module) for one in built))))
        text = text_of(node, module)
        if sender == "_told":
            text = f"worker.{text}" if text is not None else None
            fields = ("worker", "rank", "step", *(word.arg for word in call.keywords if word.arg))
        if text is not None and KIND.fullmatch(text):
            yield Sent(module.file, text, "", fields)
        elif text is None and len(call.args) == place + 3:  # (type, generation or time, data)
            yield Sent(module.file, None, ast.unparse(node), fields)


def _choices(node: ast.expr, function: ast.AST) -> list[ast.expr]:
    """An expression, or both of a choice; of a name those that the function gives to it."""
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.Name):
        given = [
            one.value for one in ast.walk(function) if isinstance(one, ast.Assign) and _names(one, node.id)
        ]
        return [part for value in given for part in _choices(value, function)] or [node]
    return [node]


def _fields(node: ast.expr, function: ast.AST, module: Module) -> set[str]:
    """The keys of a dict as it is built in a function; of what comes from elsewhere none."""
    if isinstance(node, ast.Dict):
        found = set()
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                found |= _fields(value, function, module)
            elif (text := text_of(key, module)) is not None:
                found.add(text)
        return found
    if isinstance(node, ast.BinOp):
        return _fields(node.left, function, module) | _fields(node.right, function, module)
    if isinstance(node, ast.IfExp):
        return _fields(node.body, function, module) | _fields(node.orelse, function, module)
    if isinstance(node, ast.Name):
        return _built(node.id, function, module)
    return set()


def _built(name: str, function: ast.AST, module: Module) -> set[str]:
    found: set[str] = set()
    for one in ast.walk(function):
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None:
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            for target in targets:
                if isinstance(target, ast.Name) and target.id == name and not _is_name(one.value, name):
                    found |= _fields(one.value, function, module)
                elif isinstance(target, ast.Subscript) and _is_name(target.value, name):
                    found |= {text for text in [text_of(target.slice, module)] if text}
    return found


def _names(node: ast.Assign, name: str) -> bool:
    return any(_is_name(target, name) for target in node.targets)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
