"""What a turn does first with an attribute, in its own lines and in the methods that these call."""

import textwrap

import pytest

from ringleader.program_text.loop_bodies import SourceText

PROGRAM = """
class Objective:
    def __init__(self):
        self.kept = {made}

    def turn(self, x, y):
{body}

def train(session):
    objective = Objective()
    for x, y in session.batches(rows):
        session.step(objective.turn(x, y))
"""


def use(body: str, made: str = "{}") -> str:
    text = SourceText(
        PROGRAM.format(made=made, body=textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8))
    )
    (uses,) = [uses for _, uses in text.turns]
    return "sets" if "kept" in uses.passing else ("reads" if "kept" in uses.carried else "")


@pytest.mark.parametrize(
    ("last", "first"),
    [
        ("raise ValueError", "sets"),
        ("sys.exit(1)", "sets"),
        ("self.kept = y", "sets"),
        ("pass", "reads"),
        ("print(x)", "reads"),
        ("return self.kept", "reads"),
    ],
)
def test_a_branch_that_raises_leaves_no_attribute(last: str, first: str) -> None:
    body = f"""
    if a(x):
        self.kept = f(x)
    elif b(x):
        self.kept = f(y)
    else:
        {last}
    return self.kept
    """
    assert use(body, "None") == first


@pytest.mark.parametrize(
    ("body", "first"),
    [
        ("self.kept.clear(); self.kept.append(f(x)); return sum(self.kept)", "sets"),
        ("self.kept[:] = [f(x)]; self.kept.append(y); return sum(self.kept)", "sets"),
        ("self.kept.append(f(x)); r = sum(self.kept); self.kept.clear(); return r", "reads"),
        ("self.kept.append(f(x)); return sum(self.kept)", "reads"),
        ("self.kept[:] = self.kept[1:]; self.kept.append(y); return sum(self.kept)", "reads"),
        ("if a(x):\n    self.kept.clear()\nself.kept.append(f(x)); return sum(self.kept)", "reads"),
    ],
)
def test_a_list_that_a_turn_empties_first_carries_nothing(body: str, first: str) -> None:
    assert use(body, "[]") == first


@pytest.mark.parametrize(
    ("rest", "first"),
    [
        ("return sum(self.kept.values())", "sets"),
        ('return self.kept["a"] + self.kept["b"]', "sets"),
        ('return self.kept["a"] + self.kept["c"]', "reads"),  # others may set this one between the loops
        ("self.kept[f(y)] = y; return sum(self.kept.values())", "reads"),
        ('self.kept["c"] += y; return sum(self.kept.values())', "reads"),
        ('self.kept["c"] = self.kept["c"] + y; return self.kept["c"]', "reads"),
        ('self.kept.update(c=y); self.kept.update({"d": y}); return sum(self.kept.values())', "reads"),
        ('if f(y):\n    self.kept["c"] = y\nreturn sum(self.kept.values())', "reads"),
        ('kept = self.kept; kept["c"] = y + kept.get("c", 0); return kept["c"]', "reads"),
        ("change(self.kept); return sum(self.kept.values())", "reads"),
    ],
)
def test_a_dict_of_which_a_turn_sets_all_that_it_changes_carries_nothing(rest: str, first: str) -> None:
    assert use(f'self.kept["a"] = f(x); self.kept["b"] = f(y)\n{rest}') == first


def test_an_entry_that_is_read_before_it_is_set_is_carried() -> None:
    assert use('r = self.kept["a"] + x; self.kept["a"] = f(x); return r') == "reads"
    assert use('self.kept["a"] = f(x); r = sum(self.kept.values()); self.kept["b"] = y; return r') == "reads"


LAYERED = """
class Layer(nn.Module):
    def __init__(self):
        self.query, self.out = {made}, nn.Linear(6, 6)

    def forward(self, x):
        self.kept = self.query(x).softmax(-1)
        return self.out(self.kept)

class Stack(nn.Module):
    def __init__(self):
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        self.maps = [layer.kept for layer in self.layers]
        return x

def train(session):
    net = session.model(Stack())
    for x, y in session.batches(rows):
        session.step(f(net(x), y) + g(net.maps))
"""


@pytest.mark.parametrize(
    ("made", "sets"),
    [
        ("nn.Linear(6, 6)", True),
        ("torch.nn.Conv1d(6, 6, 1)", True),
        ("Stack()", False),
        (
            "nn.Sequential(Stack())",
            False,
        ),  # what it calls may read the layers' maps before there are new ones
        ("make(6)", False),
    ],
)
def test_a_layer_of_torch_s_own_runs_no_forward_of_the_program(made: str, sets: bool) -> None:
    (uses,) = [uses for _, uses in SourceText(LAYERED.format(made=made)).turns]
    assert ("kept" in uses.passing, "kept" in uses.carried) == (sets, not sets)


@pytest.mark.parametrize(
    ("first", "use"),
    [
        (
            "for part in net.modules():\n            if isinstance(part, Leaky):\n                part.kept = 0.0",
            "sets",
        ),
        ("for part in net.modules():\n            if a(x):\n                part.kept = 0.0", "reads"),
        ("net.run()", "reads"),
        ("", "reads"),
    ],
)
def test_to_go_through_the_modules_of_a_model_runs_nothing_of_them(first: str, use: str) -> None:
    text = SourceText(
        f"""
class Leaky(nn.Module):
    def forward(self, x):
        self.kept = 0.9 * self.kept + x
        return self.kept

def train(session):
    net = session.model(nn.Sequential(nn.Linear(6, 6), Leaky()))
    for x, y in session.batches(rows):
        {first}
        session.step(f(sum(net(x) for _ in range(3)), y))
"""
    )
    (uses,) = [uses for _, uses in text.turns]
    assert ("kept" in uses.passing, "kept" in uses.carried) == (use == "sets", use == "reads")


FORWARD = """
class Net(nn.Module):
    def forward(self, x):
        return self.layer(x) * self.kept

    def set_step(self, number):
        self.kept = 0.9**number

class Trainer:
    def __init__(self, session):
        self.session, self.model = session, session.model(Net())

    def turn(self, x):
        {first}
        self.model.set_step(self.session.global_step)
        return self.model(x)

def train(session):
    trainer = Trainer(session)
    for x, y in session.batches(rows):
        session.step(trainer.turn(x))
"""


@pytest.mark.parametrize(
    ("first", "kept"),
    [
        ("self.model.train()", "passing"),
        ("self.model.zero_grad(set_to_none=True)", "passing"),
        ("print(self.model.state_dict())", "passing"),
        ("self.model(x)", "carried"),
        ("self.model.forward(x)", "carried"),
    ],
)
def test_methods_that_every_module_has_run_no_forward(first: str, kept: str) -> None:
    ((_, uses),) = SourceText(FORWARD.format(first=first)).turns
    assert ("kept" in uses.passing, "kept" in uses.carried) == (kept == "passing", kept == "carried")


CLASSES = """
class Layer{base}:
    def __init__(self):
        self.kept = 1.0

    def forward(self, x):
        return self.kept * x
{more}
class Objective:
    def __init__(self):
        self.layer, self.kept = Layer(), None

    def turn(self, x, y):
        out = self.layer(x)
        self.kept = f(out, y)
{last}
        return self.kept

def train(session):
    objective = Objective()
{line}
    for x, y in session.batches(rows):
        session.step(objective.turn(x, y))
"""


@pytest.mark.parametrize(
    ("parts", "first"),
    [
        ({}, "sets"),
        ({"base": "(nn.Module)"}, "sets"),
        ({"more": "    def show(self):\n        print(self.kept)"}, "sets"),
        ({"more": "    def grow(self):\n        self.kept = 2.0"}, "reads"),
        ({"more": "    def grow(self):\n        self.kept += 1.0"}, "reads"),
        ({"base": "(Objective)"}, "reads"),
        ({"line": "    objective.layer.kept = 2.0"}, "reads"),
        ({"line": "    setattr(objective.layer, 'kept', 2.0)"}, "reads"),
        ({"last": "        self.layer.kept = self.kept"}, "reads"),
        ({"last": "        self.kept['mean'] = x.mean()"}, "reads"),
        ({"last": "        self.kept.append(x.mean())"}, "reads"),
    ],
)
def test_an_attribute_that_a_class_has_for_good_is_not_what_turns_set_in_another(
    parts: dict[str, str], first: str
) -> None:
    text = SourceText(CLASSES.format(**{"base": "", "more": "", "last": "", "line": ""} | parts))
    (uses,) = [uses for _, uses in text.turns]
    assert ("sets" if "kept" in uses.passing else "reads" if "kept" in uses.carried else "") == first
