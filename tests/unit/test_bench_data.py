"""The peer of `bench data` that lives in an environment of its own."""

import sys
from pathlib import Path

import pytest

from ringleader.bench.reading.data import MOSAIC_PYTHON, beside_mosaic

OURS = [600.0, 500.0]


def python_that(does: str, folder: Path) -> str:
    """A program in the place of a Python, which is given a file and its arguments."""
    program = folder / "python"
    program.write_text(f"#!{sys.executable}\nimport json, sys\n{does}\n")
    program.chmod(0o700)
    return str(program)


def test_the_peer_in_an_environment_of_its_own_is_run_by_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "isolated, file, *rest = sys.argv[1:]\nassert isolated == '-I' and file.endswith('mosaic_streaming.py')\n"
    said += "assert open(file).read() and f'--folder={sys.path[0]}/tokens' in rest and '--runs=2' in rest\n"
    said += "print('a word of a library')\nfor rate in (100, 120): print(json.dumps({'rows_per_s': rate}))"
    monkeypatch.setenv(MOSAIC_PYTHON, python_that(said, tmp_path))
    figure = beside_mosaic(tmp_path / "tokens", OURS, 2)
    assert (figure.ours, figure.peers, figure.peer_name) == (OURS, [100, 120], "mosaicml-streaming")
    line = figure.line(bench="data", machine="", command="")
    assert (line.ratio, line.target, line.met) == (5.0, "ratio >= 5", True)


def test_without_that_environment_there_is_no_peer_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MOSAIC_PYTHON, raising=False)
    figure = beside_mosaic(tmp_path, OURS, 2)
    assert (list(figure.peers), figure.peer_name, figure.target) == ([], None, None)
    assert MOSAIC_PYTHON in figure.settings


def test_a_peer_that_fails_is_told_and_leaves_no_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(MOSAIC_PYTHON, python_that("sys.exit('no such package')", tmp_path))
    figure = beside_mosaic(tmp_path, OURS, 2)
    assert (list(figure.peers), figure.target) == ([], None)
    assert "mosaic_streaming failed: no such package" in capfd.readouterr().err


def test_a_python_that_is_not_there_is_told_and_leaves_no_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(MOSAIC_PYTHON, str(tmp_path / "none"))
    figure = beside_mosaic(tmp_path, OURS, 2)
    assert (list(figure.peers), figure.target) == ([], None)
    assert "mosaic_streaming failed" in capfd.readouterr().err
