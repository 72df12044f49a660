"""What a checkpoint of 100 MB costs the steps around it, beside a blocking `torch.save` of the same state.

One run of two workers: at one boundary a checkpoint is due, at another rank 0 saves the state by itself while its
group waits, as a training script without asynchronous checkpoints does. Neither is under way when the other begins.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ringleader.bench.broken import BrokenPromise
from ringleader.bench.elasticity.checkpoint_member import APART, BATCH, HELD, PIECES
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.children import Child
from ringleader.bench.processes.gate import LOOPBACK
from ringleader.bench.registry import Wish
from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import CheckpointFile, CheckpointPosition, Manifest
from ringleader.checkpoint.snapshot import read

CASE, EACH = "pause-100MB", "pause-100MB-each"
CASES = (CASE,)
WORLD = 2
TARGET = Target("ratio", ">=", 10)
DEADLINE_S = 500.0
SETTINGS = (
    f"{CASE}: MLP 1024-2660-2660-1024 with SGD and momentum, 100 MB, 2 workers of 1 thread and {BATCH // WORLD} rows "
    f"each, L = {WORLD}, local disk; by turns every {APART} steps. pause: of the {APART} gaps between two commits of "
    f"rank 0 behind a turn, each the median over all turns of its kind, the longest, less the median step. torch.save: "
    f"rank 0, blocking, the same state. quiet: the same of {APART} undisturbed steps"
)


@dataclass(frozen=True, slots=True)
class Course:
    """What rank 0 saw. Times in seconds.

    Attributes:
        commits: when each step was committed.
        written: by step, when this worker's part of its checkpoint was written.
    """

    commits: list[float]
    written: dict[int, float]

    @property
    def gaps(self) -> list[float]:
        """The one at n lies between the commits of steps n + 1 and n + 2."""
        return [b - a for a, b in pairwise(self.commits)]

    def pauses(self, turn: int) -> list[float]:
        """Of every turn of this kind, less the median step: the gap that is the longest by its median over the turns.

        Steps differ by themselves: the longest of each turn alone would be some step that the turn has nothing to do
        with.
        """
        behind = zip(*self._turns(turn), strict=True)
        return list(max(behind, key=median))

    def longest(self, turn: int) -> list[float]:
        """Of every turn of this kind: the longest gap after it less the median step."""
        return [max(gaps) for gaps in self._turns(turn)]

    def _turns(self, turn: int) -> list[list[float]]:
        """Of every turn of this kind the gaps after it less the median step."""
        usual = median(self.gaps)
        starts = range(APART * (turn + 1), len(self.commits) - APART + 1, APART * HELD)
        return [[gap - usual for gap in self.gaps[start - 1 : start - 1 + APART]] for start in starts]

    def took(self) -> list[float]:
        """From the copy to the end of writing."""
        return [at - self.commits[step - 1] for step, at in self.written.items()]

    def slowed(self) -> list[float]:
        """How much longer than the median the steps behind the copy were, until the files were written."""
        usual = median(self.gaps)
        found = []
        for step, at in self.written.items():
            during = [b - a for a, b in pairwise(self.commits[step:]) if a < at]
            if during:
                found.append(mean(during) / usual - 1)
        return found


def run(wish: Wish) -> Iterator[Figure]:
    """Seconds of every pause."""
    with tempfile.TemporaryDirectory() as place:
        course, size_bytes = _run(Path(place), rounds=36 if wish.full else 12)
    quiet, peers, ours = (course.pauses(turn) for turn in range(HELD))
    slowed = mean(course.slowed())
    yield Figure(
        case=CASE,
        unit="s",
        better="lower",
        ours=ours,
        peers=peers,
        peer_name="torch.save",
        target=TARGET,
        settings=f"{SETTINGS} {median(quiet):.4f} s; step {median(course.gaps):.4f} s; {size_bytes / 1e6:.1f} MB; "
        f"steps while it is written {slowed:+.1%}, {median(course.took()):.1f} s",
    )
    alone, theirs, mine = (course.longest(turn) for turn in range(HELD))
    yield Figure(
        case=EACH,
        unit="s",
        better="lower",
        ours=mine,
        peers=theirs,
        peer_name="torch.save",
        target=TARGET,
        settings=f"{EACH}: the longest gap behind each checkpoint alone, whatever else made it long; behind none "
        f"{median(alone):.4f} s",
    )


def _run(place: Path, rounds: int) -> tuple[Course, int]:
    """One run; the last checkpoint is read back whole. Raises PeerFailed, BrokenPromise."""
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    words = [f"--port={store.port}", f"--world={WORLD}", f"--rounds={rounds}", f"--place={place}"]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    module = "ringleader.bench.elasticity.checkpoint_member"
    with (
        Child(module, [*words, "--rank=0"], threads) as first,
        Child(module, [*words, "--rank=1"], threads) as second,
    ):
        told = [child.answer(0, DEADLINE_S) for child in (first, second)]
    written = {int(step): at for step, at in told[0]["written"].items()}
    return Course(told[0]["commits"], written), _read_back(place, [answer["last"] for answer in told])


def _read_back(place: Path, parts: list[dict[str, object]]) -> int:
    """The bytes of the last checkpoint. Raises BrokenPromise where it holds less than it should."""
    folder = Folder(str(place / PIECES))
    pieces = tuple(CheckpointFile(**piece) for part in parts for piece in part["pieces"])  # type: ignore[attr-defined]
    position = CheckpointPosition(**parts[0]["position"])  # type: ignore[arg-type]
    folder.commit(position.name, Manifest(position, pieces, {}))
    (state,) = read(folder, position.name).states
    if state["rest"]["step"] != position.step:
        raise BrokenPromise(f"the checkpoint of step {position.step} holds step {state['rest']['step']}.")
    return sum(piece.size_bytes for piece in pieces)
