"""A program run on a few batches: once as it is, and twice as a joiner would run it.

    python -m ringleader.train.program_check.runs SPEC FOLDER first|again|joins

Finished session calls return at once in the second run, and the lines between them run again on recorded results.
Values that differ then depend on who runs the lines, and when. The third run comes in between two steps of a loop, and
makes the next one: another loss than in the first run depends on the turns that a worker had before.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.utils.data import Subset

from ringleader.elastic import ParkReport
from ringleader.errors import EntrypointRaised, RingleaderError
from ringleader.spec import JobSpec
from ringleader.spec.program.entrypoint import python_path
from ringleader.train.between_calls.findings import BODY_CURE
from ringleader.train.between_calls.loop_names import escaped
from ringleader.train.dataset_loops import LoopRequest
from ringleader.train.evaluation import Score
from ringleader.train.generation.saving.saver import CheckpointSaver
from ringleader.train.generation.starting.initial_weights import Beginning
from ringleader.train.local import RecordedOutput, SingleMember, alone, copies
from ringleader.train.ports import Seat
from ringleader.train.program_check.repeated_step import NAMES, other_loss
from ringleader.train.rows.dataset_copies import near
from ringleader.train.rows.random_streams import seed_all
from ringleader.train.rows.slices import Collate
from ringleader.train.run import function_of, leave_models
from ringleader.train.session import Session

STEPS, CALLS = 4, 8
"""The most steps of a loop, and the number of session calls after which the program is left."""
BUDGET_S = 20.0
"""The time after which loops end with the next step, and the program with the next call."""
STATE, MIDDLE, FOUND = "state.pt", "middle.pt", "found.json"
INSIDE = 2
"""The steps of a loop after which the third run comes in."""
FURTHER = 2
"""The next calls among which a loop is looked for, where the one that a joiner comes into has no step left."""


class FarEnough(BaseException):
    """The program has run far enough. A BaseException, so that no `except Exception` of the program catches it."""


class CheckedSession(Session):
    """A session of few rows and few calls.

    Args:
        most: the number of the call at which the program is left.
        given: the state that `take` returned, for a joiner.
        beginning: the weights that the job begins with, read already.
    """

    def __init__(
        self, spec: JobSpec, copied: Any, beginning: Beginning, most: int = CALLS, given: Any = None
    ) -> None:
        device = None if torch.cuda.is_available() else torch.device("cpu")
        coordinator = SingleMember(spec.shards) if given is None else _Later(spec.shards)
        super().__init__(
            spec,
            coordinator,
            RecordedOutput(),
            near=copied,
            device=device,
            saver=None if given is None else _Given(spec, given),
            beginning=beginning,
        )
        self._member.beside.repeated.compare_each_loop(self._compared)
        self._most = most
        self._until = time.monotonic() + BUDGET_S
        self.called = 0

    def step(self, loss: torch.Tensor, *, weight: float | None = None, **metrics: Any) -> None:
        if time.monotonic() > self._until:
            self.stop()
        before = self.global_step
        super().step(loss, weight=weight, **metrics)
        if self.global_step != before:
            self._committed()

    def _committed(self) -> None:
        """React to a step's commit."""

    def evaluate(
        self, dataset: Any, score: Score, *, collate: Collate | None = None, loader_workers: int = 0
    ) -> dict[str, float]:
        return super().evaluate(self._few(dataset), score, collate=collate)

    def take(self) -> dict[str, Any]:
        """The state that a joiner would be given now."""
        return self._member.state.whole()

    def _compared(self) -> None:
        """React to a loop's first step having been computed twice."""

    def _run_batches(self, request: LoopRequest) -> Any:
        return super()._run_batches(replace(request, dataset=self._few(request.dataset), loader_workers=0))

    def _begin_call(self, dataset: Any = None) -> int:
        number = super()._begin_call(dataset)
        self.called = number
        if self._is_enough(number):
            raise FarEnough
        return number

    def _is_enough(self, number: int) -> bool:
        """Whether the program is left at this call."""
        return number > 0 and (number == self._most or time.monotonic() > self._until)

    def _few(self, dataset: Any) -> Any:
        return Subset(dataset, range(min(len(dataset), STEPS * self.global_batch)))


class FirstSession(CheckedSession):
    """The session of the first run, which leaves the state inside of its newest loop for the third one.

    Args:
        file: the place for it.
    """

    def __init__(self, spec: JobSpec, copied: Any, beginning: Beginning, file: Path) -> None:
        super().__init__(spec, copied, beginning)
        self._middle_file = file
        self._middle: tuple[int, int, bytes] | None = None
        self._loop_steps = 0

    def _run_batches(self, request: LoopRequest) -> Any:
        self._loop_steps = 0
        self._middle = None
        return super()._run_batches(request)

    def _committed(self) -> None:
        self._loop_steps += 1
        if self._loop_steps == INSIDE:
            # At once: the next step changes these very tensors.
            copied = BytesIO()
            torch.save(self.take(), copied)
            self._middle = self.called, self.global_step, copied.getvalue()
        elif self._middle is not None:
            (call, step, state), self._middle = self._middle, None
            if self.global_step == step + 1:
                torch.save((call, self.global_step, self.loss, state), self._middle_file)


class LateSession(CheckedSession):
    """A session that runs on to one call of a job, and computes nothing of those before. Where that is a loop, a step
    of it, or of the next one, is computed twice.

    Attributes:
        computed: the first step that it has computed: {"line": of its loop, "step", "loss"}. None without one, and
            where lines come behind each step, which a joiner does not run for the steps before.
    """

    def __init__(self, spec: JobSpec, copied: Any, beginning: Beginning, most: int, given: Any) -> None:
        super().__init__(spec, copied, beginning, most, given)
        self._loops.dry_turn.use_later_rows()
        self._looped = self._by_steps = False
        self.computed: dict[str, Any] | None = None

    def _run_batches(self, request: LoopRequest) -> Any:
        self._looped, self._by_steps = True, request.by_steps
        return super()._run_batches(request)

    def _is_enough(self, number: int) -> bool:
        looped, self._looped = self._looped, False
        if number == self._most:
            self._member.enter()
            self._arrive()
        return number > self._most + FURTHER or (number == self._most and not looped)

    def _arrive(self) -> None:
        """React to having reached that call, before any step."""

    def _compared(self) -> None:
        newest = self._member.beside.repeated.newest
        self.computed = asdict(newest) if newest is not None and not self._by_steps else None
        raise FarEnough


def joins(spec: JobSpec, folder: Path) -> list[dict[str, str]]:
    """Make the third run, in a process of its own, where the first one has left a state for it.

    Returns:
        The finding, {"variable", "line", "cure"}, where the next step has another loss than in the first run.
    """
    if not (folder / MIDDLE).exists():
        return []
    few, function = in_one_process(spec), function_of(spec)
    # Unpickled: the first run has written it, into a private folder.
    call_number, step, loss, state = torch.load(folder / MIDDLE, weights_only=False)
    given = torch.load(BytesIO(state), weights_only=False)
    seed_all(spec.seed, "init")
    with copies(few) as place:
        session = LateSession(few, near(few, place), _beginning(spec), call_number, given)
        try:
            call(function, session)
        finally:
            session._close()
    return [asdict(finding) for finding in other_loss(session.computed, step, loss)]


class _Later(SingleMember):
    """A later attempt's only member: it begins with a state that is given."""

    def next_seat(self, parked: ParkReport) -> Seat:
        seat = super().next_seat(parked)
        # Only a later attempt asks for the newest checkpoint.
        return replace(seat, plan=replace(seat.plan, attempt=2))


class _Given(CheckpointSaver):
    def __init__(self, spec: JobSpec, state: Any) -> None:
        super().__init__(spec, None, RecordedOutput())
        self._state = state

    def newest(self, device: torch.device) -> Any:
        return _Found([self._state])

    def tell_start(self, found: Any, generation: int, calls: int) -> None:
        pass


class _Found:
    def __init__(self, states: list[Any]) -> None:
        self.states = states


def check(spec: JobSpec, folder: Path, *, again: bool) -> list[dict[str, str]]:
    """Make one of the two runs, in a process of its own; the second one reads the state that the first left there.

    Returns:
        The findings: {"variable", "line", "cure"}; in the first run, which cannot differ, those of the program's text.

    Raises:
        RingleaderError: the program cannot be run.
    """
    few = in_one_process(spec)
    function = function_of(spec)
    # Unpickled: the first run has written it, into a private folder.
    most, given = torch.load(folder / STATE, weights_only=False) if again else (CALLS, None)
    seed_all(spec.seed, "init")
    with copies(few) as place:
        copied, beginning = near(few, place), _beginning(spec)
        session = (
            CheckedSession(few, copied, beginning, most, given)
            if again
            else FirstSession(few, copied, beginning, folder / MIDDLE)
        )
        try:
            error = call(function, session)
            found = [asdict(finding) for finding in session._member.variables.found.values()]
            if again:
                return [*found, *([raised(error)] if error is not None else [])]
            if error is not None:
                _refuse(error, session)
            torch.save((session.called, session.take()), folder / STATE)
            named = escaped(function)
            return [*named, *(each for each in found if each["variable"] in NAMES)]
        finally:
            session._close()


def call(function: Any, session: CheckedSession) -> Exception | SystemExit | None:
    """Run the program as far as the session lets it. Returns the exception that it raised."""
    try:
        function(session)
        # As at the end of a run: the variables are looked at there, too.
        leave_models(session._member)
        session._begin_call()
    except FarEnough:
        return None
    except (Exception, SystemExit) as error:
        return error
    return None


def _refuse(error: Exception | SystemExit, session: CheckedSession) -> NoReturn:
    """Refuse a program that cannot be run, by the error that it raised."""
    if isinstance(error, RingleaderError):
        raise error
    told = "".join(traceback.format_exception(error))
    message = f"The training function raised:\n{told}"
    raise EntrypointRaised(message, step=session.global_step, shard=-1) from error


def raised(error: BaseException) -> dict[str, str]:
    """The finding for an exception behind finished calls, as where a loop's body did not run."""
    ours = str(Path(__file__).parents[1])
    lines = [line for line in traceback.extract_tb(error.__traceback__) if not line.filename.startswith(ours)]
    where = f"{Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else ""
    cure = (
        f"{type(error).__name__}: {error}: lines after a loop must not need values from its body: {BODY_CURE}"
    )
    return {"variable": "an exception", "line": where, "cure": cure}


def _beginning(spec: JobSpec) -> Beginning:
    """The weights that the job begins with. Where they cannot be read on this machine both runs do without."""
    beginning = Beginning(spec.init_from)
    beginning.read()
    return Beginning(None) if beginning.unread else beginning


def in_one_process(spec: JobSpec) -> JobSpec:
    """The job in one process that keeps nothing. Of the modes only a ring gives the same bits to whoever runs it. Its
    initial weights are read apart from it."""
    ring = JobSpec.parse({"name": spec.name, "entrypoint": spec.entrypoint, "sync": "ring"})
    kept = {
        "sync": ring.sync,
        "checkpoint": ring.checkpoint,
        "debug": ring.debug,
        "init_from": None,
        "init_optimizers": False,
    }
    return alone(spec.model_copy(update={**kept, "requirements": None}))


def main(arguments: list[str]) -> int:
    """Write the findings of a run, or the error that kept it from running, into the folder."""
    file, place, which = arguments
    spec, folder = JobSpec.parse(json.loads(Path(file).read_text())), Path(place)
    os.environ.update(spec.env)
    here = Path.cwd()
    sys.path[:0] = [str(path) for path in (here, *python_path(spec.env, here))]
    told: Mapping[str, Any]
    try:
        found = joins(spec, folder) if which == "joins" else check(spec, folder, again=which == "again")
        told = {"found": found}
    except RingleaderError as error:
        told = {"error": error.message, "hint": error.hint}
    (folder / FOUND).write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
