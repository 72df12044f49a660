"""The check of a program beside its job: another process runs it once as a joiner would now.

It is the same as `ringleader check`, with the job's own state at the same point. Training gives it a copy of the state
at a boundary, as it does for a joiner, and reads the findings at a later one. Everything else is done by a thread that
waits and by a process of the lowest priority.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from ringleader.comm.seal import Seal, new_secret
from ringleader.files import INDEXES, SCRATCH, own_indexes
from ringleader.lifeline import LEAST_URGENT
from ringleader.spec import JobSpec
from ringleader.train.between_calls.boundaries import OPTIMIZERS, live_tensors, size_bytes
from ringleader.train.between_calls.findings import VariableFinding
from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.between_calls.variables import ProgramVariables
from ringleader.train.generation.committed_state import CommittedState
from ringleader.train.generation.context import MemberContext
from ringleader.train.program_check.repeated_step import RepeatedStep, other_loss
from ringleader.wire.findings import DIFFERS, NO_HARM, RAISES

AFTER_S = 10.0
"""The training time before the first check: a shorter job is not checked, and says so."""
CALL = 3
"""A job that was checked before this session call began is checked once more behind it: by then lines between calls
have run, also those behind an evaluation."""
NEVER = -1
SKIPPED = "the background check of the program is skipped"
TOO_SHORT = (
    "the job was too short for the background check of its program; `ringleader check` does it beforehand"
)
MOST_BYTES = 384 << 20
"""The largest state that is copied for this: with a larger one training would wait for more than 50 ms."""
AT_ONCE_BYTES = 8 << 20
"""The largest state that is copied without memory touched before: new pages take several times as long as the copy."""
SPARE_BYTES = 8 << 20
"""The part of that memory for gaps between tensors and for data beside them."""
CPU_S = 60
"""The most CPU seconds of the process, its imports not counted."""
DEADLINE_S = 300.0
"""The time for the process. On a fully busy node it takes minutes, and seconds elsewhere."""
CHECK = "ringleader-check"
"""The name of the thread."""
LOOK_S = 0.1
PATIENCE_S = 10.0

ORDER, STATE, SCOPE, FOUND, WORK, TEMPORARY = "order.json", "state", "check", "found.json", "work", "tmp"
"""Names in the folder: the order, the sealed state with its seal's scope, the findings, the working directory, and
temporary files."""


@dataclass(frozen=True, slots=True)
class CheckWorkspace:
    """The place of a program's check, and its limits.

    Attributes:
        make: makes a private folder, and in it WORK with the job's package. It is removed behind each check.
        after_s: seconds of training before the first check.
        niceness: that of the process.
        cpu_s: the most CPU seconds of the process, its imports not counted.
        most_bytes: the largest state that is copied for it.
    """

    make: Callable[[], Path]
    after_s: float = AFTER_S
    niceness: int = LEAST_URGENT
    cpu_s: int = CPU_S
    most_bytes: int = MOST_BYTES


class BackgroundCheck:
    """The check by one member. Called from its training thread. The member that has rank 0 checks, once, or twice where
    session calls are long. Where it is lost before it has told what was found, the next one does; how far the program
    was checked is healed and checkpointed.

    Attributes:
        repeated: compares the job's own steps, where no process can check.
    """

    def __init__(
        self,
        context: MemberContext,
        state: CommittedState,
        sections: ProgramSections,
        variables: ProgramVariables,
    ) -> None:
        self._context = context
        self._state = state
        self._sections = sections
        self._variables = variables
        self._place: CheckWorkspace | None = None
        self._wanted: CheckWorkspace | None = None
        self._since: float | None = None
        self._checked = self._known = NEVER
        self._run: _Run | None = None
        self._room: _Room | None = None
        self._next: tuple[int, float | None] | None = None
        self.repeated = RepeatedStep(context, variables, self._has_no_process)

    @property
    def checked(self) -> int:
        """For the word of a step: 1 and the session call, `CALL` at most, up to which a check has told what it found; 0
        where none has."""
        return min(self._known, CALL) - NEVER

    def hear(self, checked: int) -> None:
        """Note how far any member's check has come."""
        self._known = max(self._known, checked + NEVER)

    def state(self) -> int:
        return self._known

    def restore(self, state: int, /) -> None:
        """Take over how far the program was checked."""
        self._known = max(self._known, state)

    def begin(self, place: CheckWorkspace) -> None:
        """Let this member check, if it is the one that does."""
        self._place = self._wanted = place

    def committed(self) -> None:
        """Copy the state, all of it committed, if a check is due; report the findings of one that has ended."""
        if self._place is None:
            return
        self.note_step()
        if self._run is not None:
            self._hear(self._run)
        elif self._due(self._place.after_s):
            self._start(self._place)

    def note_step(self) -> None:
        """Note the loss of the step that is committed now, if it is the one that a running check computes: the first
        behind the copy, of a round that of its first step, to which all replicas come with the committed state."""
        if self._run is not None and self._next is None:
            progress = self._context.progress
            self._next = progress.step, progress.loss

    def end(self) -> None:
        """Report the findings when the program is over, before the result is made."""
        if self._run is not None:
            self._hear(self._run)
        if self._run is not None or self._room is not None:
            print(
                "ringleader: the job ended before the background check of its program did; the check has no result."
            )
        elif self._place is not None and self._leads and max(self._checked, self._known) == NEVER:
            why = self._why_not(self._size_bytes(), self._place.most_bytes)
            print(f"ringleader: {SKIPPED}: {why}." if why else f"ringleader: {TOO_SHORT}.")
        self.close()

    def close(self) -> None:
        """Stop the check, as this member leaves. Idempotent."""
        self._place, run, self._run, self._room = None, self._run, None, None
        if run is not None:
            run.stop()
        self.repeated.close()

    def _due(self, after_s: float) -> bool:
        context = self._context
        self._since = monotonic() if self._since is None else self._since
        call, checked = context.progress.calls.next - 1, max(self._checked, self._known)
        if checked >= CALL:
            self._place = None
        new = checked == NEVER or checked < CALL <= call
        late = new and monotonic() - self._since >= after_s
        return late and self._leads and not self._sections.catches_up

    @property
    def _leads(self) -> bool:
        """Whether this member is the one that checks."""
        return self._context.generation.rank == 0

    def _start(self, place: CheckWorkspace) -> None:
        context = self._context
        why = self._why_not(self._size_bytes(), place.most_bytes) or (
            self._room.refused if self._room else ""
        )
        if why:
            print(f"ringleader: {SKIPPED}: {why}.")
            self._place = self._room = None
            return
        self._room = self._room or _Room(self._size_bytes())
        if self._room.memory is None:
            return  # at a later boundary
        room, self._room = self._room.memory, None
        self._checked = context.progress.calls.next - 1
        secret = new_secret()
        state = context.transfer.payload(self._state.rest({}), Seal(secret, SCOPE), room)
        order = {"call": self._checked, "secret": secret.hex(), "threads": torch.get_num_threads()}
        self._run, self._next = _Run(place, context.spec, order, state), None

    def _has_no_process(self) -> bool:
        """Whether this member's job wants its program checked, and no process can: the job's own steps are compared."""
        most = None if self._wanted is None else self._wanted.most_bytes
        return most is not None and bool(self._why_not(self._size_bytes_later(), most))

    def _why_not(self, size: int, most: int) -> str:
        """The reason why the program cannot be checked here; empty where it can."""
        context = self._context
        if not context.same_bits:
            return "this sync mode is not reproducible"
        # Not said before it is so: members that came later compare none, nor do servers that lease items.
        instead = (
            "the first step of each loop is computed twice instead, and " if self.repeated.compared else ""
        )
        beforehand = f"{instead}`ringleader check` runs the program on a few batches on the CPU"
        if context.device.type != "cpu":
            return f"the job trains on a GPU, and a check on the CPU would give other bits; {beforehand}"
        if size > most:
            return f"the state of {size >> 20} MiB is above the limit of {most >> 20} MiB; {beforehand}"
        return ""

    def _size_bytes(self) -> int:
        return size_bytes(live_tensors(self._context.held)) + self._sections.tensor_bytes

    def _size_bytes_later(self) -> int:
        """The size once the first step is made, in which an optimizer makes up to two numbers for each weight."""
        # Before the first step an optimizer has none of them, and the state would seem to fit.
        made = size_bytes(live_tensors(self._context.held)[OPTIMIZERS])
        return self._size_bytes() + max(0, 2 * size_bytes(self._context.parameters) - made)

    def _hear(self, run: "_Run") -> None:
        answer = run.answer
        if answer is None:
            return
        self._run = None
        # What else differs explains it.
        if not answer.found and self._next is not None:
            answer.found.extend(map(asdict, other_loss(answer.computed, *self._next)))
        print(f"ringleader: {_told(answer, self._checked)}")
        for found in answer.found:
            self._variables.find_beforehand(VariableFinding(**found))
        for raised in answer.raised:
            self._raises(VariableFinding(**raised))
        self._known = max(self._known, self._checked)

    def _raises(self, finding: VariableFinding) -> None:
        """Report an exception of joiners: such a worker ends the job with it, and nothing gets into the weights."""
        generation, line = self._context.generation, finding.line
        self._context.reporter.say(DIFFERS, generation.number, finding.beforehand | {RAISES: True})
        print(
            f"ringleader: {NO_HARM}, but a worker that joins later would raise here ({line}): {finding.cure}."
        )


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """The answer that the process left, as `process.check` returns it."""

    found: list[dict[str, str]] = field(default_factory=list)
    raised: list[dict[str, str]] = field(default_factory=list)
    until: str = ""
    error: str = ""
    computed: dict[str, Any] = field(default_factory=dict)


def _told(answer: CheckAnswer, call: int) -> str:
    if answer.error:
        return f"the background check of the program failed: {answer.error}"
    so_far = f"background check: ran the lines before session call {call} as a worker that joins later would"
    if answer.until:
        rest = "the check does not do this, and ended there"
        return f"{so_far}, up to {answer.until}: {rest}."
    differs = "found differences" if answer.found or answer.raised else "found no differences"
    return f"{so_far}: {differs}."


class _Room:
    """Memory for a state of that size, made by a thread.

    Attributes:
        memory: (n,) uint8, empty for a small state, which needs none; None as long as it is not ready.
        refused: the reason why there is none; empty as long as none is known.
    """

    def __init__(self, state_bytes: int) -> None:
        self.memory: Tensor | None = (
            None if state_bytes > AT_ONCE_BYTES else torch.empty(0, dtype=torch.uint8)
        )
        self.refused = ""
        self._size_bytes = state_bytes + state_bytes // 64 + SPARE_BYTES
        if self.memory is None:
            threading.Thread(target=self._make, name=CHECK, daemon=True).start()

    def _make(self) -> None:
        try:
            self.memory = torch.empty(
                self._size_bytes, dtype=torch.uint8
            ).zero_()  # which writes to every page
        except RuntimeError as error:
            self.refused = f"not enough memory for a copy of the state ({str(error).splitlines()[0]})"


class _Run:
    """One check: a thread that starts the process, waits for it, and leaves nothing behind.

    Attributes:
        answer: None as long as there is none.
    """

    def __init__(self, place: CheckWorkspace, spec: JobSpec, order: dict[str, Any], state: Tensor) -> None:
        self.answer: CheckAnswer | None = None
        self._spec = spec
        self._place = place
        self._order = order
        self._state: Tensor | None = state
        self._stopped = threading.Event()
        # The process ends with the thread that starts it: this one outlives it.
        self._thread = threading.Thread(target=self._serve, name=CHECK, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the process, if it runs."""
        self._stopped.set()
        self._thread.join(PATIENCE_S)

    def _serve(self) -> None:
        folder: Path | None = None
        try:
            folder = self._place.make()
            answer = self._ask(folder)
        except Exception as error:  # of whatever file system: training goes on
            answer = CheckAnswer(error=f"{type(error).__name__}: {error}")
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        self.answer = answer

    def _ask(self, folder: Path) -> CheckAnswer:
        # Let go as soon as it is in the file: the copy may take as much as the job's own state.
        state, self._state = self._state, None
        assert state is not None
        for name in (WORK, TEMPORARY):
            (folder / name).mkdir(exist_ok=True)
        more = {"spec": self._spec.model_dump(mode="json"), "cpu_s": self._place.cpu_s}
        (folder / ORDER).write_text(json.dumps(self._order | more))
        state.numpy().tofile(folder / STATE)
        del state
        process = subprocess.Popen(
            [sys.executable, "-c", _program(folder, self._place.niceness)],
            cwd=folder / WORK,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ)
            # What it reads of files has been found by those that train.
            | {INDEXES: str(own_indexes())}
            | dict.fromkeys(("TMPDIR", SCRATCH), str(folder / TEMPORARY)),
            start_new_session=True,  # a group of its own, which is killed as a whole
        )
        ended = self._wait(process)
        found = folder / FOUND
        if found.exists():
            return CheckAnswer(**json.loads(found.read_text()))
        return CheckAnswer(error=_why_without(process.returncode, self._place.cpu_s, ended=ended))

    def _wait(self, process: "subprocess.Popen[bytes]") -> bool:
        """Wait until the process ends, or has to. Returns whether it ended by itself; nothing of its group is left."""
        until = monotonic() + DEADLINE_S
        while not (ended := _is_over(process)) and monotonic() < until and not self._stopped.wait(LOOK_S):
            pass
        with suppress(ProcessLookupError):  # it has not been waited for: the number is still its own
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return ended


def _program(folder: Path, niceness: int) -> str:
    """The process's program: it lowers its priority before slow imports, and finds modules in its own copies first."""
    path = [str(folder / WORK), *sys.path]
    return (
        f"import sys; sys.path[:] = {path!r}; sys.dont_write_bytecode = True; "
        f"from ringleader.lifeline import stand_back; stand_back({os.getpid()}, {niceness}); "
        f"from ringleader.train.program_check.process import main; main({str(folder)!r})"
    )


def _is_over(process: "subprocess.Popen[bytes]") -> bool:
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    # WNOWAIT: its number stays taken until the group of that number is killed.
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _why_without(code: int, cpu_s: int, *, ended: bool) -> str:
    """The reason why the process left nothing."""
    if not ended:
        return f"it took more than {DEADLINE_S:g} s"
    if code == -signal.SIGXCPU:
        return f"it took more than {cpu_s} s of CPU time"
    return f"its process ended with code {code}"
