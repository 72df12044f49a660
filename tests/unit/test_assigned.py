"""The variables that a line of a program sets, by its text."""

import ast
from textwrap import dedent

import pytest

from ringleader.parsing import parse
from ringleader.program_text.variables.assigned_names import assigned_at

STATEMENTS: dict[str, list[str]] = {
    "best = f(HERE)": ["best"],
    "self.best = f(HERE)": ["self.best"],
    "self.best.state['w'] = f(HERE)": ["self.best.state"],
    "ema[name] = f(HERE)": ["ema"],
    "total += HERE.norm()": ["total"],
    "score: float = HERE.norm()": ["score"],
    "best, (score, *more) = f(HERE)": ["best", "score", "more"],
    "one = other = HERE": ["one", "other"],
    "a, b, c, d = HERE": ["a", "b", "c"],
    "with no_grad():\n    best = f(HERE)": ["best"],
    "with reader(HERE) as best:\n    other = 1": ["best"],
    "for p in HERE.parameters():\n    total += 1": ["p"],
    "for p in parameters:\n    total += HERE": ["total"],
    "if f(HERE) > best:\n    best = 1\nelse:\n    patience -= 1": ["best", "patience"],
    "if (score := f(HERE)) > best:\n    best = score": ["score"],
    "while HERE.norm() > 1:\n    rate /= 2": ["rate"],
    "if late: best = f(HERE)": ["best"],
    "first = 1; best = f(HERE); last = 2": ["best"],
    "best = [\n    p.clone()\n    for p in f(\n        HERE\n    )\n]": ["best"],
    "best = {n: g(p, [q for q in HERE]) for n, p in pairs}": ["best"],
    "def keep():\n    best = f(HERE)": ["best"],
    "history.append(HERE.norm())": ["history"],
    "self.history[0].append(HERE.norm())": ["self.history"],
    "ema[name].mul_(0.9).add_(HERE)": ["ema"],
    "await history.put(HERE)": ["history"],
    "print(HERE.norm())": [],
    "log.info(HERE.norm())": [],
    "writer.add_scalar('norm', HERE.norm())": [],
    "assert HERE.norm() < 9": [],
    "def norm():\n    return HERE.norm()": [],
}


@pytest.mark.parametrize("program", STATEMENTS)
def test_a_statement_is_known_by_what_it_sets_or_passes_on_to(program: str) -> None:
    tree = parse(dedent(program))
    here = next(node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "HERE")
    assert assigned_at(tree, (here.lineno, here.col_offset)) == STATEMENTS[program]


def test_without_a_column_the_line_has_to_do() -> None:
    tree = parse("if late:\n    best = f(\n        net\n    )\n")
    assert assigned_at(tree, (3, -1)) == ["best"]


def test_what_is_gone_when_a_function_returns_is_not_named() -> None:
    tree = parse("total = self.last = net.norm()")
    assert assigned_at(tree, (1, 0), gone={"total"}) == ["self.last"]


def test_of_no_text_nothing_is_known() -> None:
    assert assigned_at(None, (1, 0)) == []
    assert assigned_at(parse("a = 1"), (7, 0)) == []
