"""One process's part in an attempt: its workspace, the training function's run, and how that ended."""

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ringleader.comm.transports import Transport
from ringleader.comm.transports.meeting import (
    DEVICE_KINDS,
    GLOO,
    KINDS,
    NEAR_KINDS,
    MeetingCall,
    StoreClients,
    meet,
)
from ringleader.elastic import Meeting, ParkReport, Plan
from ringleader.errors import Dismissed, EntrypointRaised, PackageRefused, RingleaderError
from ringleader.index_group import part_of
from ringleader.runtime.messages import Attendance, MemberTask, ParkMessage, ProcessIdentity, RunEnded
from ringleader.runtime.nodes.environment import rays_sockets
from ringleader.runtime.nodes.node_scratch import copies_of, private_scratch
from ringleader.runtime.worker.handed_indexes import HandedIndexes
from ringleader.runtime.worker.job_secrets import secrets_of
from ringleader.runtime.worker.output_capture import captured, told_before_exit
from ringleader.runtime.worker.package_install import environment_of
from ringleader.runtime.worker.plan_client import Connect, Pair, PlanClient
from ringleader.runtime.worker.reporter import WorkerReporter
from ringleader.runtime.worker.supervisor_link import SupervisorLink
from ringleader.spec.program.entrypoint import missing_folders, python_path
from ringleader.spec.program.framework import CHOSEN
from ringleader.train.generation.environment_check import device_of
from ringleader.train.job_warnings import WARNING
from ringleader.train.program_check.background import WORK, CheckWorkspace
from ringleader.train.run import TrainingFunction, choice_on_node, function_of, run
from ringleader.wire.package import unpack
from ringleader.wire.states import Reason

if TYPE_CHECKING:
    from ringleader.runtime.worker.heartbeat import HeartbeatThread

# For one wait of a transport. Who is lost, frozen or stuck is found out by heartbeats, and an interrupt ends the waits
# for it: this only bounds what nobody finds out. A first step or an evaluation may take longer than any other.
WAIT_S = 3600.0
FIRST = "w0"
"""The worker that reports what all of them find."""


class MemberProcess:
    """The member of `task` in this process. `run` is called once."""

    def __init__(
        self,
        task: MemberTask,
        identity: ProcessIdentity,
        supervisor_link: SupervisorLink,
        heartbeat_thread: "HeartbeatThread",
    ) -> None:
        self._task = task
        self._heartbeat_thread = heartbeat_thread
        self._supervisor_link = supervisor_link
        self._identity = identity
        self._copies = copies_of(task.scratch.name) / identity.node
        self._reporter = WorkerReporter(task.worker, identity, heartbeat_thread.hurry)
        teller = _Teller(task.worker, identity, supervisor_link, self._reporter)
        self.seats = PlanClient(task.worker, teller, *_connect(task, identity.host))

    def attendance(self) -> Attendance:
        """The answer to a supervisor that looks for its workers."""
        park_message, newest = self._reporter.park_message, self.seats.newest
        # While it follows a member its last park message does not count: behind that it parks anew, with that pair.
        waits = (
            park_message is not None
            and park_message.report.generation >= newest
            and park_message.report.followed == self.seats.followed
        )
        return Attendance(self._identity, True, newest, park_message if waits else None)

    def run(self, package: bytes | None) -> RunEnded:
        """Run the training function until it returns, raises or is dismissed. By then all that it left is reported."""
        self._heartbeat_thread.start(self._reporter, self._supervisor_link, self._orphaned)
        with captured(self._reporter.lines) as finish, told_before_exit(lambda: self._report_exit(finish)):
            ended = _ended(lambda: self._train(package))
        self._leave()
        # Before the last heartbeat, which takes them along.
        self._reporter.lines.release()
        self._heartbeat_thread.stop()
        return ended

    def _report_exit(self, finish: Callable[[], None]) -> None:
        """Report what the program has printed and committed before it ends this process."""
        finish()
        self._reporter.lines.release()
        self._heartbeat_thread.last()

    def _train(self, package: bytes | None) -> RunEnded:
        secrets = secrets_of(self._task, self._supervisor_link)
        self._reporter.lines.hide(secrets.values())
        where = f"node {self._identity.host} ({self._task.role} {self._task.worker})"
        device = device_of(self._task.spec, where, server=self._task.role == "server")
        with part_of(HandedIndexes(self._task.worker, self._supervisor_link)):
            return _train(
                self._task,
                package,
                self._copies,
                seats=self.seats,
                reporter=self._reporter,
                secrets=secrets,
                device=device,
                identity=self._identity,
            )

    def _leave(self) -> None:
        """Remove what the workers of this node shared, if this is the last of them."""
        if self._task.spec.data.distribution == "replicated":
            from ringleader.data.copies import remove_unused  # only here: what reads Parquet takes its time

            remove_unused(self._copies)

    def _orphaned(self) -> None:
        _remove(self._task)
        self._leave()


class _Teller:
    """The `StatusReporter` of a worker: notes its status, then sends it to the supervisor."""

    def __init__(
        self,
        worker: str,
        identity: ProcessIdentity,
        supervisor_link: SupervisorLink,
        reporter: WorkerReporter,
    ) -> None:
        self._worker = worker
        self._identity = identity
        self._supervisor_link = supervisor_link
        self._reporter = reporter

    def parked(self, parked: ParkReport) -> None:
        park_message = ParkMessage(self._worker, self._identity, parked)
        # Noted first: every heartbeat repeats it, in case the message below is lost.
        self._reporter.park(park_message)
        self._supervisor_link.parked(park_message)

    def seated(self, generation: int) -> None:
        self._reporter.enter(generation)
        self._supervisor_link.seated(self._worker, generation)

    def in_sync(self, pair: int) -> None:
        self._supervisor_link.in_sync(self._worker, pair)


def _connect(task: MemberTask, host: str) -> tuple[Connect, Pair]:
    # Kept over all generations: a new connection would cost each recovery a proof on both sides.
    clients = StoreClients()

    def connect(plan: Plan, rank: int, cancelled: Callable[[], bool]) -> Transport | None:
        if task.spec.hosted:  # its program connects by itself
            return None
        return meet(call_of(task, host, plan, rank), cancelled, clients)

    def pair(meeting: Meeting, number: int, rank: int, cancelled: Callable[[], bool]) -> Transport:
        place = f"{task.prefix}/pair/{number}"
        call = _call(meeting, place, rank, size=2, host=host, kinds=NEAR_KINDS if meeting.near else KINDS)
        return meet(call, cancelled, clients)

    return connect, pair


def call_of(task: MemberTask, host: str, plan: Plan, rank: int) -> MeetingCall:
    """The meeting call by which `rank` of `plan` meets the others."""
    # One for each generation: addresses of an earlier one would lead to members that are gone.
    place = f"{task.prefix}/{plan.start}.{plan.generation}"
    kinds = _kinds(task, near=plan.meeting.near)
    return _call(plan.meeting, place, rank, size=len(plan.members), host=host, kinds=kinds)


def _call(
    meeting: Meeting, place: str, rank: int, *, size: int, host: str, kinds: tuple[str, ...]
) -> MeetingCall:
    store_host, _, port = meeting.address.rpartition(":")
    return MeetingCall(
        store_host, int(port), place, rank, size, WAIT_S, meeting.secret, host, kinds, rays_sockets()
    )


def _kinds(task: MemberTask, *, near: bool) -> tuple[str, ...]:
    """The transports that members may use."""
    if task.spec.workers.gpus > 0:
        return DEVICE_KINDS
    # Between host memories only gloo has a library's own collective.
    if task.spec.sync.algorithm == "native":
        return (GLOO,)
    return NEAR_KINDS if near else KINDS


def _train(
    task: MemberTask,
    package: bytes | None,
    copies: Path,
    *,
    seats: PlanClient,
    reporter: WorkerReporter,
    secrets: Mapping[str, str],
    device: torch.device,
    identity: ProcessIdentity,
) -> RunEnded:
    threads = task.spec.workers.threads
    # Before the program and its libraries are imported, some of which read OMP_NUM_THREADS only then.
    os.environ.update({"OMP_NUM_THREADS": str(threads), **task.spec.env, **secrets})
    torch.set_num_threads(threads)
    task.artifacts.mkdir(parents=True, exist_ok=True)
    with _workspace(task, package) as folder:
        packages = environment_of(task.spec, folder, partial(_tell, reporter), hide=secrets.values())
        if task.worker == FIRST:
            _warn(missing_folders(task.spec.env, folder), reporter)
        # PYTHONPATH is read by Python when it starts.
        found = [str(p) for p in (*python_path(task.spec.env, folder), *([packages] if packages else []))]
        if task.spec.hosted:
            return _host(task, folder, identity, seats, reporter, python_path=found)
        sys.path[:0] = found
        finished = run(
            spec=task.spec,
            function=training_function(task, folder, reporter),
            coordinator=seats,
            sink=reporter,
            server=task.role == "server",
            artifacts=task.artifacts,
            checkpoints=task.checkpoints,
            copies=copies,
            device=device,
            beside=beside(task, package),
            workspace=folder,
        )
    return RunEnded("finished", result=asdict(finished))


def _tell(reporter: WorkerReporter, kind: str, data: dict[str, Any]) -> None:
    """Report what happens before a generation."""
    reporter.event(kind, 0, data)


def training_function(task: MemberTask, folder: Path, reporter: WorkerReporter) -> TrainingFunction:
    """The job's training function; the first worker reports what `framework: auto` is where nothing has chosen
    before."""
    function = function_of(task.spec, folder)
    # Only here where the module is on the nodes alone, or where the job came without the client.
    choice = choice_on_node(task.spec)
    if choice is not None and task.worker == FIRST:
        reporter.event(CHOSEN, 0, {"framework": choice.framework, "framework_why": choice.why})
    return function


def _host(
    task: MemberTask,
    folder: Path,
    identity: ProcessIdentity,
    seats: PlanClient,
    reporter: WorkerReporter,
    *,
    python_path: list[str],
) -> RunEnded:
    """Run the program of another library."""
    from ringleader.runtime.hosted.member_run import HostedRun, warn_of_promises

    if task.worker == FIRST:
        warn_of_promises(task, reporter.event)
    hosted = HostedRun(
        task,
        folder,
        identity,
        seats=seats,
        reporter=reporter,
        python_path=python_path,
        environ=os.environ,
    )
    return RunEnded("finished", result=asdict(hosted.run()))


def _warn(found: Sequence[tuple[str, str]], reporter: WorkerReporter) -> None:
    """Warn of folders that are not there."""
    # Said before the program is imported, which may fail for it.
    for message, hint in found:
        reporter.event(WARNING, 0, {"about": "PYTHONPATH", "message": message, "hint": hint})
        print(f"ringleader: {message} {hint}")


def beside(task: MemberTask, package: bytes | None) -> CheckWorkspace:
    """The workspace of this worker's program check, beside the node's copies, with which it is removed at last."""

    def make() -> Path:
        folder = private_scratch(task.scratch.name) / f"{task.worker}-check"
        folder.mkdir(mode=0o700)
        if package is not None:
            unpack(package, folder / WORK)
        return folder

    return CheckWorkspace(make)


@contextmanager
def _workspace(task: MemberTask, package: bytes | None) -> Iterator[Path]:
    """A private working directory with the job's package; removed at the end (and by the supervisor)."""
    folder = task.folder
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    before = Path.cwd()
    try:
        if package is not None:
            unpack(package, folder)
        os.chdir(folder)
        yield folder
    finally:
        os.chdir(before)
        _remove(task)


def _remove(task: MemberTask) -> None:
    shutil.rmtree(task.folder, ignore_errors=True)
    with suppress(OSError):  # others may still be in there
        task.scratch.rmdir()


def _ended(train: Callable[[], RunEnded]) -> RunEnded:  # noqa: PLR0911 - one line per kind of end
    """The end of the run, by the codes of `Reason`."""
    try:
        return train()
    except Dismissed:
        return RunEnded("dismissed")
    except EntrypointRaised as error:
        if _out_of_memory(error.__cause__):
            return RunEnded(
                "failed",
                Reason.OUT_OF_MEMORY,
                error.message,
                "Use smaller slices: increase batch.logical_shards, or lower batch.global_size.",
            )
        return RunEnded("raised", error.code, error.message, error.hint, error.step, error.shard)
    except PackageRefused as error:
        return RunEnded("failed", Reason.ENTRYPOINT_IMPORT, error.message, error.hint)
    except RingleaderError as error:
        known = error.code in set(Reason)
        reason = error.code if known else Reason.PLATFORM_ERROR
        return RunEnded("failed", reason, error.message if known else traceback.format_exc(), error.hint)
    except Exception:
        return RunEnded("failed", Reason.PLATFORM_ERROR, traceback.format_exc())
    except BaseException:  # the training function called sys.exit
        return RunEnded("raised", Reason.ENTRYPOINT_RAISED, traceback.format_exc())


def _out_of_memory(error: BaseException | None) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # The CPU allocator of torch has no exception of its own.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
