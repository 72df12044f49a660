"""One worker's whole run: import the function, run it, leave the result's files, end together with the others."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ringleader.errors import (
    EntrypointImport,
    EntrypointRaised,
    NonFiniteLoss,
    NoStep,
    RingleaderError,
)
from ringleader.parsing import parse
from ringleader.program_text.current_line import line_raising
from ringleader.spec import JobSpec
from ringleader.spec.job import MAX_WHY
from ringleader.spec.program.adoption import Choice, choice_of, framework_of
from ringleader.spec.program.entrypoint import check_adopted, with_choice
from ringleader.spec.program.framework import Framework
from ringleader.train import weights_file
from ringleader.train.generation.member import Member
from ringleader.train.generation.saving.saver import LOOK_S
from ringleader.train.memory import keep_freed_memory
from ringleader.train.ports import Coordinator, RecordSink, check_given_up
from ringleader.train.program_check.background import CheckWorkspace
from ringleader.train.rows.dataset_copies import near
from ringleader.train.rows.random_streams import seed_all
from ringleader.train.session import Session
from ringleader.train.state.fingerprints import weights_sha256

WEIGHTS = "weights.safetensors"
TrainingFunction = Callable[[Session], None]
ADAPTERS = {"ray_train": "ringleader.adapters.ray_train:training_function"}
"""By framework, what imports its functions as such that take the session: by name, as their library may be missing."""


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """A worker's summary at the end; equal on all members but for the times (seconds).

    Attributes:
        digest: `weights_sha256` of the model.
        staleness: gradients by the versions between pull and update, where items are leased.
        skipped_updates: steps whose scaled gradient had overflowed, with fp16.
    """

    digest: str
    steps: int
    samples: int
    loss: float | None
    scores: dict[str, float]
    generations: int
    reproducible: bool
    reproducible_why: str
    wall_s: float
    compute_s: float
    exposed_s: float
    idle_s: float
    recovery_s: float
    staleness: list[int] = field(default_factory=list)
    skipped_updates: int = 0


def _hint(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        name, _, inner = (error.name or "it").partition(".")
        if inner and importlib.util.find_spec(name) is not None:
            return (
                f"{name} is there, without {error.name}: another version may have it, or the name is wrong."
            )
        return f"Put {name} in working_dir, list its package in requirements, or install it on the nodes."
    return "Fix the line above: importing the module runs its code outside of functions and classes."


def load_function(entrypoint: str, path: Path | None = None) -> TrainingFunction:
    """Import `module:function`, from `path` (an unpacked working directory) before anything installed.

    Raises:
        EntrypointImport: with the import's traceback, or naming what is missing.
    """
    _import_from(path)
    module_name, _, name = entrypoint.partition(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # user modules may raise anything, SystemExit too
        raise EntrypointImport(
            f"{module_name!r} cannot be imported:\n{traceback.format_exc(limit=-8)}".rstrip(),
            hint=_hint(error),
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise EntrypointImport(
            f"module {module_name!r} has no function {name!r}.", hint="entrypoint is module:function."
        )
    return function  # type: ignore[no-any-return]


def function_of(spec: JobSpec, path: Path | None = None) -> TrainingFunction:
    """Import the job's training function: `entrypoint` as `load_function` does, or by the adapter of its framework.

    Raises:
        EntrypointImport: as `load_function`.
        SpecInvalid: the function does what its framework's adapter cannot keep, or the framework that `auto` stands for
            takes no such job file.
        LibraryMissing: the framework is not installed.
    """
    if spec.framework == "native":
        return load_function(spec.entrypoint, path)
    _import_from(path)
    framework: Framework = spec.framework
    if (file := _file_of(spec.entrypoint)) is not None:
        tree = parse(file.read_bytes())
        framework = framework_of(framework, tree)
        if framework == "ray_train":
            check_adopted(spec, tree, Path(file.name))
    if framework not in ADAPTERS:  # `auto` finds nothing of another library, or no text
        if (choice := choice_on_node(spec)) is not None:
            with_choice(spec, choice)
        return load_function(spec.entrypoint, path)
    adapt: Any = load_function(ADAPTERS[framework])
    function: TrainingFunction = adapt(spec.entrypoint)
    return function


def choice_on_node(spec: JobSpec) -> Choice | None:
    """The framework that `auto` stands for by the text of the program as this node has it, and why; None where the job
    file names one. For a function that `function_of` has given."""
    if spec.framework != "auto":
        return None
    file = _file_of(spec.entrypoint)
    if file is None:
        return Choice("native", "the node has no source text of the module")
    choice = choice_of(parse(file.read_bytes()), spec.entrypoint.partition(":")[2])
    return Choice(choice.framework, " ".join(f"{choice.why}: {file.name} on the node".split())[:MAX_WHY])


def call_program(function: Callable[..., Any], *given: Any) -> Any:
    """Call the function of a program: the frames above this one hold no line of it, wherever they come from."""
    return function(*given)


def _import_from(path: Path | None) -> None:
    if path is not None and str(path) not in sys.path:
        sys.path.insert(0, str(path))


def _file_of(entrypoint: str) -> Path | None:
    """The source file of the module, which is not imported; None where there is none."""
    try:
        found = importlib.util.find_spec(entrypoint.partition(":")[0])
    except (ImportError, ValueError):  # told when it is imported
        return None
    origin = Path(found.origin) if found is not None and found.origin else None
    return origin if origin is not None and origin.suffix == ".py" and origin.is_file() else None


def run(
    *,
    spec: JobSpec,
    function: TrainingFunction,
    coordinator: Coordinator,
    sink: RecordSink,
    server: bool,
    artifacts: Path,
    checkpoints: str | None = None,
    copies: Path | None = None,
    device: torch.device | None = None,
    beside: CheckWorkspace | None = None,
    workspace: Path | None = None,
) -> WorkerResult:
    """Run `function` to its end as one member of a group.

    Args:
        server: this member owns no shard; it runs the same function and holds the optimizer.
        artifacts: where rank 0 leaves `weights.safetensors`.
        checkpoints: the URI of the folder of the job's checkpoints; None: none are written.
        copies: this node's folder for copies of data sets, where workers read such.
        device: where models and batches live; None: as the job asks.
        beside: where the program is checked beside the job, if the job wants that; None: it is not.
        workspace: this worker's own working directory, which is removed behind it; None: it has none of its own.

    Raises:
        RingleaderError: of the class that says why the job fails.
        Dismissed: when this worker has to leave.
    """
    keep_freed_memory()
    # Before the program makes its models: every worker draws the same first weights.
    seed_all(spec.seed, "init")
    copied = near(spec, None if server else copies)  # a server reads no rows
    session = Session(spec, coordinator, sink, checkpoints, copied, device=device, artifacts=artifacts)
    _watch(session, sink, beside, workspace)
    try:
        _call(function, session)
        return _finish(session, sink, artifacts)
    finally:
        session._close()


def _watch(session: Session, sink: RecordSink, beside: CheckWorkspace | None, workspace: Path | None) -> None:
    """Look at what the program does: its time, its files, and the program itself in a process beside the job."""
    member = session._member
    sink.timed(member.split)
    if beside is not None and member.spec.debug.check:
        member.beside.begin(beside)
    member.variables.files.begin(workspace)


def _call(function: TrainingFunction, session: Session) -> None:
    try:
        function(session)
    except RingleaderError as error:
        if error.code == EntrypointRaised.code:
            error.message += f" This was {_where(session)}{_line_beside(error)}."
        raise
    # Not every BaseException: Dismissed has to pass, it unwinds a worker that leaves.
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        turn = session._steps.turns.running
        step, shard = (turn.step, turn.shard) if turn else (session.global_step, -1)
        why = session._member.sections.why_incomplete
        where = f"{_where(session)}{f'. {why}' if why else ''}"
        told = f"The training function raised {where}:\n{traceback.format_exc()}"
        raise EntrypointRaised(told, step=step, shard=shard) from error


def _where(session: Session) -> str:
    """The place in the program, as `session.global_step` and `session.epoch` count it."""
    turn, step, epoch = session._steps.turns.running, session.global_step, session.epoch
    if turn is not None:
        return f"in step {turn.step + 1} (session.global_step {step}, epoch {epoch}, slice {turn.shard})"
    if not session._loops.epochs:
        return "before the first step"
    running = session._calls.running
    if running is not None and not session._member.progress.calls.is_finished(running):
        return f"after step {step}, in epoch {epoch}"
    return f"after step {step} and the loop of epoch {epoch}"


def _line_beside(error: RingleaderError) -> str:
    """The program's line that led to the error; empty where its message names it."""
    line = line_raising(error)
    return f", at {line}" if line and line not in error.message else ""


def leave_models(member: Member) -> None:
    """Leave the models' structure and buffers to the program, which is behind its last loop."""
    member.buffers.release()
    member.held.leave()


def _finish(session: Session, sink: RecordSink, artifacts: Path) -> WorkerResult:
    member = session._member
    leave_models(member)
    number = session._begin_call()
    if not member.seating.seated and not session._held.models:
        raise NoStep("the training function returned without training.", hint="It registered no model.")
    # All members have applied the last step once this is through: only then are its records settled.
    session._evaluation.barrier(number)
    if session.global_step == 0:
        raise NoStep(
            "the training function returned without a step.",
            hint="Loop over session.batches(dataset) and call session.step(loss) for every batch.",
        )
    _check_finite(session)
    member.reporter.settle()
    sink.settled(session.global_step + 1)
    member.buffers.adopt()  # what the program has made of them since the last step, also if this generation breaks
    digest = weights_sha256(session._held.module)
    # A second barrier: nobody exits while a lost member's part may still have to be done again by the others.
    session._evaluation.barrier(session._begin_call(), lambda: _leave_behind(session, sink, artifacts))
    # Behind the barrier: the trace counts what this worker waits for there, as the result does.
    session._steps.recorder.close()
    sink.settled(session.global_step + 1)
    generations = member.generation.number
    member.close()
    return _result(session, digest, generations)


def _result(session: Session, digest: str, generations: int) -> WorkerResult:
    member, split = session._member, session._member.split
    why = _why_other_bits(session)
    return WorkerResult(
        digest=digest,
        steps=session.global_step,
        samples=member.progress.samples,
        loss=session.loss,
        scores=session._evaluation.scores,
        generations=generations,
        reproducible=not why,
        reproducible_why=why,
        wall_s=split.wall_s,
        compute_s=split.compute_s,
        exposed_s=split.exposed_s,
        idle_s=split.idle_s,
        recovery_s=split.recovery_s,
        staleness=member.progress.staleness,
        skipped_updates=member.scaling.skipped if member.scaling else 0,
    )


def _why_other_bits(session: Session) -> str:
    """The reasons for which the weights may differ from another run's; empty where there are none."""
    found = session._member.findings.why_other_bits
    return "; ".join(filter(None, [session._spec.sync.why_other_bits or "", found]))


def _leave_behind(session: Session, sink: RecordSink, artifacts: Path) -> None:
    """Hand over what is nowhere else once this member is gone: the weights of rank 0, and any member's files of
    checkpoints and unsent reports. If a member dies before all have come this far, the survivors do the same again.

    Raises:
        ExchangeBroken: the generation was given up meanwhile.
    """
    member = session._member
    rank = member.generation.rank

    look = partial(check_given_up, member.coordinator, rank=rank, phase="finish")
    member.draws.tell()
    member.sections.tell()
    member.beside.end()
    # By themselves too: who has found something else itself has them in its reason as well.
    member.variables.tell()
    member.findings.tell()
    member.securing.end(look)
    if rank == 0:
        weights_file.write(session._held.module, artifacts / WEIGHTS, len(session._held.models))
    member.saver.written(look)
    while not sink.handed_over(LOOK_S):  # a process that its supervisor does not answer ends itself
        look()


@torch.no_grad()  # a parameter may hold a tensor that was made in inference mode
def _check_finite(session: Session) -> None:
    """Check the final weights: a gradient that is not finite shows in the loss a step later, after the last step only
    here."""
    for name, parameter in session._held.module.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise NonFiniteLoss(
                f"after the last step, {session.global_step}, the weights {name!r} are not finite.",
                hint="Lower the learning rate, clip the gradients, or look for a division by zero.",
            )
