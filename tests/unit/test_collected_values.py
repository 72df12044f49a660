"""What a turn leaves to lines behind its loop for good, by the program's text."""

import ast
from textwrap import dedent, indent

import pytest

from ringleader.program_text.program_scope import Function
from ringleader.program_text.statement_order import Loop
from ringleader.program_text.variables.collected import TurnLines, lines_taking

COLLECTING = {
    "a list": "losses.append(loss)",
    "a dict of lists": "logs.setdefault('loss', []).append(loss)",
    "by keyword": "meter.update(loss=loss)",
    "an attribute": "self.total += loss",
    "another object's attribute": "self.trainer.logs['loss'] = loss",
    "a plain attribute": "self.last = loss",
    "by name": "setattr(self, name, loss)",
    "a sum": "total += loss",
    "a sum made anew": "total = total + loss",
    "two at once": "total, count = total + loss, count + 1",
    "an entry": "matrix[y, y] += 1",
    "a meter by its name": "each = self.meters[name]\neach.update(loss)",
    "a meter that is asked for": "each = self.meters.get(name)\neach.update(loss)",
    "each meter": "for each in self.meters:\n    each.update(loss)",
    "in a comprehension": "[each.update(loss) for each in self.meters]",
    "a list of the file's": "LOSSES.append(loss)",
    "a parameter": "given.append(loss)",
}
OF_THE_TURN = {
    "a plain body": "loss = F.cross_entropy(net(x), y)\nsession.step(loss)",
    "a loss of two parts": "loss = F.cross_entropy(net(x), y)\nloss = loss + net.penalty()\nsession.step(loss)",
    "a loss of more parts": "loss = torch.zeros(())\nfor each in parts(x):\n    loss += each\nsession.step(loss)",
    "a list of the turn": "parts = []\nparts.append(net(x))\nsession.step(sum(parts))",
    "rows that are moved": "x, y = x.to(device), y.to(device)\nx = x / 255\nsession.step(F.cross_entropy(net(x), y))",
    "a batch's entry": "x['image'] = x['image'] / 255",
    "a mask": "mask = torch.zeros(4)\nmask[0] = 1\nsession.step(net(x * mask).sum())",
    "a rate": "optimizer.param_groups[0]['lr'] = 0.1",
    "a gradient": "net.weight.grad = None",
    "a function of torch's": "y = torch.add(x, y)",
    "a sum that nobody reads": "unread += 1",
}
AROUND = """
import torch

def train(self, session, net, given, name):
    losses, logs, total, count, meter, matrix, unread = [], {{}}, 0, 0, Meter(), zeros(), 0
    for x, y in session.batches(rows):
{body}
    print(losses, logs, total / count, meter, matrix, loss, parts)
"""
ALONE = """
import torch

def called(self, session, net, given, x, y, name):
{body}
"""


def of_loop(body: str) -> TurnLines:
    tree = ast.parse(AROUND.format(body=indent(body, "        ")))
    (loop,) = (
        node for node in ast.walk(tree) if isinstance(node, Loop) and "session" in ast.unparse(node.iter)
    )
    lines = lines_taking(tree, loop.lineno, {"torch"})
    assert lines is not None
    return lines


def of_function(body: str) -> TurnLines:
    (function,) = (
        n for n in ast.walk(ast.parse(ALONE.format(body=indent(body, "    ")))) if isinstance(n, Function)
    )
    return TurnLines(function, (), function.body, {"torch"})


@pytest.mark.parametrize("body", COLLECTING.values(), ids=COLLECTING)
def test_a_body_collects_what_it_adds_to_or_leaves_elsewhere(body: str) -> None:
    assert of_loop(body).collects


@pytest.mark.parametrize("body", OF_THE_TURN.values(), ids=OF_THE_TURN)
def test_a_body_collects_nothing_of_its_own_turn(body: str) -> None:
    assert not of_loop(body).collects


def test_a_function_that_a_turn_calls_collects_nothing_in_its_own_variables() -> None:
    for body in (
        "x = net(x)\nx += y\nreturn x",
        "outs = []\nouts.append(x)\nreturn outs",
        "x = x + net(x)\nreturn x",
    ):
        assert not of_function(body).collects, body
    for body in ("self.outs.append(x)", "given.append(x)", "global TOTAL\nTOTAL += 1", "outs.append(x)"):
        assert of_function(body).collects, body


def test_a_new_object_is_nothing_collected() -> None:
    (kind,) = ast.parse("class Batch:\n    def __init__(self, x):\n        self.x = x\n").body
    (function,) = (node for node in ast.walk(kind) if isinstance(node, Function))
    assert not TurnLines(function, (), function.body).collects


def test_names_that_other_lines_read_or_delete_are_left() -> None:
    lines = of_loop("loss = net(x)\nout = loss\nparts = [each for each in x]")
    assert lines.left == {"loss", "parts"}
    tree = ast.parse("for x, y in batches:\n    out = net(x)\ndel x, out\n")
    found = lines_taking(tree, 1, ())
    assert found is not None
    assert found.left == {"x", "out"}


def test_batches_are_taken_by_loops_by_next_and_by_iterators() -> None:
    tree = ast.parse(
        dedent("""
            def train(it):
                while True:
                    try:
                        batch = next(it)
                    except StopIteration:
                        break
                    step(batch)
            class Counted:
                def __next__(self):
                    batch = next(self.it)
                    self.n += 1
                    return batch
            """)
    )
    by_next = lines_taking(tree, 5, ())
    assert by_next is not None
    assert not by_next.collects
    assert lines_taking(tree, 8, ()) is None  # of a loop's other lines a caller has the batches
    iterator = lines_taking(tree, 11, ())
    assert iterator is not None
    assert iterator.collects
