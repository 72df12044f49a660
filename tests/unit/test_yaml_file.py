"""Job files that are no job files, or more than they seem: refused in words, and at once."""

from pathlib import Path

import pytest

from ringleader.errors import SpecInvalid
from ringleader.spec import JobSpec

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(9 * [f'*{before}'])}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Nine lines, 400 bytes; 9 to the power of 9 values."""
BROKEN = {
    "deep": ("[" * 20_000, "nested too deeply"),
    "deep params": ("name: a\nparams: " + "{a: " * 400 + "1" + "}" * 400, "nested too deeply"),
    "twice": ("name: a\nname: b\n", "'name' appears twice"),
    "twice inside": ("name: a\nworkers:\n  min: 1\n  max: 2\n  min: 2\n", "'min' appears twice"),
    "bomb": (BOMB, "more than 10000 values"),
    "bomb of keys": (BOMB + "j: {? *i\n: 1, ? *i\n: 2}\n", "a key appears twice"),
    "endless list": ("name: a\nparams: {b: &a [*a]}\n", "refers to a value that contains it"),
    "endless": ("name: a\nparams: &a {b: *a}\n", "refers to a value that contains it"),
    "no date": ("name: 2026-13-45\n", "month must be in 1..12"),
    "no mapping for a key": ("? {a: 1}\n: 2\n", "unhashable key"),
    "no text": ('name: "\\ud800"\n', "unpaired surrogate"),
    "a number that cannot be told": (
        "name: a\nseed: 0x" + "f" * 5000,
        "a number of more than 1000 characters",
    ),
    "a number by sixties": ("name: a\nparams: {a: 1" + ":1" * 300 + ".5}", "int too large"),
    "not UTF-8": (b"name: \xff\n", "utf-8"),
}


def test_an_alias_may_stand_for_what_is_named_before(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    shared = "params: {a: &a {lr: 0.1, deep: [1, 2]}, b: *a, c: {<<: *a, lr: 0.2}}"
    path.write_text(f"name: a\nentrypoint: m:f\n{shared}\n")
    params = JobSpec.load(path).params
    assert params["b"] == params["a"] == {"lr": 0.1, "deep": [1, 2]}
    assert params["c"] == {"lr": 0.2, "deep": [1, 2]}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_no_job_file_is_refused_in_words(name: str, tmp_path: Path) -> None:
    content, words = BROKEN[name]
    path = tmp_path / "job.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SpecInvalid) as caught:
        JobSpec.load(path)
    assert words in caught.value.message


def test_a_merged_key_may_be_set_again(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: a\nentrypoint: m:f\nparams:\n"
        "  late: {one: {<<: &base {lr: 1, momentum: 0.9}, lr: 2}, two: &two {<<: *base, lr: 3}}\n"
        "  three: {<<: *two, lr: 4}\n"
    )
    params = JobSpec.load(path).params
    assert params["three"] == {"lr": 4, "momentum": 0.9}


def test_a_date_belongs_in_quotes_and_that_is_said(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: a\nentrypoint: train:main\nparams: {since: 2024-02-01}\n")
    with pytest.raises(SpecInvalid) as refused:
        JobSpec.load(file)
    (found,) = refused.value.errors
    assert (found["pointer"], found["value"]) == ("/params/since", "2024-02-01")
    assert found["message"].startswith("2024-02-01 is read as a date; allowed: text in quotes")
    file.write_text(file.read_text().replace("2024-02-01", "'2024-02-01'"))
    assert JobSpec.load(file).params == {"since": "2024-02-01"}
