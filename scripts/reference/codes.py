"""The page of codes: problems of the API, reasons for failing and for waiting, states, and errors in Python."""

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

from reference.docstrings import summary
from reference.markdown import code, page, prose, sentence, table
from reference.sources import Module, called, modules, template_of, text_of

LEAD = """Codes are stable: programs may compare them. Messages and hints are for people, and may change. `…` stands
for text that is filled in."""
PROBLEMS = """The `code` of an `application/problem+json` body, with its HTTP status and its default hint; a response
may carry a more specific one."""
FAILED = """`reason.code` of a job that has failed. After a failure of the cluster, which is marked, another attempt is
made within `max_failures`."""
WAITING = """`pending_reason.code` of a job that waits, or whose supervisor is silent; `reason.code` of a job that
was paused or cancelled."""
STATES = """The `state` of a job, with the states that may follow. If none may follow, the job has ended."""
PYTHON = """Errors that the SDK, the command line and the engine raise, each with a `code` and a `hint`."""
REASONS = {
    "entrypoint_import": "The training function cannot be imported.",
    "entrypoint_raised": "The program raised an exception, or misused the session.",
    "no_step": "The training function returned without committing a step.",
    "nonfinite_loss": "The loss over all rows of a step is NaN or infinite.",
    "out_of_memory": "A worker ran out of memory.",
    "requirements_failed": "The job's packages cannot be installed on a node.",
    "no_device": "A worker was given no device of the kind that the job asks for.",
    "min_workers_lost": "More workers died before they committed a step than `max_failures` allows.",
    "max_runtime": "`max_runtime_s` is used up.",
    "secret_missing": "A secret that the job names no longer exists.",
    "checkpoint_unreadable": "The checkpoint or weights to start from cannot be read.",
    "platform_error": "The platform or the cluster failed; the message says how.",
}
"""The reasons for failing in words; a test holds them and `wire.states.Reason` together."""


PASSED_ON = frozenset(
    {
        ("api/ringleader_api/reconciling/launcher.py", "error.code"),
        ("api/ringleader_api/reconciling/starter.py", "error.code"),
        ("api/ringleader_api/reconciling/sweeping.py", "refused.code"),
    }
)
"""Reasons that pass on the code of an error."""

NOT_OF_USERS = (
    "ringleader.bench.",
    "ringleader.cli.demo.",
    "ringleader.comm.transports.nccl.",
    # They need libraries that the set-up does not install, and have no errors of their own.
    "ringleader.adapters.",
)
"""Modules whose errors no user meets, or that need a device."""


@dataclass(frozen=True, slots=True)
class Given:
    """A reason as the code gives it: its message and hint, with `…` for values."""

    code: str
    message: str
    hint: str


def codes_page() -> str:
    from ringleader.wire.states import EDGES, RETRIED, Reason, State
    from ringleader_api.hints import HINTS

    status = problem_statuses()
    problems = [
        (code(name), ", ".join(map(str, sorted(status[name]))), prose(HINTS[name])) for name in sorted(HINTS)
    ]
    failed = [(code(one), "yes" if one in RETRIED else "", prose(REASONS[one])) for one in Reason]
    waiting = [(code(one.code), prose(sentence(one.message)), prose(one.hint)) for one in reasons()]
    # In the order of their declaration: a set has none.
    states = [(code(one), ", ".join(code(to) for to in State if to in EDGES[one])) for one in State]
    errors = [(code(name), code(kind), words) for name, kind, words in errors_in_python()]
    return page(
        "Codes",
        LEAD,
        f"## Codes of problems\n\n{PROBLEMS}\n\n" + table(("code", "status", "hint"), problems),
        f"## Reasons for failing\n\n{FAILED}\n\n" + table(("code", "the cluster's", "what it says"), failed),
        f"## Reasons for waiting\n\n{WAITING}\n\n" + table(("code", "message", "hint"), waiting),
        f"## States of a job\n\n{STATES}\n\n" + table(("state", "may become"), states),
        f"## Codes of errors in Python\n\n{PYTHON}\n\n" + table(("code", "error", "what it says"), errors),
    )


def reasons() -> list[Given]:
    """The reasons other than those for failing, in the order of their codes."""
    from ringleader.wire.states import Reason

    found = set()
    for module, words in _whys():
        name = text_of(words["code"], module)
        if name is not None and name not in set(Reason):
            hint = template_of(words["hint"]) if "hint" in words else ""
            found.add(Given(name, template_of(_text(words["message"])), hint))
    return sorted(found, key=lambda one: (one.code, one.message, one.hint))


def unread() -> list[tuple[str, str]]:
    """Reasons whose code cannot be told from the code, and which are not known for that: (file, expression)."""
    found = {
        (module.file, ast.unparse(words["code"]))
        for module, words in _whys()
        if text_of(words["code"], module) is None
    }
    return sorted((file, shown) for file, shown in found - PASSED_ON if not shown.startswith("Reason."))


def _whys() -> Iterator[tuple[Module, dict[str, ast.expr]]]:
    """Where a reason is made: its arguments by name. One that is read from the store has none of its own."""
    for module in modules().values():
        if module.name.startswith("ringleader_api"):
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call) and called(node) == "Why":
                    words = {word.arg: word.value for word in node.keywords if word.arg}
                    if "code" in words:
                        yield module, words


def problem_statuses() -> dict[str, set[int]]:
    """The HTTP statuses of every code of a problem that has a hint."""
    from ringleader_api.app import _STATUS
    from ringleader_api.hints import HINTS
    from ringleader_api.problems import _CODES, Refused
    from ringleader_api.store.whole import DatabaseDamaged, DatabaseUnavailable, DiskFull

    _import("ringleader_api")
    found: dict[str, set[int]] = {name: set() for name in HINTS}
    for kind in _below(Refused):
        found.setdefault(kind.code, set()).add(kind.status)
    for kind, status in _STATUS.items():
        found.setdefault(kind.code, set()).add(status)
    for name, status in _raised():
        found.setdefault(name, set()).add(status)
    for kind in (DatabaseUnavailable, DatabaseDamaged, DiskFull):
        found.setdefault(kind.code, set()).add(503)
    for status in HTTPStatus:
        name = _CODES.get(status) or status.phrase.lower().replace(" ", "_")
        if name in found and not found[name]:
            found[name].add(status.value)
    # What no table knows is a mistake of the control plane's own.
    return {name: statuses or {500} for name, statuses in found.items()}


def errors_in_python() -> Iterator[tuple[str, str, str]]:
    """(code, class, what it says) of each error that has a code of its own."""
    from ringleader.errors import RingleaderError

    _import("ringleader", but=NOT_OF_USERS)
    for kind in sorted(_below(RingleaderError), key=lambda one: (one.code, one.__name__)):
        home = f"{kind.__module__}."
        ours = home.startswith("ringleader.") and not home.startswith(NOT_OF_USERS)
        if (
            ours
            and kind is not RingleaderError
            and "code" in vars(kind)
            and not kind.__name__.startswith("_")
        ):
            yield str(kind.code), kind.__name__, summary(inspect.getdoc(kind) or "")


def _raised() -> Iterator[tuple[str, int]]:
    """Codes that are given where a problem is made: (code, status)."""
    from ringleader_api.problems import Refused, Unprocessable

    for module in modules().values():
        if not module.name.startswith("ringleader_api"):
            continue
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call) or called(node) == "Why":
                continue
            name = next((text_of(word.value, module) for word in node.keywords if word.arg == "code"), None)
            if not name:
                continue
            kind = getattr(importlib.import_module(module.name), called(node), None)
            if isinstance(kind, type) and issubclass(kind, Refused):
                yield name, kind.status
            elif called(node) == "wrong_key":
                yield name, Unprocessable.status
            elif node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, int):
                yield name, node.args[0].value


def _text(node: ast.expr) -> ast.expr:
    """The string of a message that is cut to a length: `"…"[:200]`."""
    return node.value if isinstance(node, ast.Subscript) else node


def _below(root: type) -> Iterator[type]:
    """The class, and all that inherit from it."""
    yield root
    for kind in root.__subclasses__():
        yield from _below(kind)


def _import(package: str, but: tuple[str, ...] = ()) -> None:
    """Import every module of a package, so that all its classes are there."""
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if (
            not f"{module.name}.".startswith(but)
            and "migrations" not in module.name
            and not module.name.endswith("__main__")
        ):
            importlib.import_module(module.name)
