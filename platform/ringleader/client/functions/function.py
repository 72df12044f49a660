"""A training function that stands in a script, a module or a notebook, as files that a job can be packed from."""

import ast
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from ringleader.client.functions.cells import module_of_cells
from ringleader.errors import RingleaderError
from ringleader.parsing import parse

Function = Callable[..., object]
MAIN = "__main__"
NOTEBOOK = "notebook"
"""The name of the module that is made of a notebook's cells."""


class FunctionRefused(RingleaderError):
    """The function cannot be packed, or workers could not import it from where it is defined."""

    code = "function_refused"


@dataclass(frozen=True, slots=True)
class Sources:
    """The import path of a function, `module:function`, and the files to pack, by their name in the working directory:
    none where it is installed."""

    entrypoint: str
    files: dict[str, bytes] = field(default_factory=dict)


def sources_of(function: Function) -> Sources:
    """The module that holds the function and the local modules that it imports; of a notebook the function itself with
    all that it uses.

    Raises:
        FunctionRefused: naming what cannot be packed, and what to do.
    """
    name = _name_of(function)
    _refuse_kind(name, function)
    module = sys.modules[function.__module__]
    file = getattr(module, "__file__", None)
    cells = function.__module__ == MAIN and isinstance(
        vars(module).get("In"), list
    )  # %run leaves a __file__ there
    if file and not cells:
        return _of_file(name, function, file)
    if function.__module__ != MAIN:
        raise FunctionRefused(
            f"{name!r} cannot be packaged: its module {function.__module__!r} has no source file.",
            hint="Define it in a file of your project.",
        )
    if not cells:
        _kept(name, function)
    return _of_notebook(name, module)


def _of_file(name: str, function: Function, file: str) -> Sources:
    """The file that Python read the function's module from, with the local modules that it imports."""
    path = Path(file).resolve()
    if not path.is_file():
        raise FunctionRefused(
            f"{name!r} cannot be packaged: Python read it from {file}, which is not a file.",
            hint="Save the program to a file and run that, or submit from a notebook.",
        )
    module = sys.modules[function.__module__]
    spec = getattr(module, "__spec__", None)
    # A script need not be named like a module: my-job.py is packed as my_job.py.
    dotted = spec.name if spec is not None else re.sub(r"\W", "_", path.stem)
    if _installed(path):
        return Sources(f"{dotted}:{name}")
    if function.__module__ == MAIN:
        _guarded(module, path)
    parts = dotted.split(".")
    # `__init__.py` lies one folder below the place where a module of that name would.
    root = path.parents[len(parts) - (path.name != "__init__.py")]
    wanted = imports_of(path.read_bytes(), _package_of(path, root))
    if spec is not None:
        wanted.append(dotted)
    files = local_files(root, wanted) | ({} if spec is not None else {f"{dotted}.py": path})
    return Sources(f"{dotted}:{name}", {file: found.read_bytes() for file, found in files.items()})


def _kept(name: str, function: Function) -> None:
    """Raise FunctionRefused where Python has not kept the source text."""
    try:
        inspect.getsource(function)
    except (OSError, TypeError):
        raise FunctionRefused(
            f"{name!r} cannot be packaged: its source is not kept by Python's prompt or `python -c`.",
            hint="Save it to a file and run that, or submit from a notebook or IPython.",
        ) from None


def _of_notebook(name: str, module: ModuleType) -> Sources:
    text, imported, unpackable = module_of_cells(name, vars(module))
    if unpackable:
        raise FunctionRefused(
            f"{name!r} cannot be packaged: {'; '.join(unpackable)}.",
            hint="Create such objects inside the function, pass numbers and strings in params, or submit from a file.",
        )
    # A kernel's current folder is the notebook's own, unless a cell has changed it.
    files = local_files(Path.cwd(), imported)
    content = {file: path.read_bytes() for file, path in files.items()}
    return Sources(f"{NOTEBOOK}:{name}", {f"{NOTEBOOK}.py": text.encode(), **content})


def _name_of(function: Function) -> str:
    """The function's name in its module. Raises FunctionRefused: workers could not find it by that."""
    name = getattr(function, "__qualname__", type(function).__name__)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is not None and name.isidentifier() and getattr(module, name, None) is function:
        return str(name)
    raise FunctionRefused(
        f"{name!r} is not a top-level function of a module, so workers cannot import it.",
        hint="Define it with `def` outside of functions and classes, and pass the values it needs in params.",
    )


def _refuse_kind(name: str, function: Function) -> None:
    """Raise FunctionRefused where a call of it with the session would train nothing."""
    kinds = {
        "a class": inspect.isclass(function),
        "an async function": inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function),
        "a generator": inspect.isgeneratorfunction(function),
    }
    for kind, it_is in kinds.items():
        if it_is:
            raise FunctionRefused(
                f"{name!r} is {kind}, and calling it trains nothing.",
                hint="Define the training function with `def train(session)`, without `async` and `yield`.",
            )


def _guarded(module: ModuleType, path: Path) -> None:
    """Raise FunctionRefused where workers, which import this script, would submit it again."""
    frame = inspect.currentframe()
    while frame is not None and not (frame.f_globals is vars(module) and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    if frame is None:
        return
    for statement in parse(path.read_bytes()).body:
        if statement.lineno <= frame.f_lineno <= (statement.end_lineno or 0) and not _of_main(statement):
            raise FunctionRefused(
                f"line {frame.f_lineno} of {path.name} submits the job on import, and workers import {path.name}.",
                hint='Move it below `if __name__ == "__main__":`.',
            )


def _of_main(statement: ast.stmt) -> bool:
    names = {
        node.id for node in ast.walk(getattr(statement, "test", ast.Pass())) if isinstance(node, ast.Name)
    }
    return isinstance(statement, ast.If) and "__name__" in names


def local_files(root: Path, modules: list[str]) -> dict[str, Path]:
    """The files below `root` of these modules, of their packages, and of what they import from there in turn."""
    found: dict[str, Path] = {}
    todo = list(modules)
    while todo:
        dotted = todo.pop()
        for path in _files_of(root, dotted):
            file = path.relative_to(root).as_posix()
            if file not in found:
                found[file] = path
                todo += imports_of(path.read_bytes(), _package_of(path, root))
    return found


def imports_of(source: bytes, package: list[str]) -> list[str]:
    """The modules that a module of `package` may import, and names that may be modules."""
    found: list[str] = []
    try:
        tree = parse(source)
    except (SyntaxError, ValueError):  # if it is ever imported, that is where it is told
        return []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # One dot is the package itself, and each further one a folder up.
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            found += [start, *(f"{start}.{alias.name}" for alias in node.names)]
    return [name for name in found if name]


def _files_of(root: Path, dotted: str) -> Iterator[Path]:
    """The files that an import of it runs: each package on the way, and the module."""
    below = root
    for part in dotted.split("."):
        below = below / part
        for path in (below / "__init__.py", below.with_suffix(".py")):
            if path.is_file() and not _installed(path):
                yield path


def _package_of(path: Path, root: Path) -> list[str]:
    return list(path.parent.relative_to(root).parts)


def _installed(path: Path) -> bool:
    """Whether it is Python's own, or came by a package: then nodes have it, too."""
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(path.is_relative_to(Path(place).resolve()) for place in places)
