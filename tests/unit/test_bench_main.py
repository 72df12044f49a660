"""The command: what it prints, what it returns, and what it says when it is used wrongly."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringleader.bench.broken import BrokenPromise
from ringleader.bench.line import Cell, Figure, Target
from ringleader.bench.machine import describe
from ringleader.bench.main import main
from ringleader.bench.registry import BENCHMARKS, SUMMARIES, Wish, load


class Fake:
    """A benchmark that needs nothing."""

    CASES = ("a", "b")

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.wishes: list[Wish] = []

    def run(self, wish: Wish) -> Iterator[Figure]:
        self.wishes.append(wish)
        yield Figure("a", "s", "lower", [0.5], [1.0], "ddp", Target("ratio", ">=", 3), settings="so and so")
        if self.broken:
            raise BrokenPromise("two steps were lost.")


class FakeVariants(Fake):
    """A benchmark with two variants of one case."""

    CASES = ("b-L2", "b-L8")


class FakeTable(Fake):
    """A benchmark whose figures are cells."""

    def run(self, wish: Wish) -> Iterator[Figure]:
        yield Figure("a", "s", "lower", [0.5], cell=Cell("mode", "seconds"))
        yield Figure("b", "B", "lower", [], cell=Cell("mode", "bytes"))


def test_cells_are_one_table_for_people_and_lines_of_their_own_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sync"], lambda name: FakeTable()) == 0
    assert [text.split() for text in capsys.readouterr().out.splitlines()[-2:]] == [
        ["seconds", "bytes"],
        ["mode", "0.5", "–"],
    ]
    assert main(["sync", "--json"], lambda name: FakeTable()) == 0
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [(line["case"], line["ringleader"]) for line in lines] == [("a", 0.5), ("b", None)]


def test_json_is_one_object_a_line_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step", "--json"], lambda name: Fake()) == 0
    out = capsys.readouterr()
    assert [json.loads(line)["case"] for line in out.out.splitlines()] == ["a"]
    assert json.loads(out.out)["command"] == "ringleader bench step --json"
    assert "so and so" in out.err


def test_the_table_says_which_target_was_missed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step"], lambda name: Fake()) == 0
    assert "ratio >= 3 MISSED" in capsys.readouterr().out


def test_a_broken_promise_is_an_error_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step"], lambda name: Fake(broken=True)) == 1
    assert "two steps were lost" in capsys.readouterr().err


def test_the_help_says_what_each_benchmark_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert sorted(SUMMARIES) == sorted(BENCHMARKS)
    for name, summary in SUMMARIES.items():
        assert [line for line in lines if line.split()[:1] == [name] and line.endswith(summary)]


def test_cases_seed_and_length_are_passed_on() -> None:
    fake = Fake()
    assert main(["step", "--case", "b", "--full", "--seed", "7"], lambda name: fake) == 0
    assert fake.wishes == [Wish(cases=("b",), full=True, seed=7)]
    assert not fake.wishes[0].wants("a")


def test_the_name_before_a_dash_selects_all_variants_of_a_case() -> None:
    cases = load("step").CASES
    wants = {
        asked: [case for case in cases if Wish((asked,)).wants(case)] for asked in ("cifar", "mlp-free", "m")
    }
    assert wants == {"cifar": ["cifar-L2", "cifar-L8"], "mlp-free": ["mlp-free", "mlp-free-L8"], "m": []}
    assert main(["step", "--case", "b"], lambda name: FakeVariants()) == 0
    assert main(["step", "--case", "b-"], lambda name: FakeVariants()) == 2


def test_wrong_names_are_refused_with_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed"], lambda name: Fake()) == 2
    assert "recovery" in capsys.readouterr().err
    assert main(["step", "--case", "c"], lambda name: Fake()) == 2
    assert "choose from a, b" in capsys.readouterr().err


def test_help_is_no_error() -> None:
    assert main(["--help"], lambda name: Fake()) == 0


def test_every_registered_benchmark_loads_and_names_its_cases() -> None:
    for name in BENCHMARKS:
        benchmark = load(name)
        assert benchmark.CASES, name
        assert callable(benchmark.run)


def test_the_machine_is_described_without_host_user_or_path() -> None:
    import getpass
    import socket

    text = describe()
    assert "cores of" in text
    assert socket.gethostname() not in text.split()
    assert getpass.getuser() not in text.split()
    assert str(Path.home()) not in text


def test_looking_at_the_command_loads_neither_torch_nor_ray() -> None:
    code = "import sys, ringleader.bench.main; print({'torch', 'ray'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"
