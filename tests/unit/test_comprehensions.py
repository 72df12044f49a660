"""The variables of comprehensions and nested functions are told apart from those of the function around them."""

import ast

import pytest

from ringleader.parsing import parse
from ringleader.program_text.loop_bodies import SourceText
from ringleader.program_text.variables.apart import name_comprehensions_apart


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        ("[f(x) for x in xs]", "[f(x'0) for x'0 in xs]"),
        ("[x for x in x]", "[x'0 for x'0 in x]"),
        ("{k: v for k, v in d.items() if v}", "{k'0: v'0 for k'0, v'0 in d.items() if v'0}"),
        ("sum((x for x in row) for row in x)", "sum(((x'1 for x'1 in row'0) for row'0 in x))"),
        ("[[x for x in x] for x in x]", "[[x'0'1 for x'0'1 in x'0] for x'0 in x]"),
        ("[last := x for x in xs]", "[(last := x'0) for x'0 in xs]"),
        ("[x for xs in xss for x in xs]", "[x'0 for xs'0 in xss for x'0 in xs'0]"),
    ],
)
def test_its_names_are_its_own(text: str, apart: str) -> None:
    tree = parse(text)
    name_comprehensions_apart(tree)
    assert ast.unparse(tree) == apart


BODY = """
class Net:
    def forward(self, x):
        return sum(net(x) for net in self.nets)

def train(session):
    net = session.model(Net())
    opt = session.optimizer(SGD(net.parameters()))
    for x, y in session.batches(rows):
        loss = sum(part(net) for net in net.nets)
        session.step(loss)
    decide(net)
"""


def test_a_variable_of_a_comprehension_in_a_body_is_not_what_the_body_changes() -> None:
    text = SourceText(BODY)
    assert {key[1] for key in (*text.inside, *text.escapes, *text.carried)} & {"net"} == set()


def test_a_variable_that_a_comprehension_reads_is_read() -> None:
    text = SourceText(BODY.replace("decide(net)", "decide([loss * w for w in weights])"))
    assert "loss" in {key[1] for key in text.escapes}


FACTORY = """
def train(session):
    def make():
        smoothing = 0.3
        {criterion}
        return criterion
    criterion = make()
    for _ in range(4):
        for x, y in session.batches(rows):
            session.step(criterion(net(x), y))
"""


@pytest.mark.parametrize(
    ("criterion", "read"),
    [
        ("def criterion(out, y): return cross_entropy(out, y, smoothing)", False),
        ("def criterion(out, *y): return cross_entropy(out, y, smoothing)", False),
        ("criterion = lambda out, y, /: cross_entropy(out, y, smoothing)", False),
        ("criterion = lambda out, *y: cross_entropy(out, y, smoothing)", False),
        ("def criterion(out, _): y = out.mean(); return cross_entropy(out, y)", False),
        ("def criterion(out, _): return cross_entropy(out, y)", True),
        ("def criterion(out, _):\n            nonlocal y; y = f(y); return y", True),
        (
            "def criterion(out, _):\n            def unused(y): pass\n            return cross_entropy(out, y)",
            True,
        ),
        ("class criterion:\n            def __call__(self, out, y): return cross_entropy(out, y)", False),
    ],
)
def test_a_nested_function_s_variables_are_its_own_however_deep_it_is(criterion: str, read: bool) -> None:
    text = SourceText(FACTORY.format(criterion=criterion))
    assert ("y" in {key[1] for key in text.escapes}) is read


NAMESAKES = """
class Trainer:
    def train(self, session):
        loss = 0.0
        for x, y in session.batches(rows):
            loss = loss + float(y)
        print(loss)

    def score(self, session, number):
        loss = session.evaluate(rows, f)["loss"]
        self.rate = 1 / loss
        return g(number=number, loss=loss)

def g(number, loss):
    optimizer.param_groups[0]["lr"] = loss
"""


def test_a_method_s_variables_are_not_those_of_another_method() -> None:
    text = SourceText(NAMESAKES)
    assert list(text.escapes) == []
    shown, scored = (text.scope_at(line).key("loss") for line in (5, 10))
    assert (text.compared(shown), text.compared(scored)) == (False, True)


def test_an_argument_by_keyword_is_that_of_the_parameter_of_its_name() -> None:
    text = SourceText(
        NAMESAKES.replace(
            "def g(number, loss):", "class Rates:\n  def g(self, loss): pass\n\ndef g(number, loss):"
        )
    )
    assert text.compared(text.scope_at(10).key("loss"))
