"""What a program only shows, stores or returns to nobody is no finding, and what training can feel stays one."""

from pathlib import Path

import pytest
import torch
from test_unkept_state import LENGTH, found
from torch import Tensor, nn

from ringleader.program_text.loop_bodies import SourceText

BODY = """
def train(session):
    {made}
    for _ in range(4):
        for x, y in session.batches(data):
            loss = f(x, y)
            session.step(loss)
            losses.append(loss.item())
        means.append(sum(losses))
        {used}
        losses = []
"""
METER = """
class Meter:
    def update(self, value):
        self.value = value

    def {method}(self):
        return f"{{self.value}}"

def train(session):
    meter, end = Meter(), 0
    for x, y in session.batches(data):
        session.step(f(x, y))
        meter.update(len(x) - end)
        end = len(x)
    print(meter)
"""
TIMED = """
@recorded
def {name}({arguments}):
    times, begin = [], time.time()
    for x, y in session.batches(data):
        session.step(f(x, y))
    times.append(time.time() - begin)
    return times
"""


@pytest.mark.parametrize(
    "made",
    [
        "losses, means = [], []",
        "[losses, (means, n)] = [], (list(), 0)",
        "losses = []; means = []",
    ],
)
@pytest.mark.parametrize(
    ("used", "felt"), [("print(means[-1])", False), ("optimizer.param_groups[0]['lr'] = means[-1]", True)]
)
def test_lists_made_side_by_side_are_lists(made: str, used: str, felt: bool) -> None:
    assert SourceText(BODY.format(made=made, used=used)).compared(("train", "means")) is felt


@pytest.mark.parametrize(("method", "felt"), [("__str__", False), ("__format__", False), ("__call__", True)])
def test_what_is_only_made_into_text_does_not_matter(method: str, felt: bool) -> None:
    assert SourceText(METER.format(method=method)).flows.matters(("train", "end")) is felt


@pytest.mark.parametrize(
    ("name", "arguments", "felt"), [("train", "session", False), ("scale", "session, data", True)]
)
def test_what_a_decorated_training_function_returns_does_not_matter(
    name: str, arguments: str, felt: bool
) -> None:
    text = SourceText(TIMED.format(name=name, arguments=arguments))
    assert text.flows.matters((name, "begin")) is felt


@pytest.mark.parametrize(
    ("begun", "felt"),
    [
        ("number, begin = 0, time.time()", False),
        ("begun = begin = time.time()", False),
        ("begin, number = 0, time.time()", True),  # a number, which may mean anything
        ("begin, number = times()", True),
    ],
)
def test_a_stopwatch_may_be_set_with_others_at_once(begun: str, felt: bool) -> None:
    text = SourceText(
        f"""
class Meter:
    def update(self, value):
        if value is not None:
            self.show(value)

def timed(batches):
    meter = Meter()
    {begun}
    for batch in batches:
        meter.update(time.time() - begin)
        yield batch
        begin = time.time()
"""
    )
    assert text.flows.matters(("timed", "begin")) is felt


class Logging(nn.Module):
    """Keeps a number for the log."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[str, float] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.logged["mean"] = torch.rand(()).item()
        return x

    def show(self) -> None:
        print(self.logged)


class Updating(Logging):
    """Keeps it by `update`."""

    def __init__(self) -> None:
        super().__init__()
        self.kept_by_update: dict[str, float] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.kept_by_update.update(mean=torch.rand(()).item())
        return x

    def show(self) -> None:
        print(self.kept_by_update)


class Feeling(nn.Module):
    """Goes on from such a number."""

    def __init__(self) -> None:
        super().__init__()
        self.felt: dict[str, float] = {"mean": 1.0}

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.felt["mean"]
        self.felt["mean"] = torch.rand(()).item()
        return x


class Named(nn.Module):
    """Reads it by a name in quotes."""

    def __init__(self) -> None:
        super().__init__()
        self.quoted = 0.0

    def forward(self, x: Tensor) -> Tensor:
        x = x * float(getattr(self, "quoted"))  # noqa: B009
        self.quoted += 1.0
        return x


@pytest.mark.parametrize("kind", [Logging, Updating])
def test_a_number_that_a_module_keeps_for_the_log_is_no_finding(
    kind: type[Logging], capsys: pytest.CaptureFixture[str]
) -> None:
    module = kind()
    assert found(module, *[LENGTH] * 8) == ""
    module.show()
    assert "mean" in capsys.readouterr().out


@pytest.mark.parametrize(("module", "path"), [(Feeling(), "felt['mean']"), (Named(), "quoted")])
def test_one_that_a_forward_reads_stays_one(module: nn.Module, path: str) -> None:
    assert path in found(module, *[LENGTH] * 8)


def test_one_that_another_file_of_the_program_reads_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models_apart.py").write_text(
        "from torch import nn\n"
        "class Apart(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.seen_apart = 0\n"
        "    def forward(self, x):\n"
        "        self.seen_apart += 1\n"
        "        return x\n"
    )
    (tmp_path / "train_apart.py").write_text("def scale(net, loss):\n    return loss * net.seen_apart\n")
    monkeypatch.syspath_prepend(tmp_path)
    import models_apart  # type: ignore[import-not-found]

    assert found(models_apart.Apart(), *[LENGTH] * 8) == ""
    import train_apart  # type: ignore[import-not-found]  # noqa: F401

    assert "is not committed" in found(models_apart.Apart(), *[LENGTH] * 8)


@pytest.mark.parametrize(
    ("used", "felt"), [("print(mean)", False), ("optimizer.param_groups[0]['lr'] = mean", True)]
)
def test_a_list_that_is_cleared_is_not_read_for_it(used: str, felt: bool) -> None:
    text = SourceText(
        f"class Module:\n"
        f"    def __init__(self):\n"
        f"        self.outputs = []\n"
        f"    def on_train_epoch_end(self):\n"
        f"        mean = sum(self.outputs)\n"
        f"        {used}\n"
        f"        self.outputs.clear()\n"
    )
    assert text.flows.may_matter(("", ".outputs")) is felt


RUNNER = """
class Buffer:
    def __init__(self):
        self.history, self.output = {{}}, {{}}

    def average(self):
        for name in self.history:
            self.output[name] = sum(self.history[name])
        self.ready = True

class Runner:
    def scale(self):
        {scale}

    def run(self, session):
        for number, (x, y) in enumerate(session.batches(rows)):
            self.inner = number
            session.step(f(self.net(x), y) * self.scale())
            if (self.inner + 1) % 2 == 0:
                {then}
                print(self.inner, self.buffer.output)
"""


@pytest.mark.parametrize(
    ("scale", "then", "felt"),
    [
        ("return 1.0", "self.buffer.average()", False),
        ("return len(self.buffer.output)", "self.buffer.average()", True),
        ("return 1.0", "self.net.reset()", True),  # nothing is known of it
        (
            "if self.inner % 2 == 0:\n            return 0.5\n        return 1.0",
            "self.buffer.average()",
            True,
        ),
    ],
)
def test_the_number_of_a_turn_may_decide_about_a_log_line(scale: str, then: str, felt: bool) -> None:
    assert SourceText(RUNNER.format(scale=scale, then=then)).flows.matters(("", ".inner")) is felt
