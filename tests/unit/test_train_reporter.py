"""Records leave when their transaction can no longer be rolled back, and not before."""

import numpy as np

from ringleader.train.generation.settled_records import SettledRecords, StepRecord
from ringleader.train.local import RecordedOutput


def reporter(sink: RecordedOutput) -> SettledRecords:
    made = SettledRecords(sink)
    made.begin_generation(speaks=True, recorded_step=0)
    return made


def test_no_step_of_a_round_leaves_before_the_next_round_commits() -> None:
    sink = RecordedOutput()
    said = reporter(sink)
    said.open([StepRecord(step, 1, {"loss": 0.0}) for step in (1, 2, 3)])
    assert list(sink.values) == []
    said.open([StepRecord(step, 1, {"loss": 0.0}) for step in (4, 5)])
    assert list(sink.values) == [1, 2, 3]
    said.settle()
    assert list(sink.values) == [1, 2, 3, 4, 5]


def test_scores_join_the_newest_step() -> None:
    sink = RecordedOutput()
    said = reporter(sink)
    said.open([StepRecord(1, 1, {"loss": 0.0}), StepRecord(2, 1, {"loss": 0.0})])
    said.add_scores(2, 1, {"accuracy": 1.0})
    said.settle()
    assert sink.values == {1: {"loss": 0.0}, 2: {"loss": 0.0, "accuracy": 1.0}}


def test_a_healed_member_keeps_open_records_open() -> None:
    donor, receiver = reporter(RecordedOutput()), RecordedOutput()
    donor.open([StepRecord(1, 1, {})])
    donor.open([StepRecord(2, 1, {}), StepRecord(3, 1, {})])
    healed = SettledRecords(receiver)
    healed.restore(donor.state())
    healed.begin_generation(speaks=True, recorded_step=0)
    assert list(receiver.values) == [1]
    healed.settle()
    assert list(receiver.values) == [1, 2, 3]


def test_who_catches_up_sends_what_it_had_not_settled_and_nothing_twice() -> None:
    furthest, sink = SettledRecords(RecordedOutput()), RecordedOutput()
    behind = reporter(sink)
    for step in range(1, 6):
        furthest.open([StepRecord(step, 1, {"by": 0.0})])
    behind.open([StepRecord(1, 1, {"by": 1.0})])
    behind.open([StepRecord(2, 1, {"by": 1.0})])
    behind.catch_up(furthest.state())
    assert sink.values == {1: {"by": 1.0}, 2: {"by": 0.0}, 3: {"by": 0.0}, 4: {"by": 0.0}}
    behind.settle()
    assert list(sink.values) == [1, 2, 3, 4, 5]


def test_a_step_that_is_stored_already_is_not_sent_again() -> None:
    """The rank 0 before had settled it sooner than this member."""
    sink = RecordedOutput()
    said = SettledRecords(sink)
    said.begin_generation(speaks=True, recorded_step=3)
    for step in range(1, 5):
        said.open([StepRecord(step, 1, {})])
    said.settle()
    assert list(sink.values) == [3, 4]


def test_a_step_that_is_settled_between_generations_is_sent_once() -> None:
    """The plan was made before: its `recorded_step` does not count it."""
    told: list[int] = []

    class Listens(RecordedOutput):
        def metrics(self, step: int, generation: int, values: dict[str, float]) -> None:
            told.append(step)

    said = reporter(Listens())
    for step in (1, 2):
        said.open([StepRecord(step, 1, {})])
    said.end_generation()
    said.open([StepRecord(3, 2, {})])
    assert told == [1]
    said.begin_generation(speaks=True, recorded_step=2)
    assert told == [1, 2]


class Order(RecordedOutput):
    """Notes in which order the parts of records come."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[tuple[str, int]] = []

    def metrics(self, step: int, generation: int, values: dict[str, float]) -> None:
        self.parts.append(("metrics", step))

    def ledger(self, step: int, shards: np.ndarray, rows: np.ndarray) -> None:
        self.parts.append(("rows", step))


def test_the_rows_of_a_step_come_before_the_metrics_by_which_it_counts_as_recorded() -> None:
    """A heartbeat may take one of them and not the other, and be the last one of its worker."""
    sink = Order()
    said = reporter(sink)
    one = np.zeros(1, dtype=np.int64)
    said.open([StepRecord(step, 1, {"loss": 0.0}, one, one) for step in (1, 2)])
    said.settle()
    assert sink.parts == [("rows", 1), ("metrics", 1), ("rows", 2), ("metrics", 2)]
