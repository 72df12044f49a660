"""The entrypoint looked up in the working directory: its file is parsed and never imported."""

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.errors import SpecInvalid
from ringleader.parsing import parse
from ringleader.spec.job import MAX_WHY, JobSpec
from ringleader.spec.program.adoption import Choice, choice_of, choice_of_script, framework_of, obstacles
from ringleader.spec.program.framework import SCRIPT_FORM, Framework, argv_of, is_script

MOST_NAMED = 10
TAKES = {
    "native": "a function that takes the session, def train(session)",
    "ray_train": "a function of Ray Train, def train_func(config) or def train_func()",
}
"""By framework, the functions that it takes."""
OPEN_ENDED = frozenset({"globals", "vars", "exec", "eval", "setattr"})
"""Builtins by which a module may define names that its text does not show."""
ELSEWHERE = (b"__path__", b"sys.modules")
"""Words in the text of a package that may find its modules in other places."""


@dataclass(slots=True)
class _Names:
    """The names that a module's text defines at its top level; `open` where it may have more.

    Attributes:
        why_not: by name, for each of its definitions the reason why it is no training function; empty where it may be
            one.
    """

    functions: list[str] = field(default_factory=list)
    why_not: dict[str, list[str]] = field(default_factory=dict)
    open: bool = False

    def leave_open(self) -> None:
        """The module may define names that its text does not show."""
        self.open = True

    def add(self, name: str, why_not: str = "") -> None:
        self.why_not.setdefault(name, []).append(why_not)


def check_entrypoint(spec: JobSpec, folder: Path) -> bool:
    """Check that the function is in the module's file, where that lies in the working directory `folder`, and takes a
    session.

    Returns:
        Whether the module is there. One that is not may be installed on the nodes.

    Raises:
        SpecInvalid: the function is not there, or is no training function, or the file is no Python; or the module is
            missing in a package that lies there.
    """
    module, _, name = spec.entrypoint.partition(":")
    roots = [folder, *python_path(spec.env, folder)]
    path = _file_of(module, roots)
    if path is None:
        _check_packages(spec, module, roots, folder)
        return False
    shown = _shown(path, folder)
    tree = _parsed(spec, path, folder, "a module that can be imported")
    framework = framework_of(spec.framework, tree)
    names = _names(tree, framework)
    defined = names.why_not.get(name, [])
    if names.open or "" in defined:
        if framework == "ray_train":
            check_adopted(spec, tree, shown)
        return True
    if defined:
        raise _refusal(spec, f"{name!r} in {shown} {defined[-1]}", TAKES[framework.removesuffix("_hosted")])
    known = _listed(names.functions)
    raise _refusal(spec, f"{shown} has no function {name!r}; it has {known}", f"{module}:function")


def with_framework(spec: JobSpec, folder: Path | None) -> JobSpec:
    """A job file with the framework that `auto` stands for, and the reason, by the text of its program in the working
    directory `folder`; as it is where it names one, or the program's text is not there.

    Raises:
        SpecInvalid: the file is no Python, a script makes no process group, or the framework that is chosen takes no
            such job file: both are said.
    """
    if spec.framework != "auto" or folder is None or not folder.is_dir():
        check_chosen(spec)
        return spec
    if is_script(spec.entrypoint):
        choice = choice_of_script(script_of(spec, folder))
        if choice is None:
            check_chosen(spec)
            return spec
    else:
        module, _, function = spec.entrypoint.partition(":")
        path = _file_of(module, [folder, *python_path(spec.env, folder)])
        if path is None:
            return spec
        choice = choice_of(_parsed(spec, path, folder, "a module that can be imported"), function)
    return with_choice(spec, choice)


def with_choice(spec: JobSpec, choice: Choice) -> JobSpec:
    """A job file with the framework that was chosen for it, and the reason. Raises SpecInvalid: that framework takes no
    such job file."""
    why = " ".join(choice.why.split())[:MAX_WHY]
    given = spec.model_dump(mode="json", exclude_unset=True)
    try:
        return JobSpec.parse({**given, "framework": choice.framework, "framework_why": why})
    except SpecInvalid as error:
        told = f"framework: auto chooses {choice.framework}, because {why}. So "
        raise SpecInvalid([{**each, "message": told + each["message"]} for each in error.errors]) from None


def check_chosen(spec: JobSpec) -> None:
    """Refuse a script for which nothing has chosen a framework. Raises SpecInvalid."""
    if spec.framework == "auto" and is_script(spec.entrypoint):
        allowed = "framework: torchrun, which starts the script once for each worker"
        why = "framework: auto takes scripts that are seen to call torch.distributed.init_process_group"
        message = f"{why}; allowed: {allowed}"
        raise SpecInvalid(
            [{"pointer": "/framework", "value": "auto", "allowed": allowed, "message": message}]
        )


def check_adopted(spec: JobSpec, tree: ast.Module, shown: Path) -> None:
    """Check by its text that a session can keep what a function of Ray Train does.

    Raises:
        SpecInvalid: naming each line that it cannot, and what to do instead.
    """
    found = obstacles(tree, spec.entrypoint.partition(":")[2])
    if not found:
        return
    lines = "; ".join(f"line {each.line}: {each.what} ({each.cure})" for each in found)
    hosted = ""
    if spec.framework == "auto":
        hosted = ", other than with framework: ray_train_hosted, which would run it as it is"
    raise _refusal(
        spec,
        f"{shown} does what a session cannot keep{hosted}: {lines}",
        "the lines changed as said, or a function that takes the session",
    )


def script_of(spec: JobSpec, folder: Path) -> ast.Module:
    """The text of the entrypoint's script. Raises SpecInvalid: it is no Python file in the working directory."""
    script = argv_of(spec.entrypoint)[0]
    if not (folder / script).is_file():
        raise _refusal(spec, f"there is no file {script} in {folder}", SCRIPT_FORM)
    return _parsed(spec, folder / script, folder, "a script that can be run")


def _parsed(spec: JobSpec, path: Path, folder: Path, allowed: str) -> ast.Module:
    """The text of a file of the entrypoint. Raises SpecInvalid: it is no Python."""
    try:
        return parse(path.read_bytes())
    # ValueError: a NUL byte, in Python 3.11.
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        told = f"{_shown(path, folder)}{line} is not valid Python {version}: {why}"
        raise _refusal(spec, told, allowed) from None


def python_path(env: dict[str, str], folder: Path) -> list[Path]:
    """The folders that `PYTHONPATH` of a job file names, where the working directory is `folder`: from there they are
    imported, behind what lies in it and before what is installed."""
    return [folder / part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]


def missing_folders(env: dict[str, str], folder: Path) -> list[tuple[str, str]]:
    """The folders of `PYTHONPATH` that are missing: for each what happens, and what to do."""
    hint = "Relative paths start at the working directory; variables such as $HOME are not expanded."
    return [
        (
            f"the PYTHONPATH folder {_shown(path, folder)} does not exist, so nothing can be imported from it.",
            hint,
        )
        for path in python_path(env, folder)
        if not path.exists()
    ]


def _file_of(module: str, roots: list[Path]) -> Path | None:
    """The file that an import would find first; None where it is no source file."""
    below = Path(*module.split("."))
    for root in roots:
        # As an import has it, a package goes before a module of the same name.
        for path in (root / below / "__init__.py", root / below.with_suffix(".py")):
            if path.is_file():
                return path
    return None


def _check_packages(spec: JobSpec, module: str, roots: list[Path], folder: Path) -> None:
    """Refuse a module that its package lacks: an import looks only in the first package of that name.

    Raises:
        SpecInvalid: such a package lies in one of the folders, and has no module of that name.
    """
    package, _, name = module.rpartition(".")
    path = _file_of(package, roots) if package else None
    if path is None:
        if package:
            _check_packages(spec, package, roots, folder)
        return
    if any(word in path.read_bytes() for word in ELSEWHERE):
        return
    if path.name != "__init__.py":
        raise _refusal(
            spec,
            f"{_shown(path, folder)} is a module, not a package: {name!r} cannot be imported from it",
            f"{package}:function",
        )
    if (
        any(path.parent.glob(f"{name}.*")) or (path.parent / name).is_dir()
    ):  # compiled, or without an __init__.py
        return
    there = sorted({found.stem for found in path.parent.glob("*.py")} - {"__init__"})
    where = _shown(path.parent, folder)
    raise _refusal(
        spec,
        f"the package {where} has no module {name!r}; it has {_listed(there)}",
        f"{package}.module:function",
    )


def _shown(path: Path, folder: Path) -> Path:
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED]) or 'none'}{more}"


def _names(module: ast.Module, framework: Framework) -> _Names:
    found = _Names()
    for statement in _at_the_top(module.body):
        _define(statement, found, framework)
    for node in ast.walk(module):
        # A function that runs may set it, from wherever in the module.
        if isinstance(node, ast.Global):
            for name in node.names:
                found.add(name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OPEN_ENDED:
            found.leave_open()
    # PEP 562: such a module makes its names on demand.
    if "__getattr__" in found.functions:
        found.leave_open()
    return found


def _at_the_top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, nested ones too."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from _at_the_top(getattr(statement, part, []))
        for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
            yield from _at_the_top(part.body)


def _define(statement: ast.stmt, found: _Names, framework: Framework) -> None:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        # A decorator may return anything, a training function too.
        found.add(statement.name, "" if statement.decorator_list else _why_not(statement, framework))
        if not isinstance(statement, ast.ClassDef):
            found.functions.append(statement.name)
        return
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            found.add((alias.asname or alias.name).partition(".")[0], f"is the module {alias.name}")
        return
    if isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            if alias.name == "*":
                found.leave_open()
            found.add(alias.asname or alias.name)
        return
    for node in ast.walk(statement):
        # With the names inside comprehensions, which are not the module's: a name too many refuses nothing.
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)


def _why_not(defined: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, framework: Framework) -> str:
    """The reason why a definition is no training function, called with the session alone, or of Ray Train, called with
    its configuration, or nothing; empty where it may be one."""
    if isinstance(defined, ast.ClassDef):
        return "is a class"
    if isinstance(defined, ast.AsyncFunctionDef):
        return "is an async function, which is not supported"
    if _yields(defined):
        return "is a generator: it contains yield, and calling it trains nothing"
    given = defined.args
    places = [*given.posonlyargs, *given.args]
    if not places and given.vararg is None and framework == "native":
        return "takes no parameters"
    # The first is the session's place; defaults belong to the last ones.
    needed = [place.arg for place in places[1 : len(places) - len(given.defaults)]]
    needed += [
        key.arg for key, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value is None
    ]
    first = "session" if framework == "native" else "configuration"
    return f"has required parameters besides the {first}: {', '.join(needed)}" if needed else ""


def _yields(code: ast.AST) -> bool:
    """Whether a function's own code yields; not that of functions inside it."""
    return any(
        isinstance(part, ast.Yield | ast.YieldFrom)
        or (not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and _yields(part))
        for part in ast.iter_child_nodes(code)
    )


def _refusal(spec: JobSpec, message: str, allowed: str) -> SpecInvalid:
    message = f"{message}; allowed: {allowed}"
    return SpecInvalid(
        [{"pointer": "/entrypoint", "value": spec.entrypoint, "allowed": allowed, "message": message}]
    )
