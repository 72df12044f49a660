"""The sentence of a finding: whose the variable is, where it was set, what is wrong, and the cure."""

import pytest

from ringleader.train.between_calls.findings import VariableFinding


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("alpha", "the program's alpha (train.py:3) differs: keep it"),
        ("the kept object 'ema'", "the kept object 'ema' (train.py:3) differs: keep it"),
        ("the weights 0.bias", "the weights 0.bias (train.py:3) differs: keep it"),
    ],
)
def test_only_a_variable_is_said_to_be_the_programs(variable: str, said: str) -> None:
    assert VariableFinding(variable, "train.py:3", "keep it", how="differs").sentence == said
