"""A generation that is over at any moment: whatever a member is about to send, to ask or to wait for then."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from faults import FaultPlan
from play import Play
from test_leaving import COPIES, RING, ROUNDS, SERVER, SERVERS, job, train
from threaded_cast import Killed, ThreadedCast
from undisturbed import undisturbed

from ringleader.comm.communicator import Communicator

torch.set_num_threads(1)
CANONICAL = {"algorithm": "direct"}
"""Chosen by name: nothing is tried at the start, which would be most of all calls."""
TOKENS = {"intra_node": "token_ring", "inter_node": "token_ring"}
EXACT = {
    "ring": RING | CANONICAL,
    "local_sgd": ROUNDS | CANONICAL,
    "server": SERVER,
    "servers": SERVERS,
    "copies": COPIES,
}
BY_THE_CLOCK = {
    "ssp": SERVER | {"consistency": "ssp"},
    "async": SERVER | {"consistency": "async"},
    "tokens": TOKENS,
}
MODES = EXACT | BY_THE_CLOCK
CALLS = ("_submit", "beside", "wait", "done")
"""Of a communicator, from the training thread: all that can find out that the generation is over."""
SOME = 6


class Moments:
    """Counts every member's calls, and at one of them does what is asked for."""

    def __init__(
        self, victim: str = "", nth: int = 0, act: Callable[[Communicator], None] | None = None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._moment, self._act = (victim, nth), act

    def reached(self, communicator: Communicator) -> None:
        me = threading.current_thread().name
        if me[:1] in "ws" and me[1:].isdigit():
            self.counts[me] += 1
            if self._act is not None and (me, self.counts[me]) == self._moment:
                self._act(communicator)

    @contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(Communicator, name, self._noting(getattr(Communicator, name)))
            yield

    def _noting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(communicator: Communicator, *what: Any, **how: Any) -> Any:
            self.reached(communicator)
            return call(communicator, *what, **how)

        return noted


def perform(
    sync: dict[str, Any],
    folder: Path,
    *,
    grows: bool = False,
    workers: int = 2,
    nodes: Mapping[str, int] = MappingProxyType({}),
    **moment: Any,
) -> tuple[Play, Counter[str]]:
    """With `grows` another worker comes at the third step; `killed`: the victim dies then."""
    faults = FaultPlan().resize(at_step=3, workers_min=1, workers_max=workers + 1) if grows else FaultPlan()
    stage = ThreadedCast(
        job(sync, workers={"min": 1, "max": workers}), train, faults, artifacts=folder, nodes=nodes
    )

    def die(_: Communicator) -> None:
        stage._processes[moment["victim"]].kill()
        raise Killed

    killed = moment.pop("killed", False)
    moments = Moments(**moment, act=die if killed else Communicator.abort)
    with moments.watched():
        return stage.play(), moments.counts


def check(name: str, folder: Path, *, grows: bool, killed: bool, some: int | None) -> None:
    """At so many moments drawn by chance, or at all."""
    sync = MODES[name]
    whole, counts = perform(sync, folder / "undisturbed", grows=grows)
    assert whole.outcome == "succeeded", (whole.reason, whole.message)
    digest = undisturbed(job(sync), train)[0].digest if name in EXACT else None
    victims = [who for who in counts if not killed or who.startswith("w")]  # servers have no backups here
    moments = [(who, nth) for who in sorted(victims) for nth in range(1, counts[who] + 1)]
    for who, nth in moments if some is None else random.Random(0).sample(moments, some):
        play, _ = perform(sync, folder / f"{who}-{nth}", grows=grows, victim=who, nth=nth, killed=killed)
        assert play.outcome == "succeeded", (who, nth, play.reason, play.message)
        assert digest in (None, play.digest), (who, nth)


@pytest.mark.parametrize("killed", [False, True], ids=["given up", "killed"])
@pytest.mark.parametrize("name", MODES)
def test_a_generation_that_ends_at_some_call_costs_nothing(name: str, killed: bool, tmp_path: Path) -> None:
    check(name, tmp_path, grows=killed, killed=killed, some=SOME)


@pytest.mark.chaos
@pytest.mark.parametrize("grows", [False, True], ids=["", "growing"])
@pytest.mark.parametrize("killed", [False, True], ids=["given up", "killed"])
@pytest.mark.parametrize("name", MODES)
@pytest.mark.timeout(1800)
def test_a_generation_that_ends_at_any_call_costs_nothing(
    name: str, killed: bool, grows: bool, tmp_path: Path
) -> None:
    check(name, tmp_path, grows=grows, killed=killed, some=None)


@pytest.mark.parametrize("who", ["w0", "w1"])
def test_a_loop_that_is_left_behind_a_round_whose_end_was_given_up_costs_nothing(
    who: str, tmp_path: Path
) -> None:
    """Its replicas are finished: the loop body has no turn in which it could see that round's end."""
    sync = MODES["local_sgd"]
    alone = undisturbed(job(sync), train)[0].digest
    for nth in range(14, 24):
        play, _ = perform(sync, tmp_path / str(nth), victim=who, nth=nth)
        assert play.outcome == "succeeded", (nth, play.reason, play.message)
        assert play.digest == alone


@pytest.mark.parametrize(("name", "first"), [("servers", 48), ("copies", 34)])
def test_a_loop_that_is_left_behind_a_step_whose_end_reached_no_worker_costs_nothing(
    name: str, first: int, tmp_path: Path
) -> None:
    """The servers have committed it. Each worker has one slice: its loop body sees that end only behind the next step,
    which must not have happened then."""
    sync = MODES[name]
    alone = undisturbed(job(sync), train)[0].digest
    for nth in range(first, first + 8):
        play, _ = perform(sync, tmp_path / str(nth), workers=4, victim="w5", nth=nth)
        assert play.outcome == "succeeded", (nth, play.reason, play.message)
        assert play.digest == alone, nth


def test_rings_on_two_nodes_that_are_healed_before_their_first_item_lose_none(tmp_path: Path) -> None:
    """Nobody has a version of the tokens then; the server must not take that for having been told that all is over."""
    sync = {"inter_node": "parameter_server", "intra_node": "token_ring"}
    nodes = {"w2": 1, "w3": 1}
    for nth in range(15, 23):
        play, _ = perform(sync, tmp_path / str(nth), workers=4, nodes=nodes, victim="w4", nth=nth)
        assert play.outcome == "succeeded", (nth, play.reason, play.message)
