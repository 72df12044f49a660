"""What the benchmark of the modes makes of its runs: losses at equal rows and seconds, a wide table, a picture."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ringleader.bench.exchange.nodes import no_bytes
from ringleader.bench.line import Cell, Figure
from ringleader.bench.table import Table
from ringleader.bench.training.course import LossPoint, TimedTraining, save_rows
from ringleader.bench.training.modes import MODES, REFERENCE, Family
from ringleader.bench.training.picture import DASHES, TINTS, Curve, spread, svg
from ringleader.bench.training.sync import ModeRun, Scale, _figures


def run(name: str, seconds: list[float], losses: list[float], crossed: int = 0) -> ModeRun:
    """2,048 rows a stretch; one worker that waited a quarter of its time."""
    points = [
        LossPoint(2048 * n, s, loss, 0.5) for n, (s, loss) in enumerate(zip(seconds, losses, strict=True))
    ]
    course = TimedTraining(Path(), 4.0, 0.02, no_bytes, points, seconds[-1] / 4, seconds[-1], crossed)
    return ModeRun(name, next(m for m in MODES if m.name == name.removesuffix("-again")), [course])


RUNS = [
    run("ring", [0, 2, 4], [2.3, 2.0, 1.6], crossed=3200),
    run("local-sgd", [0, 1, 2, 3, 4], [2.3, 2.1, 1.9, 1.7, 1.5], crossed=640),
    run("ring-again", [0, 3, 6], [2.3, 2.0, 1.7], crossed=3200),
]


def figures(counted: bool = True) -> dict[str, Figure]:
    return {figure.case: figure for figure in _figures(RUNS, Scale(4096, 4.0, counted))}


def test_a_loss_between_two_evaluations_lies_on_the_line_between_them() -> None:
    assert RUNS[2].loss_after_s(4.0) == pytest.approx(1.9)
    assert RUNS[0].loss_after_s(4.0) == 1.6
    assert RUNS[1].loss_after_rows(4096) == 1.9


def test_every_mode_stands_beside_both_runs_of_the_ring() -> None:
    found = figures()
    assert len(found) == 15
    assert found["local-sgd"].peers == [1024.0, 4096 / 6]
    assert found["local-sgd-loss-after-seconds"].peers == pytest.approx([1.6, 1.9])
    assert (found["ring"].peers, found["ring"].peer_name) == ([], None)
    assert found["ring-again"].peers == [1024.0]


def test_bytes_are_those_of_one_global_batch() -> None:
    assert figures()["ring-bytes"].ours == [100.0]
    assert figures()["local-sgd-bytes"].ours == [10.0]


def test_bytes_that_nobody_could_count_are_null() -> None:
    line = figures(counted=False)["local-sgd-bytes"].line(bench="sync", machine="m", command="c")
    read = json.loads(line.as_json())
    assert [read[key] for key in ("ringleader", "peer", "peer_name", "ratio")] == [None] * 4


def test_figures_of_one_thing_stand_in_one_row_of_the_wide_table() -> None:
    table = Table()
    for figure in figures(counted=False).values():
        assert not list(table.add(figure.line(bench="sync", machine="m", command="c"), figure.cell))
    head, ring, rounds, again = table.wide()
    assert len({len(text) for text in (head, ring, rounds, again)}) == 1
    assert "loss after 4,096 rows" in head
    assert rounds.split()[:3] == ["local-sgd", "2,048", "×2.40"]
    assert "–" in rounds


def test_rows_of_a_table_are_printed_as_they_come_and_cells_at_the_end() -> None:
    table = Table()
    line = Figure("mlp", "s", "lower", [1.0]).line(bench="step", machine="m", command="c")
    assert [text.split()[0] for text in table.add(line, None)] == ["case", "mlp"]
    assert [text.split()[0] for text in table.add(line, None)] == ["mlp"]
    assert not list(table.add(line, Cell("a", "b")))
    assert [text.split() for text in table.wide()] == [["b"], ["a", "1"]]


def test_the_picture_is_xml_with_a_line_and_a_name_for_every_mode() -> None:
    curves = [Curve(m.label, m.family, ((0.0, 2.3), (20.0, 1.3 + n / 100))) for n, m in enumerate(MODES)]
    root = ElementTree.fromstring(svg(curves, "rows & more"))
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}polyline")) == len(MODES)
    texts = [text.text for text in root.findall(f"{space}text")]
    assert all(mode.label in texts for mode in MODES)
    assert "rows & more" in texts


def test_two_modes_never_look_the_same_in_the_picture() -> None:
    families: list[Family] = [mode.family for mode in MODES]
    assert all(families.count(family) <= len(DASHES) for family in families)
    assert len(set(TINTS.values())) == len(TINTS)


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ([10, 50], [10, 50]),
        ([10, 12, 14], [10, 20, 30]),
        ([85, 88, 90], [70, 80, 90]),
        ([-5, 0, 95], [0, 10, 90]),
        ([], []),
    ],
)
def test_labels_keep_their_distance_and_their_order(wanted: list[float], places: list[float]) -> None:
    assert spread(wanted, 10, 0, 90) == places


def test_rows_that_stand_in_for_real_ones_are_called_synthetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert save_rows(tmp_path / "rows.pt").startswith("synthetic")


def test_the_ring_comes_first_in_the_list_of_modes() -> None:
    assert REFERENCE.name == "ring"
    assert REFERENCE.rate == 1
