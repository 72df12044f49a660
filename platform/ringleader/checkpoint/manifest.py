"""The manifest of a checkpoint: written last, it lists the files that belong to it, with their sizes and digests."""

import hashlib
import json
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any

from ringleader.errors import RingleaderError

FORMAT = 1
"""The version of the files' format; a reader refuses one that it does not know."""

NAME = re.compile(r"step-(\d+)-a(\d+)-g(\d+)(-end)?")
Order = tuple[int, int, int, bool]
"""(step, attempt, generation, whether the job ends with it): a later one holds no older state."""


def order_of(name: str) -> Order | None:
    """The order of a checkpoint of that name; None: no checkpoint has such a name."""
    found = NAME.fullmatch(name)
    return (int(found[1]), int(found[2]), int(found[3]), bool(found[4])) if found else None


class CheckpointUnreadable(RingleaderError):
    """A checkpoint is torn, corrupt, or of another program."""

    code = "checkpoint_unreadable"

    def __init__(self, place: str, why: str) -> None:
        self.why = why
        super().__init__(
            f"the checkpoint {place} cannot be used: {why}.",
            hint="Start from an older one, or remove it.",
        )


class BeginningUnreadable(CheckpointUnreadable):
    """The source that `init_from` names is missing, torn, corrupt, or neither weights file nor checkpoint."""

    def __init__(self, uri: str, why: str) -> None:
        self.why = why
        RingleaderError.__init__(
            self,
            f"init_from {uri} cannot be used: {why}.",
            hint="Give the path or URI of a weights file or a checkpoint that every worker can read.",
        )


class CheckpointsUnreachable(CheckpointUnreadable):
    """The file system of the checkpoints does not answer: nothing is known of any of them, and none is passed over."""

    code = "platform_error"

    def __init__(self, place: str, why: str) -> None:
        self.why = why
        RingleaderError.__init__(
            self,
            f"{place} cannot be reached, so the newest checkpoint is not known: {why}.",
            hint="Nothing is lost: a later attempt starts from it. Check the endpoint, the network and the "
            "credentials.",
        )


@contextmanager
def beginning(uri: str) -> Iterator[None]:
    """Name `init_from` in the errors of the block. Raises BeginningUnreadable, CheckpointsUnreachable."""
    try:
        yield
    except CheckpointsUnreachable:
        raise  # it is a kind of CheckpointUnreadable, which the next clause renames
    except CheckpointUnreadable as error:
        raise BeginningUnreadable(uri, error.why) from None


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a checkpoint.

    Attributes:
        sha256: the digest of its bytes, in hex.
    """

    name: str
    size_bytes: int
    sha256: str

    def check(self, content: bytes | memoryview) -> str:
        """The error in the bytes that were read, in words; empty where there is none."""
        if len(content) != self.size_bytes:
            return self.resized(len(content))
        return "" if hashlib.sha256(content).hexdigest() == self.sha256 else self.changed

    @property
    def changed(self) -> str:
        """The message for bytes that have changed."""
        return f"the bytes of {self.name} have changed since they were written"

    def resized(self, size_bytes: int) -> str:
        """The message for another size."""
        return f"{self.name} has {size_bytes} bytes instead of {self.size_bytes}"


@dataclass(frozen=True, slots=True)
class CheckpointPosition:
    """The state that a checkpoint holds, and the attempt and generation that wrote it.

    Attributes:
        step, applied: global steps and transactions (steps and finished evaluations) that it has applied.
        final: it is the state with which the job ends, behind all lines of its program.
    """

    step: int
    applied: int
    attempt: int
    generation: int
    final: bool = False

    @property
    def name(self) -> str:
        """The checkpoint's name in its job's folder."""
        # The last step may have a checkpoint of its own, in the same generation.
        return f"step-{self.step:012d}-a{self.attempt}-g{self.generation}{'-end' if self.final else ''}"

    @property
    def order(self) -> Order:
        """The sort key in one folder: the later of two takes precedence."""
        return (self.step, self.attempt, self.generation, self.final)

    def outdoes(self, name: str) -> bool:
        """Whether the checkpoint of that name is of an earlier attempt and of no earlier step."""
        order = order_of(name)
        return order is not None and order[0] >= self.step and order[1] < self.attempt


@dataclass(frozen=True, slots=True)
class SavedPart:
    """The report of one writer whose files are written.

    Attributes:
        number, count: which of how many writers.
        copied_s: seconds that its training thread waited for the copy.
        written_s: seconds from the copy until the files were there.
        settled: all members stood at that step when it was copied, so that nothing takes it back.
    """

    position: CheckpointPosition
    number: int
    count: int
    pieces: tuple[CheckpointFile, ...]
    copied_s: float
    written_s: float = 0.0
    settled: bool = False


@cache
def _versions() -> Mapping[str, str]:
    names = ("ringleader", "torch", "numpy", "safetensors")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The list that makes the files of one settled step a checkpoint.

    Attributes:
        pieces: every file, in the order of the writers.
        versions: those of the programs that wrote it, by name.
        spec: the job file, as accepted.
        job: the job that it belongs to, as in the name of its folder.
    """

    position: CheckpointPosition
    pieces: tuple[CheckpointFile, ...]
    spec: Mapping[str, Any]
    job: str = ""
    versions: Mapping[str, str] = field(default_factory=lambda: dict(_versions()))

    def encode(self) -> bytes:
        """Encode it as JSON that holds the checksum of itself."""
        body = asdict(self) | {"format": FORMAT}
        if not self.position.final:  # a reader of an earlier version does not know it
            del body["position"]["final"]
        return json.dumps({"sha256": _digest(body), "manifest": body}, indent=1).encode()

    @classmethod
    def decode(cls, place: str, content: bytes) -> "Manifest":
        """Read a manifest. Raises CheckpointUnreadable: torn, changed, or of a format that this reader cannot read."""
        try:
            outer = json.loads(content)
            body, sent = outer["manifest"], outer["sha256"]
            known = body.pop("format")
        except (ValueError, TypeError, KeyError, AttributeError):
            raise CheckpointUnreadable(place, "its manifest is not a complete JSON document") from None
        # Before the digest, which another format may make in another way.
        if known != FORMAT:
            raise CheckpointUnreadable(place, f"it has the format {known!r}, but this version reads {FORMAT}")
        if _digest(body | {"format": known}) != sent:
            raise CheckpointUnreadable(place, "its manifest has changed since it was written")
        pieces = tuple(CheckpointFile(**piece) for piece in body.pop("pieces"))
        return cls(position=CheckpointPosition(**body.pop("position")), pieces=pieces, **body)


def _digest(body: Mapping[str, Any]) -> str:
    # Sorted: the digest must not depend on the order of the keys in the file.
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
