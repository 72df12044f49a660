"""The source of the three packages, parsed: what is said of the code without running it."""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.parsing import parse

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "ringleader": ROOT / "platform" / "ringleader",
    "ringleader_api": ROOT / "api" / "ringleader_api",
    "ringleader_jobs": ROOT / "jobs" / "ringleader_jobs",
}


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed file.

    Attributes:
        name: as it is imported.
        constants: names that the module gives to strings, at its top.
        imported: names that come from elsewhere: (module, name there).
    """

    name: str
    path: Path
    tree: ast.Module
    constants: dict[str, str] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The path in the repository."""
        return self.path.relative_to(ROOT).as_posix()


@functools.cache
def modules() -> dict[str, Module]:
    """All modules, by name, in the order of their names."""
    found = (
        _parsed(package, folder, path)
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*.py")
        if "__pycache__" not in path.parts
    )
    return {module.name: module for module in sorted(found, key=lambda module: module.name)}


def text_of(node: ast.expr, module: Module) -> str | None:
    """The string that an expression is: a literal, or a constant of this module or another one. None: another thing."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        if node.id in module.constants:
            return module.constants[node.id]
        home, name = module.imported.get(node.id, ("", ""))
        return modules()[home].constants.get(name) if home in modules() else None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        package, name = module.imported.get(node.value.id, ("", ""))
        home = f"{package}.{name}"
        return modules()[home].constants.get(node.attr) if home in modules() else None
    return None


def template_of(node: ast.expr) -> str:
    """The text of a string in code, an f-string with `…` for each of its values."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        return re.sub("…+", "…", text)
    return "…"


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls in a function, without those of functions inside it; of a module, those at its top."""
    left = list(ast.iter_child_nodes(node))
    while left:
        one = left.pop(0)
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(one, ast.Call):
            yield one
        left[:0] = ast.iter_child_nodes(one)


def called(call: ast.Call) -> str:
    """The last name of what is called: `event` of `self._outlet.event(…)`."""
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


def _parsed(package: str, folder: Path, path: Path) -> Module:
    parts = path.relative_to(folder).with_suffix("").parts
    name = ".".join([package, *(part for part in parts if part != "__init__")])
    module = Module(name, path, parse(path.read_text(encoding="utf-8")))
    for node in module.tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                module.constants.update(_strings(target, node.value))
        elif isinstance(node, ast.ImportFrom) and node.module:
            module.imported.update(
                {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
            )
    return module


def _strings(target: ast.expr, value: ast.expr) -> dict[str, str]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=False)
        return {name: text for pair in pairs for name, text in _strings(*pair).items()}
    if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
        return {target.id: value.value}
    return {}
