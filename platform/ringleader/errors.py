"""Every error Ringleader raises on purpose: what happened, to what, and what to do next."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

FINDINGS_TOLD = 20
"""The most findings that are reported on one input: once these are mended it is sent again."""


class RingleaderError(Exception):
    """The root of the tree. `code` is stable and travels over the wire; `hint` says what to do next."""

    code = "platform_error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class SpecInvalid(RingleaderError):
    """The job file, or the sweep file, is wrong. `errors` holds one {pointer, value, allowed, message} a finding, of
    the first `FINDINGS_TOLD`; the message says how many more there are."""

    code = "spec_invalid"

    def __init__(self, errors: Iterable[dict[str, Any]], *, file: str = "job file") -> None:
        self.errors, left = first_findings(errors)
        lines = [f"{e['pointer']}: {e['message']}" for e in self.errors]
        super().__init__(f"the {file} is not valid: " + "; ".join(lines) + and_more(left))


def first_findings(found: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The findings to report, and the number of the others, which are counted, not kept."""
    left = iter(found)
    return list(islice(left, FINDINGS_TOLD)), sum(1 for _ in left)


def and_more(count: int) -> str:
    """The end of a list of findings of which so many are left out."""
    return f"; … and {count:,} more" if count else ""


class PackageRefused(RingleaderError):
    """An uploaded working directory holds something that must not be unpacked."""

    code = "package_refused"

    def __init__(self, entry: str, why: str) -> None:
        self.entry = entry
        super().__init__(
            f"the package entry {entry!r} was refused: {why}.",
            hint="Pack plain files and folders below the working directory only.",
        )


class ApiProblem(RingleaderError):
    """The API answered with a problem (RFC 9457)."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str = "",
        errors: Sequence[dict[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.errors = list(errors)
        self.headers = headers or {}


class ApiUnreachable(RingleaderError):
    """No answer from the control plane before the deadline."""

    code = "api_unreachable"


class JobFailed(RingleaderError):
    """The job ended without success; carries the reason and the last log lines."""

    def __init__(
        self, job_id: str, state: str, reason: dict[str, Any] | None, log_lines: Sequence[str]
    ) -> None:
        self.job_id = job_id
        self.state = state
        self.reason = reason or {}
        self.log_lines = list(log_lines)
        self.code = self.reason.get("code", state)
        super().__init__(
            f"job {job_id} {state}: {self.reason.get('message', 'no reason recorded')}",
            hint=self.reason.get("hint", ""),
        )


class WaitTimeout(RingleaderError):
    """A wait with a deadline passed it; the job itself goes on."""

    code = "wait_timeout"


class EntrypointImport(RingleaderError):
    """The training function cannot be imported."""

    code = "entrypoint_import"


class EntrypointRaised(RingleaderError):
    """The training function raised; the message gives the place and the traceback. `shard` is -1 outside a slice."""

    code = "entrypoint_raised"

    def __init__(self, message: str, *, step: int = -1, shard: int = -1) -> None:
        super().__init__(message)
        self.step = step
        self.shard = shard


class LibraryMissing(RingleaderError, ImportError):
    """The library that an adapter stands on is not installed, or in a version that lacks what the adapter needs."""

    code = "entrypoint_import"

    def __init__(self, library: str, extra: str, version: str = "") -> None:
        """`version`: of the library that is installed; empty for none."""
        adapter = f"ringleader.adapters.{library}"
        lacks = f"{library} {version} is installed, which lacks what {adapter} needs: it is tested with other versions."
        super().__init__(
            lacks if version else f"{library} is not installed, which {adapter} needs.",
            hint=f"pip install 'ringleader[{extra}]', or name it in requirements of the job file.",
        )


class RequirementsFailed(RingleaderError):
    """The packages that a job brings cannot be installed on a node."""

    code = "requirements_failed"


class NoDevice(RingleaderError):
    """A worker was given no device of the kind that the job asks for."""

    code = "no_device"


class NoStep(RingleaderError):
    """The training function returned without committing a step."""

    code = "no_step"


class StepMisuse(RingleaderError):
    """`session.step` was not called exactly once in a turn of the loop, or called outside it."""

    code = "entrypoint_raised"


class DatasetUnsupported(RingleaderError, TypeError):
    """The dataset has no length or no random access."""

    code = "entrypoint_raised"


class NonFiniteLoss(RingleaderError):
    """The global loss of a step is NaN or infinite."""

    code = "nonfinite_loss"


class CallMismatch(RingleaderError):
    """Two members are at different session calls: user code branched on something that differs."""

    code = "entrypoint_raised"


class ExchangeBroken(RingleaderError):
    """A member stopped answering inside an exchange. Recovered by the next plan, never shown to user code.

    `rank` is -1 where the member is not known: a library's collective names none.
    """

    def __init__(self, *, rank: int, phase: str, bucket: int | None, why: str) -> None:
        self.rank = rank
        self.phase = phase
        self.bucket = bucket
        self.why = why
        where = f"bucket {bucket}" if bucket is not None else "no bucket"
        who = f"rank {rank}" if rank >= 0 else "some rank"
        super().__init__(f"the exchange with {who} failed in phase {phase} ({where}): {why}")


class WordRefused(RingleaderError):
    """An entry in the store where members meet, or the other end of a connection, is not a member's: it does not carry
    the attempt's secret. The meeting fails, and members meet again."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"the entry {key!r} of the rendezvous is not from a member of this attempt and was refused.",
            hint="Others can reach the ports of these nodes: keep the network between them private.",
        )


class ObjectRefused(ExchangeBroken):
    """An object from a peer does not carry a member's seal: nothing of it was unpickled, and members meet again."""

    def __init__(self) -> None:
        why = "an object was refused because no member of this generation has sealed it; it was not unpickled"
        super().__init__(rank=-1, phase="object", bucket=None, why=why)


class ObjectUnexpected(RingleaderError):
    """A member's object names a type that its message never holds."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"an object from a peer holds the type {name}, which messages of its kind never contain."
        )


class Dismissed(BaseException):
    """Unwinds the training function of a worker that has to leave; not an error, so not an Exception."""
