"""The page of environment variables: the control plane's settings, and those that anything else reads."""

import ast
from collections.abc import Iterator

from reference.docstrings import entries_of, parts_of
from reference.environment_words import BENCH, DEMO, NODES, OWN, PROGRAMS, USERS
from reference.markdown import code, page, prose, sentence, table
from reference.sources import Module, modules, text_of

LEAD = """The environment variables that Ringleader reads. A job's own variables are `env` and `secrets` of its [job
file](job-file.md)."""
SETTINGS = """Read by the control plane when it starts, and so by `ringleader up`. Times are in seconds unless the name
says otherwise."""
READERS = frozenset({"get", "getenv", "pop", "setdefault"})
BY_NAME = frozenset(
    {
        ("api/ringleader_api/settings.py", "PREFIX + f.upper()"),
        ("platform/ringleader/comm/transports/nccl.py", "name"),
        ("platform/ringleader/runtime/hosted/ray_train_driver.py", "name"),
        ("platform/ringleader/train/between_calls/files/written_files.py", "name"),
        ("platform/ringleader/train/between_calls/objects/process_settings.py", "change.variable"),
        ("platform/ringleader/train/local.py", "name"),
        ("platform/ringleader/train/program_check/sandbox.py", "name"),
    }
)
"""Reads of variables whose names are not in the call: the settings, NCCL's (`OURS`), a job's `env` (twice),
caches (`CACHES`, twice), and what a program changes."""


def environment_page() -> str:
    sections = {
        "Of the SDK and the command line": (USERS, ""),
        "Of a node": (NODES, ""),
        "Given to hosted programs": (
            PROGRAMS,
            "In addition to those that torchrun sets: "
            "[Host a torchrun script or a TorchTrainer](../how-to/host-training-code.md).",
        ),
        "Of `make demo`": (DEMO, ""),
        "Of benchmarks": (BENCH, ""),
        "Between processes": (OWN, "Set by one process of Ringleader or Ray for another one: not for users."),
    }
    parts = [
        "\n\n".join(
            part for part in (f"## {title}", lead, table(("variable", "what it says"), _rows(words))) if part
        )
        for title, (words, lead) in sections.items()
    ]
    settings = table(("variable", "default", "what it says"), _settings())
    return page(
        "Environment variables",
        LEAD,
        parts[0],
        f"## Of the control plane\n\n{SETTINGS}\n\n{settings}",
        *parts[1:],
    )


def described() -> set[str]:
    """Every variable that has words."""
    from ringleader_api.settings import PREFIX

    settings = {PREFIX + name.upper() for name in _setting_words()}
    return {*settings, *USERS, *NODES, *PROGRAMS, *DEMO, *BENCH, *OWN}


def undescribed_settings() -> set[str]:
    from ringleader_api.settings import Settings

    return Settings.model_fields.keys() ^ _setting_words().keys()


def read() -> Iterator[tuple[str, str | None, str]]:
    """Every read of a variable: (file, name, expression), the name None where the call does not show it."""
    for module in modules().values():
        for node in ast.walk(module.tree):
            named = _read(node)
            if named is not None:
                yield module.file, text_of(named, module), ast.unparse(named)
        yield from ((module.file, name, name) for name in _ours(module))


def unread() -> list[tuple[str, str]]:
    """Reads whose variable cannot be told from the code, and are not known for that."""
    return sorted({(file, shown) for file, name, shown in read() if name is None} - BY_NAME)


def _read(node: ast.AST) -> ast.expr | None:
    """The name of the variable that an expression reads; None where it reads none."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        by_os = ast.unparse(node.func) == "os.getenv"
        if node.func.attr in READERS and (by_os or _is_environment(node.func.value)):
            return node.args[0]
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_environment(node.value):
        return node.slice
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return node.left if _is_environment(node.comparators[0]) else None
    return None


def _is_environment(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


def _ours(module: Module) -> Iterator[str]:
    """Names of our own variables, wherever they are written: some go through a dict or a child's environment."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value
            if name.startswith("RINGLEADER_") and name != "RINGLEADER_" and name.replace("_", "").isalnum():
                yield name


def _setting_words() -> dict[str, str]:
    from ringleader_api.settings import Settings

    return entries_of(parts_of(Settings.__doc__ or "")["Attributes"])


def _settings() -> Iterator[tuple[str, str, str]]:
    from ringleader_api.settings import PREFIX, Settings

    words = _setting_words()
    for name, field in Settings.model_fields.items():
        default = "~/.ringleader" if field.is_required() else field.default
        shown = (
            ""
            if default in ("", None)
            else str(default).lower()
            if isinstance(default, bool)
            else str(default)
        )
        yield code(PREFIX + name.upper()), code(shown), prose(sentence(words.get(name, "")))


def _rows(words: dict[str, str]) -> list[tuple[str, str]]:
    return [(code(name), sentence(told)) for name, told in words.items()]
