"""Tensors of the platform are of a type that is written down: a program may have set another default."""

import ast
from pathlib import Path

import pytest

from ringleader.parsing import parse

PLATFORM = Path(__file__).resolve().parents[2] / "platform" / "ringleader"
OF_THE_DEFAULT = frozenset(["zeros", "ones", "empty", "rand", "randn", "linspace"])


@pytest.mark.parametrize("layer", ["train", "exchange", "comm", "checkpoint", "data", "optim", "runtime"])
def test_tensors_name_their_type(layer: str) -> None:
    assert (PLATFORM / layer).is_dir()
    left = [
        f"{path.name}:{node.lineno}"
        for path in sorted((PLATFORM / layer).rglob("*.py"))
        for node in ast.walk(parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and getattr(node.func.value, "id", "") == "torch"
        and node.func.attr in OF_THE_DEFAULT
        and "dtype" not in {keyword.arg for keyword in node.keywords}
    ]
    assert left == [], f"without dtype: {left}"
