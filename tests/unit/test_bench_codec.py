"""The codec benchmark's stopwatch: a side's own seconds, and the loss against them."""

import pytest

from ringleader.bench.exchange.codec import CodecTimes
from ringleader.bench.exchange.codec_member import GOING, REACHED, SMOOTHED_STEPS, WARM_UP_STEPS, Stopwatch


class Store:
    """Gives every turn at once; while somebody waits for one, the others' turns take `others_s` seconds."""

    def __init__(self, clock: "Clock", others_s: float) -> None:
        self._clock = clock
        self._others_s = others_s
        self.told: dict[str, str] = {}

    def get(self, key: str) -> bytes:
        self._clock.now += self._others_s
        return b"3.0"

    def set(self, key: str, value: str) -> None:
        self.told[key] = value


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def trained(losses: list[float], others_s: float, target: float) -> tuple[Stopwatch, dict[str, str], int]:
    """One loss a second, after the warm-up. Returns also the number of losses that it looked at."""
    clock = Clock()
    store = Store(clock, others_s)
    stopwatch = Stopwatch(store, "int8", target, clock)
    assert not any(stopwatch.at(step, 9.0) for step in range(WARM_UP_STEPS + 1))
    for step, loss in enumerate(losses, 1):
        clock.now += 1.0
        if stopwatch.at(WARM_UP_STEPS + step, loss):
            return stopwatch, store.told, step
    return stopwatch, store.told, len(losses)


@pytest.mark.parametrize("others_s", [0.0, 1000.0])
def test_the_turns_of_others_do_not_count(others_s):
    stopwatch, told, _ = trained([2.0] * 8, others_s, target=1.0)
    assert stopwatch.seconds == [float(second) for second in range(1, 9)]
    assert told == {"int8/done/0": GOING, "int8/done/1": GOING}


def test_a_side_is_there_when_the_mean_of_the_last_steps_is_low_enough():
    low = [1.0] * SMOOTHED_STEPS
    stopwatch, told, looked_at = trained([3.0, *low, 1.0], 0.0, target=1.0)
    assert looked_at == 1 + SMOOTHED_STEPS
    assert stopwatch.losses[-1] == 1.0
    assert list(told.values())[-1] == REACHED


def test_one_low_loss_is_not_enough():
    stopwatch, told, _ = trained([0.1] * (SMOOTHED_STEPS - 1), 0.0, target=1.0)
    assert REACHED not in told.values()
    assert len(stopwatch.losses) == SMOOTHED_STEPS - 1


def test_the_loss_at_a_second_is_that_of_the_step_that_ended_then_or_after():
    course = CodecTimes(seconds=[1.0, 2.0, 3.0], losses=[2.5, 2.0, 1.5])
    assert [course.loss_at(second) for second in (0.5, 2.0, 2.5, 9.0)] == [2.5, 2.0, 1.5, 1.5]
