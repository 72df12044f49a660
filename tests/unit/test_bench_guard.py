"""The rows of the guard benchmark: what others waited, its bar, and what it was before, for each attack."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic

import pytest

from ringleader.bench.control_plane.attack import ATTACK_REQUESTS, AttackRequest, AttackTarget, hold, strike
from ringleader.bench.control_plane.guard import ATTACKS, CASES, MOST_TIMES, Waits, figures
from ringleader.bench.line import Line

WAITS = Waits(alone=[0.01, 0.02, 0.03], beside=[0.02, 0.05, 0.2], told="7 403")


def lines(case: str, waits: Waits = WAITS) -> list[Line]:
    return [figure.line(bench="guard", machine="", command="") for figure in figures(case, waits)]


@pytest.mark.parametrize("case", CASES)
def test_each_attack_has_a_row_of_the_median_and_one_of_the_worst_with_the_same_bar(case: str) -> None:
    median, worst, *more = lines(case)
    assert [(line.case, line.ringleader, line.unit) for line in (median, worst)] == [
        (case, 0.05, "s"),
        (f"{case}-worst", 0.2, "s"),
    ]
    assert (
        median.target
        == worst.target
        == ("ringleader <= 0.1" if case == "followers" else "ringleader <= 0.25")
    )
    assert (median.met, worst.met) == (True, case != "followers")
    assert [line.case for line in more] == (["refused-writes-alone"] if case == "refused-writes" else [])


@pytest.mark.parametrize("case", CASES)
def test_each_row_says_what_the_attack_was_how_it_was_answered_and_what_it_cost_before(case: str) -> None:
    for figure in figures(case, WAITS):
        for words in (
            ATTACKS[case].words,
            "7 403",
            "alone: median 0.0200 s, longest 0.0300 s",
            f"Before: {ATTACKS[case].before}",
        ):
            assert words in figure.settings
        json.loads(figure.line(bench="guard", machine="", command="").as_json())


def test_writes_beside_refused_ones_are_compared_with_those_alone() -> None:
    alone = lines("refused-writes")[-1]
    assert (alone.peer_name, alone.peer, alone.ratio, alone.met) == ("alone", 0.02, 0.4, True)
    slow = Waits(WAITS.alone, [one * (MOST_TIMES + 1) for one in WAITS.alone], "")
    assert lines("refused-writes", slow)[-1].met is False


class Answer(BaseHTTPRequestHandler):
    """Refuses everything."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@contextmanager
def refusing(answer: type[Answer] = Answer) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(30)


def test_an_attacker_strikes_until_its_time_is_over_and_tells_what_it_was_answered() -> None:
    began: list[int] = []
    with refusing() as address:
        target = AttackTarget(address, "", monotonic() + 0.3, "")
        told = strike(target, [AttackRequest("POST", "/x", b"{}")] * 2, lambda: began.append(1))
        assert set(told) == {"403"}
        held = hold(
            AttackTarget(address, "", monotonic() + 0.3, ""), [b"", b"GET / HT"], lambda: began.append(2)
        )
    assert (held["opened"], held["held at the end"], began) == (2, 2, [1, 2])


def test_the_blows_are_what_they_are_said_to_be() -> None:
    requests = {kind: made() for kind, made in ATTACK_REQUESTS.items()}
    assert len(json.loads(requests["findings"][0].body)) == 50_000
    assert requests["findings"][-1].body.count(b'"k"') == 150_001
    assert [len(request.body) >> 20 for request in requests["big-bodies"]] == [31, 31, 31, 0]
    assert {len(request.body) >> 10 for request in requests["login-flood"]} == {1023, 7}
    assert len(requests["refused-writes"]) == 24
    assert {request.body.count(b"1\r\n \r\n") for request in requests["tiny-chunks"]} == {200_000}
    guesses = [request.token() for request in requests["wrong-tokens"] * 2 if request.token is not None]
    assert len(set(guesses)) == 16


def test_an_attacker_who_guesses_shows_what_it_guessed() -> None:
    shown: list[str | None] = []

    class Shown(Answer):
        def do_POST(self) -> None:
            shown.append(self.headers["Authorization"])
            super().do_POST()

    guesses = iter(range(1 << 30))
    with refusing(Shown) as address:
        target = AttackTarget(address, "right", monotonic() + 1.0, "")
        strike(target, [AttackRequest("POST", "/x", b"{}", token=lambda: f"{next(guesses)}")], lambda: None)
    assert shown[:2] == ["Bearer 0", "Bearer 1"]
