"""Of tables that are filled as rows come, of pools whose slots are filled anew and of names that mean several things
nothing is told; what only looks like them is."""

from pathlib import Path

import pytest
from programs import Program
from tables_and_slots import CARRYING, HARMLESS
from test_carried import run, warned
from test_programs import ALL, keeps_its_bits


@pytest.mark.parametrize("program", HARMLESS, ids=lambda program: program.__name__)
def test_what_is_the_same_whoever_makes_it_is_not_told(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALL, program.__name__, program)
    finished, recorded = run(program, tmp_path / "alone")
    assert (finished.reproducible_why, warned(recorded)) == ("", [])
    keeps_its_bits(program.__name__, "ring", "kill-9", tmp_path / "killed")


@pytest.mark.parametrize("program", CARRYING, ids=lambda program: program.__name__)
def test_what_looks_like_them_and_hands_something_on_is_named(program: Program, tmp_path: Path) -> None:
    finished, _ = run(program, tmp_path)
    assert (CARRYING[program] in finished.reproducible_why, finished.reproducible) == (True, False)
