"""The cost of a 100 MB checkpoint to the steps around it, beside a blocking `torch.save` of the same state.

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
    f"rank 0 after a turn, each the median over all turns of its kind, the longest, less the median step. torch.save: "
    f"rank 0, blocking, the same state. quiet: the same of {APART} undisturbed steps"
)


@dataclass(frozen=True, slots=True)
class CheckpointTimes:
    """Rank 0's record of a run. Times in seconds.

    Attributes:
        commits: when each step was committed.
        written: by step, when this worker's part of its checkpoint was written.
    """

    commits: list[float]
    written: dict[int, float]

    @property
    def gaps(self) -> list[float]:
        """Times between commits; the gap at n lies between the commits of steps n + 1 and n + 2."""
        return [b - a for a, b in pairwise(self.commits)]

    def pauses(self, turn: int) -> list[float]:
        """The pause of every turn of this kind, less the median step: the gap whose median over the turns is longest.

        Steps differ by themselves: the longest gap of a single turn would be some step that has nothing to do with it.
        """
        behind = zip(*self._turns(turn), strict=True)
        return list(max(behind, key=median))

    def longest(self, turn: int) -> list[float]:
        """The longest gap after every turn of this kind, less the median step."""
        return [max(gaps) for gaps in self._turns(turn)]

    def _turns(self, turn: int) -> list[list[float]]:
        """The gaps after every turn of this kind, less the median step."""
        usual = median(self.gaps)
        starts = range(APART * (turn + 1), len(self.commits) - APART + 1, APART * HELD)
        return [[gap - usual for gap in self.gaps[start - 1 : start - 1 + APART]] for start in starts]

    def took(self) -> list[float]:
        """Seconds from each copy to the end of writing."""
        return [at - self.commits[step - 1] for step, at in self.written.items()]

    def slowed(self) -> list[float]:
        """The slowdown behind each copy until its files were written: mean step over median step, less one."""
        usual = median(self.gaps)
        found = []
        for step, at in self.written.items():
            # From the step behind the copy: the copy itself is what `pauses` measures.
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
        settings=f"{EACH}: the longest gap after each checkpoint alone, whatever else made it long; after none "
        f"{median(alone):.4f} s",
    )


def _run(place: Path, rounds: int) -> tuple[CheckpointTimes, int]:
    """Make one run and read its last checkpoint back whole. Raises PeerFailed, BrokenPromise."""
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
    return CheckpointTimes(told[0]["commits"], written), _read_back(
        place, [answer["last"] for answer in told]
    )


def _read_back(place: Path, parts: list[dict[str, object]]) -> int:
    """The bytes of the last checkpoint. Raises BrokenPromise where it holds less than it should."""
    folder = Folder(str(place / PIECES))
    pieces = tuple(CheckpointFile(**piece) for part in parts for piece in part["pieces"])  # type: ignore[attr-defined]
    position = CheckpointPosition(**parts[0]["position"])  # type: ignore[arg-type]
    # There is no supervisor in this run to write the manifest.
    folder.commit(position.name, Manifest(position, pieces, {}))
    (state,) = read(folder, position.name).states
    if state["rest"]["step"] != position.step:
        raise BrokenPromise(f"the checkpoint of step {position.step} holds step {state['rest']['step']}.")
    return sum(piece.size_bytes for piece in pieces)
