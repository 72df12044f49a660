"""What a turn of a loop's body does first with a variable: it is carried only where a way reads it before it is set."""

import textwrap

import pytest

from ringleader.program_text.loop_bodies import SourceText

PROGRAM = """
import os
import sys

def train(session, steps, use, kind, epochs, weights=()):
    net, layers = make(session)
    for epoch in range(epochs):
        for x, y in session.batches(rows):
{body}
            session.step(loss)
"""


def carried(body: str) -> set[str]:
    text = SourceText(PROGRAM.format(body=textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 12)))
    return {key[1] for key in text.carried}


def branches(last: str) -> str:
    """Branches of which the last does not set the loss."""
    return f"""
    if kind(x):
        loss = net(x)
    elif y.any():
        loss = net(y)
    else:
        {last}
    """


@pytest.mark.parametrize(
    ("last", "names"),
    [
        ("raise ValueError(kind)", set()),
        ("continue", set()),
        ("break", set()),
        ("return", set()),
        ("print(kind); sys.exit(1)", set()),
        ("exit()", set()),
        ("os._exit(1)", set()),
        ("raise SystemExit", set()),
        ("assert False, kind", set()),
        ("pass", {"loss"}),
        ("print(kind)", {"loss"}),
        ("sys.stdout.flush()", {"loss"}),
        ("parser.exit()", {"loss"}),
        ("assert kind", {"loss"}),
    ],
)
def test_a_branch_that_ends_the_turn_leaves_nothing(last: str, names: set[str]) -> None:
    assert carried(branches(last)) == names


@pytest.mark.parametrize(("last", "names"), [("continue", {"loss"}), ("break", {"loss"}), ("return", set())])
def test_an_inner_loops_break_and_continue_go_on_in_the_turn(last: str, names: set[str]) -> None:
    inner = textwrap.indent(textwrap.dedent(branches(last)), "    ")
    assert carried(f"for part in (0, 1):{inner}") == names


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("range(2)", set()),
        ("range(1, 4, 2)", set()),
        ("range(2, -1, -1)", set()),
        ("(x, y)", set()),
        ("[*x, y]", set()),
        ("enumerate([x, y])", set()),
        ("tqdm(range(3))", set()),
        ("zip(x.chunk(2), y.chunk(2))", set()),
        ("x.split(8)", set()),
        ("range(steps)", set()),
        ("range(1, steps + 1)", set()),
        ("layers", set()),
        ("enumerate(net.layers)", set()),
        ("net.children()", set()),
        ("range(0)", set()),
        ("range(len(layers))", set()),
        ("[*x]", {"loss"}),
        ("zip(x, x.chunk(2))", {"loss"}),
        ("text.split()", {"loss"}),
        ("boxes(x)", {"loss"}),
        ("range(len(y))", {"loss"}),
        ("range(epoch)", {"loss"}),
        ("range(steps - epoch)", {"loss"}),
        ("range(session.global_step)", {"loss"}),
    ],
)
def test_an_inner_loop_leaves_nothing_where_it_runs_in_all_turns_or_in_none(
    source: str, names: set[str]
) -> None:
    assert carried(f"for part in {source}:\n    loss = net(x, part)") == names


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ("pass", set()),
        ("layers.pop()", {"loss"}),
        ("layers = layers[1:]", {"loss"}),
        ("layers[0] = x", {"loss"}),
        ("fill(layers)", {"loss"}),
    ],
)
def test_one_over_what_turns_change_may_have_no_turn_in_one_of_them(changes: str, names: set[str]) -> None:
    body = f"for part in layers:\n    loss = net(part)\nsession.step(loss)\n{changes}"
    assert carried(body) - {"layers"} == names


def test_one_without_turns_finds_what_the_rest_of_an_earlier_turn_left() -> None:
    body = "for _ in range(steps):\n    loss = net(x)\nsession.step(loss)\nloss = net(y)"
    assert carried(body) == {"loss"}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("while True:\n    loss = net(x)\n    if ok(loss):\n        break", set()),
        ("while 1:\n    if ok(x):\n        loss = net(x)\n        break", set()),
        ("while True:\n    if ok(x):\n        break\n    loss = net(x)", {"loss"}),
        ("while unsure(x):\n    loss = net(x)", {"loss"}),
        ("while (loss := net(x)) > 3:\n    x = x / 2", set()),
        ("while unsure(x) and (loss := net(x)) > 3:\n    x = x / 2", {"loss"}),
        ("while unsure(x):\n    loss = net(x)\nelse:\n    loss = net(y)", set()),
    ],
)
def test_a_while_sets_what_all_ways_out_of_it_have_set(body: str, names: set[str]) -> None:
    assert carried(body) == names


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("for s in boxes(x):\n    loss = s\n    if ok(s):\n        break\nelse:\n    loss = net(x)", set()),
        (
            "for s in boxes(x):\n    if ok(s):\n        break\n    loss = s\nelse:\n    loss = net(x)",
            {"loss"},
        ),
        ("for s in boxes(x):\n    loss = s\n    if ok(s):\n        break\nelse:\n    pass", {"loss"}),
    ],
)
def test_the_else_of_a_loop_is_the_way_without_break(body: str, names: set[str]) -> None:
    assert carried(body) == names


@pytest.mark.parametrize(
    ("cases", "names"),
    [
        ("case (a, b): loss = net(a, b)\n    case _: raise ValueError", set()),
        ("case loss: pass", set()),
        ("case (_, *loss) | [*loss]: pass\n    case _: continue", set()),
        ('case {"x": a, **rest}: loss = net(a, **rest)\n    case _: raise ValueError', set()),
        ("case (a, b) if len(a): loss = net(a, b)\n    case _: raise ValueError", set()),
        ("case (a, b): loss = net(a, b)", {"loss"}),
        ("case _ if len(x): loss = net(x)", {"loss"}),
        ("case (_, *loss): pass\n    case _: print(x)", {"loss"}),
    ],
)
def test_a_match_sets_what_all_its_cases_set(cases: str, names: set[str]) -> None:
    assert carried(f"match x:\n    {cases}") == names


@pytest.mark.parametrize("case", ["(a, b)", '{"x": a, "y": b}', "Batch(x=a, y=b)", "[a, *b]"])
def test_what_a_case_captures_is_set(case: str) -> None:
    """By the text neither a turn's own loss nor a global goes in with a capture."""
    text = SourceText(
        PROGRAM.format(body=f"            match x:\n                case {case}: loss = net(a, b)")
    )
    loop = next(loop for loop, _ in text.turns)
    assert {key[1] for key in text.read_first(loop.lineno)} & {"a", "b"} == set()
    assert ("train", "a") in text.flows.sets


def test_what_a_case_captures_for_a_later_turn_is_carried() -> None:
    assert carried("loss = net(last)\nmatch x:\n    case (last, _): pass") == {"last"}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("if (loss := net(x)) > 3:\n    pass", set()),
        ("if kind(x) or (loss := net(x)) > 3:\n    pass", {"loss"}),
        ("if kind(x) and (loss := net(x)) > 3:\n    pass\nelse:\n    continue", set()),
        ("z = (loss := net(x)) + 1", set()),
        ("z = (loss := net(x)) if kind(x) else 0", {"loss"}),
    ],
)
def test_a_name_in_a_test_is_set_where_the_test_comes_to_it(body: str, names: set[str]) -> None:
    assert carried(body) == names


@pytest.mark.parametrize(
    ("test", "names"), [("(b := next(it, None)) is not None", set()), ("go() and (b := next(it))", {"b"})]
)
def test_a_turn_of_while_begins_with_what_its_test_names(test: str, names: set[str]) -> None:
    text = SourceText(
        f"""
def train(session):
    it = iter(session.batches(rows))
    while {test}:
        session.step(net(b))
"""
    )
    (loop,) = [loop for loop, _ in text.turns]
    assert {key[1] for key in text.read_first(loop.lineno)} & {"b"} == names


def twice(test: str, between: str = "", again: str = "") -> str:
    return f"""
    if {test}:
        aux = net(y)
    loss = net(x)
    {between}
    if {again or test}:
        loss = loss + aux
    """


@pytest.mark.parametrize(
    "test",
    [
        "use",
        "not use",
        "epoch >= 1",
        "use and epoch > 2",
        "session.global_step > 10",
        "args.aux",
        "isinstance(x, tuple)",
        'kind == "ce"',
        "weights is not None",
        "len(x) > 2",
        "x.any()",
    ],
)
def test_what_a_test_sets_is_there_where_the_same_test_holds_again(test: str) -> None:
    expected = {"aux"} if test == "x.any()" else set()  # nothing is known of what a call gives
    assert carried(twice(test)) == expected


@pytest.mark.parametrize(
    ("test", "between", "again"),
    [
        ("use", "use = kind(x)", "use"),
        ("use", "", "not use"),
        ("use", "", "use or kind(x)"),
        ("use and kind(x)", "", "use"),
        ("epoch >= 1", "", "epoch >= 0"),
        ("epoch >= 1", "epoch += 1", "epoch >= 1"),
        ("args.aux", "args.aux = kind(x)", "args.aux"),
        ("args.aux", "args.update(x)", "args.aux"),
        ("args.aux", "change(args)", "args.aux"),
        ('x["aux"]', 'x["aux"] = kind(x)', 'x["aux"]'),
        ("session.global_step > 10", "session.step(loss)", "session.global_step > 10"),
        ("weights", "weights.append(x)", "weights"),
    ],
)
def test_it_is_carried_where_the_second_test_may_be_another(test: str, between: str, again: str) -> None:
    body = twice(test, between, again)
    changed = f"use = kind(x)\n{textwrap.dedent(body)}" if test.startswith("use") else body
    assert "aux" in carried(changed)


def test_a_test_whose_variable_another_function_sets_is_not_the_same_again() -> None:
    program = """
def train(session, flip):
    def change():
        nonlocal flip
        flip = not flip

    for x, y in session.batches(rows):
        if flip:
            aux = net(y)
        loss = net(x)
        change()
        if flip:
            loss = loss + aux
        session.step(loss)
"""
    assert ("train", "aux") in SourceText(program).carried
    quiet = program.replace("flip = not flip", "other = not flip").replace("nonlocal flip", "nonlocal net")
    assert ("train", "aux") not in SourceText(quiet).carried


def test_branches_that_hold_in_all_turns_or_in_none_leave_nothing() -> None:
    one = 'if kind == "ce":\n    loss = net(x)\nelif kind == "mse":\n    loss = net(y)'
    assert carried(one) == set()
    assert carried(f"kind = draw(x)\n{one}") == {"loss"}
    assert carried(f"{one}\nsession.step(loss)\nloss = net(y)") == {"loss"}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("try:\n    loss = net(x)\nexcept ValueError:\n    raise", set()),
        ("try:\n    loss = net(x)\nexcept ValueError:\n    continue", set()),
        ("try:\n    loss = net(x)\nexcept ValueError:\n    loss = net(y)", set()),
        ("try:\n    z = net(x)\nexcept ValueError:\n    raise\nelse:\n    loss = z", set()),
        ("try:\n    z = net(x)\nfinally:\n    loss = net(y)", set()),
        ("with autocast():\n    loss = net(x)", set()),
        ("try:\n    loss = net(x)\nexcept ValueError:\n    print(x)", {"loss"}),
        ("with suppress(ValueError):\n    loss = net(x)", {"loss"}),
    ],
)
def test_an_exception_leaves_what_a_handler_does_not_set(body: str, names: set[str]) -> None:
    assert carried(body) == names


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("loss = net(x) * rates[it]", {"it"}),
        ("it = session.global_step; loss = net(x) * rates[it]", set()),
        ("it = session.global_step\nif it > 2: loss = net(x) * rates[it]\nelse: loss = net(x)", set()),
        ("it = 4 * epoch + it; loss = net(x) * rates[it]", {"it"}),
        ("it += 4 * epoch; loss = net(x) * rates[it]", {"it"}),
        ("if use: it = session.global_step\nloss = net(x) * rates[it]", {"it"}),
    ],
)
def test_the_number_that_enumerate_gives_is_a_turn_s_unless_the_turn_names_something_else_so(
    body: str, names: set[str]
) -> None:
    program = PROGRAM.replace("for x, y in session", "for it, (x, y) in enumerate(session").replace(
        "rows):", "rows)):"
    )
    text = SourceText(program.format(body=textwrap.indent(body, " " * 12)))
    assert {key[1] for key in text.carried} == names


def test_an_outer_loops_break_goes_on_behind_it() -> None:
    program = """
def train(session):
    total = 0
    while True:
        for x, y in session.batches(rows):
            total += y.sum()
            session.step(net(x))
        {last}
    decide(total)
"""
    assert ("train", "total") in SourceText(program.format(last="break")).escapes
    assert ("train", "total") not in SourceText(program.format(last="return")).escapes


def test_a_target_of_phases_is_a_matter_of_one_step() -> None:
    text = SourceText(
        """
def train(session):
    for phases in session.steps(rows, phases=[a, b]):
        for number, turns in enumerate(phases):
            for x, y in turns:
                session.step(net(x) * number)
"""
    )
    assert not text.compared(("train", "number"))
    assert text.flows.matters(("train", "number"))
