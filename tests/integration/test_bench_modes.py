"""Members of a real session on two nodes: one course for all, bytes by the counters of the links between them."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from forks import processes

from ringleader.bench.broken import PeerFailed
from ringleader.bench.exchange import laboratory
from ringleader.bench.exchange.nodes import link_bytes, no_bytes, pretended, two_nodes
from ringleader.bench.processes.members import train
from ringleader.bench.training.course import STRETCH_ROWS, TimedTraining, save_rows, small_net
from ringleader.bench.training.modes import MODES
from ringleader.bench.training.sync import ModeRun, job

pytestmark = pytest.mark.timeout(400)
MODELS_BYTES = 4 * sum(p.numel() for p in small_net().parameters())


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    processes()  # before the first members, who come from that server
    path = tmp_path_factory.mktemp("course") / "rows.pt"
    save_rows(path)
    return path


def test_all_workers_end_after_the_same_stretch_with_the_same_losses(rows: Path) -> None:
    mode = next(m for m in MODES if m.name == "ps")
    ended = train(
        pretended("none"), "ps", job(mode, 0), TimedTraining(rows, 0.01, 0.02, no_bytes), deadline_s=90
    )
    first, *others = [worker.function for worker in ended]
    assert [point.samples for point in first.points] == [0, STRETCH_ROWS]
    assert all(other.points == first.points for other in others)
    assert {worker.finished.samples for worker in ended} == {STRETCH_ROWS}
    assert 0 < first.waited_s < first.trained_s
    assert first.crossed_bytes == 0


@pytest.mark.skipif(bool(laboratory.missing()), reason=f"no network laboratory: {laboratory.missing()}")
def test_a_ring_of_two_levels_brings_every_gradient_once_over_the_link_each_way(rows: Path) -> None:
    mode = next(m for m in MODES if m.name == "ring-two-level")
    with ExitStack() as stack:
        nodes = stack.enter_context(two_nodes())
        assert not nodes.unlinked
        course = TimedTraining(rows, 0.01, 0.02, link_bytes)
        ended = train(nodes, mode.name, job(mode, 0), course, deadline_s=90)
    crossed = ModeRun(mode.name, mode, [worker.function for worker in ended]).crossed_bytes
    # Headers, acknowledgements and control words are under 4 % of the gradients.
    assert 2 * MODELS_BYTES <= crossed <= 2.08 * MODELS_BYTES


def test_a_member_that_fails_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    course = TimedTraining(tmp_path / "missing.pt", 0.01, 0.02, no_bytes)
    with pytest.raises(PeerFailed, match=r"(?s)rank \d: .*missing\.pt"):
        train(pretended("none"), "ring", job(MODES[0], 0), course, deadline_s=90)
