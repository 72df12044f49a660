"""The ledger holds what the weights are made of, over all attempts, and nothing that was lost on the way."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest

from ringleader.runtime.messages import SettledRows
from ringleader.runtime.records.row_ledger import RowLedger


def attempt(folder: Path, number: int, steps: range, began: tuple[int, int] | None = None) -> RowLedger:
    """One that settles these steps, each of one row: 100 times the attempt, and the step.

    Args:
        began: the attempt and the step of the checkpoint that it began with.
    """
    ledger = RowLedger(folder, number)
    for step in steps:
        rows = np.array([100 * number + step], "<i8").tobytes()
        ledger.add(SettledRows(step, np.zeros(1, "<i4").tobytes(), rows))
    if began is not None:
        ledger.began_with(step=began[1], attempt=began[0])
    return ledger


def rows_of(ledger: RowLedger, place: Path) -> list[int]:
    return list(pq.read_table(ledger.finish(place))["row"].to_pylist())


def test_an_attempt_alone_has_all_its_rows(tmp_path: Path) -> None:
    ledger = attempt(tmp_path / "l", 1, range(1, 4))
    assert rows_of(ledger, tmp_path) == [101, 102, 103]


def test_a_ledger_goes_on_where_a_killed_supervisor_left_it(tmp_path: Path) -> None:
    attempt(tmp_path / "l", 1, range(1, 4))
    raw = tmp_path / "l" / "attempt-1.raw"
    raw.write_bytes(raw.read_bytes()[:-3])  # of step 3 only a part came to disk: it is told again
    assert RowLedger(tmp_path / "l", 1).last_step == 2
    ledger = attempt(tmp_path / "l", 1, range(2, 6))
    assert rows_of(ledger, tmp_path) == [101, 102, 103, 104, 105]


def test_rows_beyond_the_checkpoint_that_the_next_attempt_began_with_do_not_count(tmp_path: Path) -> None:
    attempt(tmp_path / "l", 1, range(1, 7)).close()
    ledger = attempt(tmp_path / "l", 2, range(4, 9), began=(1, 4))  # step 4 is told again
    assert rows_of(ledger, tmp_path) == [101, 102, 103, 104, 205, 206, 207, 208]


def test_rows_that_came_with_the_checkpoint_and_were_told_by_nobody_before_count(tmp_path: Path) -> None:
    attempt(tmp_path / "l", 1, range(1, 4)).close()  # it was lost before it told step 4, which it had saved
    ledger = attempt(tmp_path / "l", 2, range(4, 7), began=(1, 4))
    assert rows_of(ledger, tmp_path) == [101, 102, 103, 204, 205, 206]


def test_the_line_goes_back_to_whoever_wrote_the_checkpoint(tmp_path: Path) -> None:
    attempt(tmp_path / "l", 1, range(1, 7)).close()
    attempt(tmp_path / "l", 2, range(5, 9), began=(1, 4)).close()  # its checkpoints turned out unreadable
    attempt(tmp_path / "l", 3, range(3, 6), began=(1, 2)).close()
    ledger = attempt(tmp_path / "l", 4, range(5, 7), began=(3, 4))
    assert rows_of(ledger, tmp_path) == [101, 102, 303, 304, 405, 406]


def test_an_attempt_that_began_anew_owes_nothing_to_those_before(tmp_path: Path) -> None:
    attempt(tmp_path / "l", 1, range(1, 7)).close()
    ledger = attempt(tmp_path / "l", 2, range(1, 4))
    assert rows_of(ledger, tmp_path) == [201, 202, 203]


def test_a_record_that_a_lost_supervisor_could_not_finish_is_none(tmp_path: Path) -> None:
    attempt(tmp_path / "l", 1, range(1, 4)).close()
    raw = tmp_path / "l" / "attempt-1.raw"
    raw.write_bytes(raw.read_bytes()[:-3])
    assert rows_of(attempt(tmp_path / "l", 2, range(3, 4), began=(1, 2)), tmp_path) == [101, 102, 203]


def test_a_step_that_the_disk_took_in_part_is_taken_when_it_is_told_again(tmp_path: Path) -> None:
    ledger = attempt(tmp_path / "l", 1, range(1, 3))
    rows = SettledRows(3, np.zeros(1, "<i4").tobytes(), np.array([103], "<i8").tobytes())
    file, ledger._file = ledger._file, cast("Any", NearlyFull(ledger._file))
    with pytest.raises(OSError, match="full"):
        ledger.add(rows)
    assert ledger.last_step == 2
    ledger._file = file
    ledger.add(rows)
    assert rows_of(ledger, tmp_path) == [101, 102, 103]


class NearlyFull:
    """Takes five bytes more."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.truncate = file.truncate
        self._full = False

    def write(self, data: memoryview) -> int:
        if self._full:
            raise OSError("full")
        self._full = True
        return int(self._file.write(data[:5]))
