"""Printed lines leave when their step is settled, and only once."""

import sys

import pytest

from ringleader.runtime.worker.output_capture import (
    MAX_CHARACTERS,
    MAX_LENGTH,
    MAX_LINES,
    OutputCapture,
    captured,
)


def texts(lines: OutputCapture) -> list[str]:
    return [line.text for line in lines.take()[0]]


def test_lines_wait_until_their_step_is_settled():
    lines = OutputCapture()
    lines.add("info", "before the first step")
    assert texts(lines) == ["before the first step"]
    lines.at_step(1)
    lines.add("info", "in step 1")
    lines.at_step(2)
    lines.add("info", "in step 2")
    assert texts(lines) == []
    lines.settled(2)
    assert texts(lines) == ["in step 1"]


def test_lines_of_a_replayed_step_are_dropped():
    lines = OutputCapture()
    lines.at_step(4)
    lines.add("info", "after step 4")
    lines.at_step(5)
    lines.add("info", "first try")
    lines.replayed()
    lines.add("info", "second try")
    lines.settled(6)
    assert texts(lines) == ["after step 4", "second try"]


def test_what_is_left_at_the_end_leaves():
    lines = OutputCapture()
    lines.at_step(9)
    lines.add("error", "Traceback")
    lines.release()
    assert texts(lines) == ["Traceback"]


def test_a_flood_is_bounded_and_counted():
    lines = OutputCapture()
    for number in range(MAX_LINES + 5):
        lines.add("info", str(number))
    kept, dropped = lines.take()
    assert (len(kept), dropped, kept[-1].text) == (MAX_LINES, 5, str(MAX_LINES + 4))


def test_long_lines_are_bounded_by_what_they_weigh():
    lines = OutputCapture()
    lines.at_step(1)
    most = MAX_CHARACTERS // MAX_LENGTH
    for number in range(3 * most):
        lines.add("info", f"{number} ".ljust(MAX_LENGTH, "x"))
    lines.settled(2)
    kept, dropped = lines.take()
    assert (len(kept), dropped, kept[-1].text.split()[0]) == (most, 2 * most, str(3 * most - 1))
    lines.add("info", "short")
    lines.settled(2)
    assert texts(lines) == ["short"]


def test_print_and_stderr_are_captured_line_by_line():
    lines = OutputCapture()
    with captured(lines):
        print("one", end="")
        print(" two")
        print("10%\r20%\r30%")
        print("wrong", file=sys.stderr)
        print("no newline", end="")
    taken = [(line.level, line.text) for line in lines.take()[0]]
    assert taken == [("info", "one two"), ("info", "30%"), ("error", "wrong"), ("info", "no newline")]


def test_a_carriage_return_takes_away_only_what_is_written_over():
    lines = OutputCapture()
    with captured(lines):
        print("with CR LF\r\nits next line\r")
        # As tqdm wipes out a bar that is to leave nothing, and then shows one that nothing comes behind.
        print("10%\r   \r", end="")
        print("10%\r20%", end="")
    assert texts(lines) == ["with CR LF", "its next line", "20%"]
    with captured(lines):
        print("10%\r   \r", end="")
    assert texts(lines) == []


def test_a_printed_lone_surrogate_is_spelt_out():
    lines = OutputCapture()
    with captured(lines):
        print("a\udcff")
        print("\udcff" * MAX_LENGTH)
    short, long = texts(lines)
    assert (short, len(long)) == ("a\\udcff", MAX_LENGTH)


SECRET = "correct-horse-battery"


@pytest.mark.parametrize(
    "before", [0, MAX_LENGTH - len(SECRET) - 1, MAX_LENGTH - 9, MAX_LENGTH - 1, MAX_LENGTH]
)
@pytest.mark.parametrize("piece", [1_000_000, 7])
@pytest.mark.parametrize("end", ["\n", "", " and more\n", "y" * MAX_LENGTH])
def test_no_part_of_a_secret_is_left_where_a_line_is_cut(before: int, piece: int, end: str):
    lines = OutputCapture()
    lines.hide([SECRET, SECRET + "2"])
    text = "x" * before + SECRET + end
    with captured(lines):
        for start in range(0, len(text), piece):
            sys.stdout.write(text[start : start + piece])
    told = "".join(texts(lines))
    assert not any(SECRET[:n] in told or SECRET[-n:] in told for n in range(4, len(SECRET)))
    assert told.startswith("x" * min(before, MAX_LENGTH - 100))


def test_what_is_no_secret_is_told_whole_however_long_it_is():
    lines = OutputCapture()
    lines.hide([SECRET])
    text = "0123456789" * (MAX_LENGTH // 5)
    with captured(lines):
        for digit in text:
            sys.stdout.write(digit)
    assert "".join(texts(lines)) == text
